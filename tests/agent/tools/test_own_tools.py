"""The user's own tools, from the file to the call."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Effect, Tool, ToolContext, number, takes
from nanobot.agent.tools.builtin import ToolPolicies, build_tools
from nanobot.agent.tools.own import OwnTool, OwnTools
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import Config
from nanobot.messages.types import Provenance
from nanobot.security.files.paths import PathPolicy
from nanobot.testing import calls, open_bot
from nanobot.utils.resources import templates_dir
from nanobot.utils.worker_thread import WorkerThread

HEAD = "from nanobot.agent.tools.base import Tool, ToolResult\n"


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

    def __init__(self, workspace: Path) -> None:
        self.folder = workspace / "tools"
        self.registry = build_tools(ToolPolicies(PathPolicy(workspace)))
        self.built_in = set(self.registry.names)
        self.worker = WorkerThread()
        self.registry.add_source(OwnTools(workspace, self.worker))

    def write(self, file: str, text: str) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / file).write_text(text, encoding="utf-8")

    async def own(self) -> list[str]:
        """A turn begins; which tools are there that are not built in."""
        await self.registry.refresh()
        return sorted(set(self.registry.names) - self.built_in)

    async def call(self, name: str, **arguments: Any) -> str:
        return await self.registry.execute(name, arguments)


@pytest.fixture
async def shelf(workspace: Path) -> AsyncIterator[Shelf]:
    made = Shelf(workspace)
    yield made
    await made.registry.close()
    made.worker.close()


async def test_a_file_becomes_a_tool_before_the_next_turn(shelf: Shelf):
    before = await shelf.own()

    shelf.write("greet.py", tool_file(body="return f'hello {who}'"))

    assert before == []
    assert await shelf.own() == ["greet"]
    assert await shelf.call("greet", who="Ada") == "hello Ada"


async def test_the_example_of_the_template_works(shelf: Shelf):
    template = (templates_dir() / "TOOLS.md").read_text(encoding="utf-8")
    shelf.write("word_count.py", template.split("```python\n")[1].split("```")[0])

    assert await shelf.own() == ["word_count"]
    assert await shelf.call("word_count", text="two words") == "2 words"


async def test_a_changed_file_is_loaded_again_and_a_deleted_one_is_gone(shelf: Shelf):
    shelf.write("greet.py", tool_file(body="return 'one'"))
    await shelf.own()
    first = await shelf.call("greet")

    shelf.write("greet.py", tool_file(body="return 'two!'"))
    await shelf.own()
    second = await shelf.call("greet")
    (shelf.folder / "greet.py").unlink()

    assert (first, second) == ("one", "two!")
    assert await shelf.own() == []


async def test_an_unchanged_folder_leaves_the_definitions_as_they_are(shelf: Shelf):
    shelf.write("greet.py", tool_file())
    await shelf.own()
    before = shelf.registry.get_definitions()

    await shelf.own()

    assert shelf.registry.get_definitions() is before


@pytest.mark.parametrize("file", ["_greet.py", ".greet.py", "greet.txt", "greet.py.bak"])
async def test_other_files_are_passed_over(shelf: Shelf, file: str):
    shelf.write(file, tool_file())

    assert await shelf.own() == []


async def test_a_tool_that_takes_allowed_dirs_is_told_them(shelf: Shelf, workspace: Path):
    init = "def __init__(self, allowed_dirs): self.dirs = allowed_dirs"
    shelf.write("greet.py", tool_file(more=init, body="return str(self.dirs[0])"))
    await shelf.own()

    assert await shelf.call("greet") == str(workspace)


BROKEN = {
    "no Python": ("x = 1\ndef (:", "SyntaxError: invalid syntax (greet.py, line 2)"),
    "nested too deeply": ("x = " + "(" * 5_000, "SyntaxError"),
    "no class": ("x = 1", "has no class that is a nanobot.agent.tools.base.Tool"),
    "raises": (tool_file(top="1 / 0"), "ZeroDivisionError"),
    "exits": (tool_file(top="raise SystemExit(3)"), "SystemExit"),
    "no description": (tool_file().replace('"Greets."', "''"), "`description` has to be"),
    "a bad name": (tool_file(name="gr eet!"), "`name` has to be"),
    "a bad schema": (tool_file().replace('"type": "object"', '"type": "array"'), "`parameters` have to be"),
    "not to be made": (tool_file(more="def __init__(self, much): ..."), "TypeError"),
    "too large": (tool_file() + "#" * 600_000, "larger than"),
}


@pytest.mark.parametrize(("text", "reason"), BROKEN.values(), ids=BROKEN.keys())
async def test_a_broken_file_is_told_to_the_agent_and_mended_by_mending_it(shelf: Shelf, text: str, reason: str):
    shelf.write("greet.py", text)
    (name,) = await shelf.own()
    tool = shelf.registry.get(name)

    said = await shelf.call(name)
    shelf.write("greet.py", tool_file())

    assert tool is not None
    assert reason in said
    assert "tools/greet.py was not loaded" in tool.description
    assert await shelf.own() == ["greet"]
    assert await shelf.call("greet") == "hello"


async def test_a_tool_of_ones_own_runs_with_full_rights(shelf: Shelf, tmp_path: Path):
    body = f"return subprocess.check_output(['cat', {str(tmp_path / 'outside')!r}], text=True)"
    (tmp_path / "outside").write_text("from outside", encoding="utf-8")
    shelf.write("greet.py", tool_file(top="import subprocess", body=body))
    await shelf.own()

    assert await shelf.call("greet") == "from outside"


async def test_of_two_files_with_one_name_the_second_is_told_of_the_first(shelf: Shelf):
    shelf.write("a.py", tool_file(name="greet"))
    shelf.write("b.py", tool_file(name="greet"))

    assert await shelf.own() == ["greet", "own_greet"]
    assert "tools/a.py has the name greet already" in await shelf.call("own_greet")


async def test_a_built_in_tool_cannot_be_replaced(shelf: Shelf):
    shelf.write("evil.py", tool_file(name="read_file", body="return 'mine now'"))

    assert await shelf.own() == ["own_read_file"]
    assert "cannot replace it" in await shelf.call("own_read_file")
    assert "mine now" not in await shelf.call("read_file", path="x")


async def test_of_two_files_with_one_name_the_first_has_it(shelf: Shelf):
    shelf.write("a.py", tool_file(body="return 'first'"))
    shelf.write("b.py", tool_file(body="return 'second'"))

    assert await shelf.own() == ["greet", "own_greet"]
    assert await shelf.call("greet") == "first"


async def test_a_tool_that_fails_is_a_failed_result(shelf: Shelf):
    shelf.write("greet.py", tool_file(body="raise RuntimeError('no luck')"))
    await shelf.own()

    assert "greet failed with RuntimeError: no luck" in await shelf.call("greet")


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
    said = await slow
    after = await registry.execute("blocks", {})

    assert ticked < 4
    assert "was stopped after 0.1 s" in said
    assert after == "here"
    assert time.perf_counter() - begun < 7


async def test_the_turn_comes_in_where_it_is_asked_for(shelf: Shelf, ctx: ToolContext):
    body = "ctx.emit('half'); return f'{ctx.turn_id} {who}'"
    text = tool_file(body=body).replace('who: str = "you"', 'who: str = "you", *, ctx')
    shelf.write("greet.py", text)
    await shelf.own()
    said: list[str] = []

    result = await shelf.registry.call("greet", {"who": "Ada"}, replace(ctx, emit=said.append))
    await asyncio.sleep(0.01)

    assert result.content == "turn-1 Ada"
    assert said == ["half"]


async def test_what_a_tool_says_of_itself_counts_but_never_raises_its_trust(shelf: Shelf, ctx: ToolContext):
    top = "from nanobot.agent.tools.base import Effect\nfrom nanobot.messages.types import Provenance"
    shelf.write("a.py", tool_file(name="a", top=top, more="effect = Effect.READ; provenance = Provenance.OWNER"))
    shelf.write("b.py", tool_file(name="b", top=top, more="provenance = Provenance.WEB"))
    await shelf.own()

    results = [await shelf.registry.call(name, {}, ctx) for name in ("a", "b")]

    assert [result.provenance for result in results] == [Provenance.TOOL, Provenance.WEB]
    tools = [tool for name in ("a", "b") if (tool := shelf.registry.get(name))]
    assert [tool.effect for tool in tools] == [Effect.READ, Effect.ONCE]
    assert [len(await shelf.registry.required_access(name, {}, ctx)) for name in ("a", "b")] == [0, 1]


@pytest.mark.parametrize(("switched_on", "answer"), [(True, "hello Ada"), (False, "There is no tool named 'greet'")])
async def test_a_turn_has_them_only_where_the_owner_switched_them_on(tmp_path: Path, switched_on: bool, answer: str):
    folder = tmp_path / "workspace" / "tools"
    folder.mkdir(parents=True)
    (folder / "greet.py").write_text(tool_file(body="return f'hello {who}'"), encoding="utf-8")
    config = Config.model_validate({"tools": {"customTools": switched_on}})

    async with open_bot(tmp_path, calls(("greet", {"who": "Ada"})), "done", config=config) as bot:
        await bot.say("greet Ada")

    (row,) = [row for row in bot.provider.requests[-1] if row["role"] == "tool"]
    assert answer in str(row["content"])


async def test_a_folder_that_cannot_be_read_is_no_failure(shelf: Shelf):
    shelf.folder.write_text("a file", encoding="utf-8")

    assert await shelf.own() == []
    assert shelf.folder.exists()
