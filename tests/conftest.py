"""What every test may ask for."""

import faulthandler
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import warnings
from collections.abc import AsyncIterator, Generator, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadGroupScheduling

from nanobot.config.paths import use_config
from nanobot.security.files.paths import PathPolicy
from nanobot.security.sandbox.sandbox import Sandbox
from nanobot.security.secrets import forget_all
from nanobot.testing import Bot, open_bot
from tests.support.tools import DeafTool


def _memory() -> str | None:
    """A folder in memory with room in which programs may run, where the system has one."""
    if not os.access("/dev/shm", os.W_OK) or sys.platform != "linux":
        return None
    room = os.statvfs("/dev/shm")
    return "/dev/shm" if room.f_bavail * room.f_frsize > 2 << 30 and not room.f_flag & os.ST_NOEXEC else None


if (memory := _memory()) is not None:  # SQLite waits for the disk at each commit, some ten times a turn
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)

hypothesis.settings.register_profile(  # the same few examples each time; a loaded machine is no failure
    "default",
    deadline=None,
    derandomize=True,
    max_examples=20,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile(
    "nightly", hypothesis.settings.get_profile("default"), derandomize=False, max_examples=1000
)
hypothesis.settings.load_profile("default")

for number in filter(None, (signal.SIGINT, getattr(signal, "SIGHUP", None))):
    if signal.getsignal(number) is signal.SIG_IGN:  # in the background of a script, or of nohup; children inherit it
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Two workers more than there are cores: many tests wait for a child process or a socket."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 2


class FilesToWorkers(LoadGroupScheduling):  # type: ignore[misc]
    """Give a worker a group or a file at a time. Test by test, the scheduler's work grows with their square."""

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return nodeid.partition("::")[0] if group == nodeid else group


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadGroupScheduling:
    return FilesToWorkers(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """xdist adds its group to the name of a test, and `--lf` finds no test of that name."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        report.nodeid = re.sub(r"@[\w ]+$", "", report.nodeid)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test `promise` or `internal`."""
    item.add_marker("internal" if item.path in INTERNAL else "promise")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one group run in one worker. xdist 3.8 notes the group where pytest since 9.2 does not look for it."""
    for item in items:
        noted = vars(item).get("_nodeid", item.nodeid)
        if noted != item.nodeid:
            item._id = item.id.parse(noted)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """A failing assertion may show half a surrogate, which xdist cannot send: the run would end and name no test."""
    return _encodable((yield))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {_encodable(key): _encodable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_encodable, value))
    return value


ROOT = Path(__file__).parents[1]
INTERNAL = frozenset(map(ROOT.joinpath, (ROOT / "tests" / "internal.txt").read_text(encoding="utf-8").split()))
"""Files of tests that name internals. Such a test ends with what it tests; before that, see a `promise` test go red."""

_STDERR = pytest.StashKey[int]()
_HOME = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real stderr: while a test runs, pytest captures descriptor 2."""
    config.stash[_STDERR] = os.dup(2)
    gc.disable()  # until the tests are collected: nothing is garbage before


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """End the process, with a traceback, when a test swallows the exception of its timeout. xdist names the test and
    goes on with a new process.
    """
    marker = item.get_closest_marker("timeout")
    limit = float(marker.args[0] if marker is not None else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit * 1.5, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin as on a new machine. Not in fixtures, which cost more than what they do, ten thousand times."""
    if item.get_closest_marker("needs_sandbox") is not None and not _has_sandbox():
        pytest.skip("no sandbox works here")  # each command would ask for approval
    _leave_the_machine(item.config)
    use_config(None)  # a command of an earlier test may have chosen one for its process, which is this one
    forget_all()  # what one test holds secret, another may say
    if item.get_closest_marker("bench") is None:  # nor does any test cut the power: a sync may be counted
        for name in ("fsync", "fdatasync"):
            setattr(os, name, lambda descriptor: None)


def _leave_the_machine(config: pytest.Config) -> None:
    """No test sees the home, the keys or the proxies of the machine it runs on."""
    home = config.stash.get(_HOME, None)
    if home is None or not home.is_dir() or any(home.iterdir()):  # it serves until a test leaves something in it
        home = config.stash[_HOME] = Path(tempfile.mkdtemp(dir=memory))
        config.add_cleanup(partial(shutil.rmtree, home, ignore_errors=True))
    os.environ["HOME"] = os.environ["USERPROFILE"] = str(home)
    for name in [*os.environ]:
        if name.upper().endswith(("_API_KEY", "_PROXY")) or name.startswith("NANOBOT_"):
            del os.environ[name]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """LiteLLM leaves the socket of a call that failed to the garbage collector, which warns in whatever test it runs.

    Tests of the group `litellm` have it collected at their end, unseen; elsewhere an open socket fails a test.
    """
    group = item.get_closest_marker("xdist_group")
    if group is not None and group.args == ("litellm",):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()
            gc.freeze()  # LiteLLM's own: to look through it takes 50 ms each time


@cache
def _has_sandbox() -> bool:
    with tempfile.TemporaryDirectory() as workspace:
        return Sandbox(PathPolicy(Path(workspace))).is_available


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say how to repeat a red run."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line("Repeat what failed: python -m pytest --lf    (one process; -n auto for all cores)")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Who runs commands finds a warm process, and the garbage collector does not walk through all tests each time."""
    warm = sys.modules.get("tests.support.forkserver")
    if warm is not None and not session.config.option.collectonly:
        warm.begin()
    gc.enable()
    gc.freeze()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A folder on the disk, also where `tmp_path` is in memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder).resolve()


@pytest.fixture
async def bot(tmp_path: Path) -> AsyncIterator[Bot]:
    """A whole agent with a scripted model."""
    async with open_bot(tmp_path) as bot:
        yield bot


@pytest.fixture
def deaf() -> Iterator[DeafTool]:
    """A tool that ignores cancellation; it ends with the test, red or green. Ask for it after `bot`."""
    tool = DeafTool()
    yield tool
    tool.over.set()
