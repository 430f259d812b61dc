"""What every test may ask for."""

import gc
import os
import sys
import warnings
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from nanobot.config.paths import use_config
from nanobot.security.vault import forget_all
from nanobot.testing import Bot, open_bot

sys.dont_write_bytecode = False  # else each worker rewrites the asserts of all tests for itself: eight seconds each


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A worker more than there are cores: many tests wait for a child process or a socket."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one group run in one worker. xdist 3.8 notes the group where pytest since 9.2 does not look for it."""
    for item in items:
        noted = vars(item).get("_nodeid", item.nodeid)
        if noted != item.nodeid:
            item._id = item.id.parse(noted)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Who runs commands finds a warm process, and the garbage collector does not walk through all tests each time."""
    warm = sys.modules.get("tests.warm")
    if warm is not None and not session.config.option.collectonly:
        warm.begin()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def what_litellm_drops(request: pytest.FixtureRequest) -> Iterator[None]:
    """LiteLLM leaves the socket of a call that failed to the garbage collector, which warns in whatever test it runs.

    Tests of the group `litellm` have it collected at their end, unseen; elsewhere an open socket fails a test.
    """
    yield
    group = request.node.get_closest_marker("xdist_group")
    if group is not None and group.args == ("litellm",):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


@pytest.fixture(autouse=True)
def no_outside(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test sees the home, the keys or the proxies of the machine it runs on."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    for name in [*os.environ]:
        if name.upper().endswith(("_API_KEY", "_PROXY")) or name.startswith("NANOBOT_"):
            monkeypatch.delenv(name)
    use_config(None)  # a command of an earlier test may have chosen one for its process, which is this one


@pytest.fixture(autouse=True)
def no_secrets_of_others() -> None:
    """What one test holds secret, another may say."""
    forget_all()


@pytest.fixture
async def bot(tmp_path: Path) -> AsyncIterator[Bot]:
    """A whole agent with a scripted model."""
    async with open_bot(tmp_path) as bot:
        yield bot
