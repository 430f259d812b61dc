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


def test_the_table_is_long_enough():
    assert len({*SECRETS, *OUTSIDE, *WRITES}) >= 200


@pytest.mark.parametrize("path", SECRETS)
async def test_no_spelling_of_a_secret_is_read(house: House, path: str):
    told = await shown(tools(house), house.path(path))

    assert CANARY not in told
    assert "HOME=" not in told
    assert "authorized_keys" not in told
    assert "id_rsa\n" not in told


@pytest.mark.parametrize("path", [*OUTSIDE, *SECRETS[::4]])
async def test_a_restricted_bot_reads_nothing_outside_of_its_workspace(house: House, path: str):
    told = await shown(tools(house, restrict=True), house.path(path))

    assert CANARY not in told
    assert "root:" not in told
    assert "plain.txt\n" not in told


@pytest.mark.parametrize("path", WRITES)
async def test_no_spelling_writes_where_it_may_not(house: House, path: str):
    registry, before = tools(house), house.contents()
    where = house.path(path)

    for call in (
        ("write_file", {"path": where, "content": "mine"}),
        ("edit_file", {"path": where, "old_text": "CANARY", "new_text": "mine"}),
    ):
        await registry.call(*call)

    assert house.contents() == before


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
