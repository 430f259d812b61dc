"""No path leads out: what a table of spellings, links, hard links, devices and races gets to see or to change."""

import sys
from pathlib import Path

import pytest

from nanobot.agent.tools.base import ToolResult
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.types import text_of
from tests.agent.tools.escapes import CANARY, HARD, OUTSIDE, SECRETS, WRITES, House, build

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links and devices of POSIX")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> House:
    return build(tmp_path_factory.mktemp("house"))


@pytest.fixture
def house(built: House, monkeypatch) -> House:
    """One for all: whoever changes it has found a way out."""
    monkeypatch.setenv("HOME", str(built.home))
    return built


def tools(house: House, *, restrict: bool = False) -> ToolRegistry:
    return build_tools(ToolPolicies(house.policy(restrict=restrict)))


async def shown(registry: ToolRegistry, path: str) -> str:
    """All that the reading tools tell of a path."""
    results: list[ToolResult] = [
        await registry.call("read_file", {"path": path}),
        await registry.call("list_dir", {"path": path}),
        await registry.call("glob", {"path": path, "pattern": "id_*"}),
    ]
    if "\0" not in path:
        results.append(await registry.call("grep", {"path": path, "pattern": "CANARY|HOME", "max_results": 5}))
    return "\n".join(text_of(result.content) for result in results)


async def test_no_spelling_of_a_secret_is_read(house: House):
    registry = tools(house)

    told = {path: await shown(registry, house.path(path)) for path in SECRETS}

    signs = (CANARY, "HOME=", "authorized_keys", "id_rsa\n")
    assert [path for path, text in told.items() if any(sign in text for sign in signs)] == []


async def test_a_restricted_bot_reads_nothing_outside_of_its_workspace(house: House):
    registry = tools(house, restrict=True)

    told = {path: await shown(registry, house.path(path)) for path in (*OUTSIDE, *SECRETS)}

    signs = (CANARY, "HOME=", "root:", "plain.txt\n")
    assert [path for path, text in told.items() if any(sign in text for sign in signs)] == []


async def test_no_spelling_writes_where_it_may_not(house: House):
    registry, before, changed = tools(house), house.contents(), []

    for path in WRITES:
        where = house.path(path)
        await registry.call("write_file", {"path": where, "content": "mine"})
        await registry.call("edit_file", {"path": where, "old_text": CANARY, "new_text": "mine"})
        await registry.call("notebook_edit", {"path": where, "cell": "0", "source": "mine"})
        if house.contents() != before:
            changed.append(path)
            before = house.contents()

    assert changed == []


@pytest.mark.parametrize("path", sorted(HARD))
async def test_writing_over_a_second_name_of_a_secret_leaves_the_secret_alone(tmp_path: Path, path: str):
    house = build(tmp_path)
    before = house.contents()

    await tools(house).call("write_file", {"path": path, "content": "mine"})

    assert house.contents() == before


async def test_what_may_be_read_and_written_is(tmp_path: Path):
    house = build(tmp_path)
    registry = tools(house)

    assert CANARY in await shown(registry, str(house.outside / "plain.txt"))
    assert CANARY in await shown(registry, "sessions/cli_direct.jsonl")
    for path in ("notes.txt", "new.txt", "deep/er/more/x.txt", "memory/MEMORY.md", "SOUL.md", "skills/a/SKILL.md"):
        assert not (await registry.call("write_file", {"path": path, "content": "mine"})).error
        assert (house.workspace / path).read_text(encoding="utf-8") == "mine"


async def test_a_search_of_everything_finds_no_secret_not_even_under_a_second_name(house: House):
    registry = tools(house)

    grep = text_of((await registry.call("grep", {"pattern": CANARY, "path": str(house.root)})).content)
    here = text_of((await registry.call("grep", {"pattern": CANARY})).content)

    assert "outside/plain.txt" in grep
    for secret in (".ssh", ".netrc", "config.json", "journal", "h_key", "h_config"):
        assert secret not in grep
        assert f"{secret}:" not in here


async def test_a_listing_names_a_folder_of_keys_and_does_not_enter_it(house: House):
    told = text_of((await tools(house).call("list_dir", {"path": str(house.home), "recursive": True})).content)

    assert ".ssh/\n.ssh/(no permission to look inside)" in told
    assert "id_rsa" not in told
