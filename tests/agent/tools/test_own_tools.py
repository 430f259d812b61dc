"""The user's own tools, from the file to the call."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Effect, Tool, ToolContext, number, takes
from nanobot.agent.tools.own import OwnTool, OwnTools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import Config
from nanobot.messages.types import Provenance
from nanobot.testing import open_bot
from nanobot.utils.aio import WorkerThread
from nanobot.utils.installation import templates_dir
from tests.support.tools import call_in_turn, lay

HEAD = "from nanobot.agent.tools.base import Effect, Tool, ToolResult\nfrom nanobot.messages.types import Provenance\n"


def tool_file(name: str = "greet", body: str = "return 'hello'", *, more: str = "", top: str = "") -> str:
    return f"""{HEAD}{top}
class Mine(Tool):
    name = {name!r}
    description = "Greets."
    parameters = {{"type": "object", "properties": {{"who": {{"type": "string"}}}}}}
    {more}

    async def execute(self, who: str = "you"):
        {body}
"""


class Shelf:
    """A workspace with tools of its user's, and the registry that has them."""

    def __init__(self, workspace: Path, registry: ToolRegistry) -> None:
        self.folder = workspace / "tools"
        self.registry = registry
        self.built_in = set(registry.names)
        self.worker = WorkerThread()
        self.registry.add_source(OwnTools(workspace, self.worker))

    async def own(self, **files: str) -> list[str]:
        """Files are written and a turn begins; which tools are there that are not built in."""
        lay(self.folder, {f"{name}.py": text for name, text in files.items()})
        await self.registry.refresh()
        return sorted(set(self.registry.names) - self.built_in)

    async def call(self, name: str, **arguments: Any) -> str:
        return await self.registry.execute(name, arguments)


@pytest.fixture
async def shelf(workspace: Path, registry: ToolRegistry) -> AsyncIterator[Shelf]:
    made = Shelf(workspace, registry)
    yield made
    await made.registry.close()
    made.worker.close()


async def test_a_file_is_a_tool_of_the_next_turn_as_long_as_it_is_there(shelf: Shelf):
    before = await shelf.own()
    first = await shelf.own(greet=tool_file(body="return f'hello {who}'")), await shelf.call("greet", who="Ada")
    definitions = shelf.registry.get_definitions()
    await shelf.own()
    unchanged = shelf.registry.get_definitions() is definitions
    second = await shelf.own(greet=tool_file(body="return 'changed'")), await shelf.call("greet")
    (shelf.folder / "greet.py").unlink()

    assert (before, first, second) == ([], (["greet"], "hello Ada"), (["greet"], "changed"))
    assert unchanged
    assert await shelf.own() == []


OUTSIDE = {"top": "import subprocess", "body": "return subprocess.check_output(['echo', 'from outside'], text=True)"}


@pytest.mark.parametrize(
    ("files", "names", "told"),
    [
        ({"_greet": tool_file(), ".greet": tool_file(), "greet.py.bak/x": tool_file()}, [], {}),
        ({"a": tool_file(**OUTSIDE)}, ["greet"], {"greet": "from outside"}),  # it has full rights
        (
            {
                "a": tool_file(
                    more="def __init__(self, allowed_dirs): self.d = allowed_dirs", body="return str(self.d[0])"
                )
            },
            ["greet"],
            {"greet": "/workspace"},
        ),
        (
            {"a": tool_file(body="raise RuntimeError('no luck')")},
            ["greet"],
            {"greet": "greet failed with RuntimeError: no luck"},
        ),
        (
            {"a": tool_file(body="return 'first'"), "b": tool_file(body="return 'second'")},
            ["greet", "own_greet"],
            {"greet": "first", "own_greet": "tools/a.py has the name greet already"},
        ),
        (
            {"evil": tool_file(name="read_file", body="return 'mine now'")},
            ["own_read_file"],
            {"read_file": "path is required", "own_read_file": "cannot replace it"},
        ),
        (
            {"word_count": (templates_dir() / "TOOLS.md").read_text("utf-8").split("```python\n")[1].split("```")[0]},
            ["word_count"],
            {"word_count": "text is required"},
        ),
    ],
    ids=["other files", "full rights", "folders", "fails", "twice", "built in", "template"],
)
async def test_a_file_has_its_tool_and_no_other_ones(
    shelf: Shelf, files: dict[str, str], names: list[str], told: dict[str, str]
):
    assert await shelf.own(**files) == names
    for name, said in told.items():
        assert said in await shelf.call(name)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\ndef (:", "SyntaxError: invalid syntax (greet.py, line 2)"),
        ("x = " + "(" * 5_000, "SyntaxError"),
        ("x = 1", "has no class that is a nanobot.agent.tools.base.Tool"),
        (tool_file(top="1 / 0"), "ZeroDivisionError"),
        (tool_file(top="raise SystemExit(3)"), "SystemExit"),
        (tool_file().replace('"Greets."', "''"), "`description` has to be"),
        (tool_file(name="gr eet!"), "`name` has to be"),
        (tool_file().replace('"type": "object"', '"type": "array"'), "`parameters` have to be"),
        (tool_file(more="def __init__(self, much): ..."), "TypeError"),
        (tool_file() + "#" * 600_000, "larger than"),
    ],
    ids=["syntax", "nested", "no_class", "raises", "exits", "description", "name", "schema", "constructor", "size"],
)
async def test_a_broken_file_is_told_to_the_agent_and_mended_by_mending_it(shelf: Shelf, text: str, reason: str):
    (name,) = await shelf.own(greet=text)
    tool = shelf.registry.get(name)

    said = await shelf.call(name)

    assert tool is not None
    assert reason in said
    assert "tools/greet.py was not loaded" in tool.description
    assert await shelf.own(greet=tool_file()) == ["greet"]
    assert await shelf.call("greet") == "hello"


class Blocks(Tool):
    name = "blocks"
    description = "Blocks, as a careless tool does."
    parameters = takes(seconds=number("How long"))

    async def execute(self, seconds: float = 0.0) -> str:
        time.sleep(seconds)
        return "here"


async def test_a_tool_that_blocks_holds_up_nobody_and_the_next_call_works():
    registry, aside = ToolRegistry(), WorkerThread()
    registry.register(OwnTool(Blocks(), aside, timeout_s=0.1))
    ticks = asyncio.create_task(asyncio.sleep(0.05))
    begun = time.perf_counter()

    slow = asyncio.create_task(registry.execute("blocks", {"seconds": 8}))
    await ticks
    ticked = time.perf_counter() - begun

    assert ticked < 4
    assert "was stopped after 0.1 s" in await slow
    assert await registry.execute("blocks", {}) == "here"
    assert time.perf_counter() - begun < 7


async def test_a_call_at_the_moment_at_which_another_one_blocks_does_not_wait_for_it():
    registry, aside = ToolRegistry(), WorkerThread()
    registry.register(OwnTool(Blocks(), aside, timeout_s=9.0))
    assert await registry.execute("blocks", {}) == "here"
    begun = time.perf_counter()

    slow = asyncio.create_task(registry.execute("blocks", {"seconds": 4}))
    quick = asyncio.create_task(registry.execute("blocks", {}))

    assert await quick == "here"
    assert time.perf_counter() - begun < 3
    assert await slow == "here"


async def test_the_turn_comes_in_where_it_is_asked_for(shelf: Shelf, ctx: ToolContext):
    text = tool_file(body="ctx.emit('half'); return f'{ctx.turn_id} {who}'")
    await shelf.own(greet=text.replace('who: str = "you"', 'who: str = "you", *, ctx'))
    said: list[str] = []

    result = await shelf.registry.call("greet", {"who": "Ada"}, replace(ctx, emit=said.append))
    await asyncio.sleep(0.01)

    assert (result.content, said) == ("turn-1 Ada", ["half"])


async def test_what_a_tool_says_of_itself_counts_but_never_raises_its_trust(shelf: Shelf, ctx: ToolContext):
    await shelf.own(
        a=tool_file(name="a", more="effect = Effect.READ; provenance = Provenance.OWNER"),
        b=tool_file(name="b", more="provenance = Provenance.WEB"),
        c=tool_file(name="c", body="return ToolResult('x', provenance=Provenance.OWNER)"),
    )

    results = [await shelf.registry.call(name, {}, ctx) for name in "abc"]
    accessed = [len(await shelf.registry.required_access(name, {}, ctx)) for name in "abc"]

    assert [result.provenance for result in results] == [Provenance.TOOL, Provenance.WEB, Provenance.TOOL]
    assert [tool.effect for name in "ab" if (tool := shelf.registry.get(name))] == [Effect.READ, Effect.ONCE]
    assert accessed == [0, 1, 1]


@pytest.mark.parametrize(("switched_on", "answer"), [(True, "hello Ada"), (False, "There is no tool named 'greet'")])
async def test_a_turn_has_them_only_where_the_owner_switched_them_on(tmp_path: Path, switched_on: bool, answer: str):
    lay(tmp_path, {"workspace/tools/greet.py": tool_file(body="return f'hello {who}'")})
    config = Config.model_validate({"tools": {"customTools": switched_on}})

    async with open_bot(tmp_path, config=config) as bot:
        assert answer in str((await call_in_turn(bot, "greet", who="Ada"))["content"])
