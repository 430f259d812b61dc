"""What every tool promises: a schema that models understand, and a result whatever they send.

@pytest.mark.parametrize("check", tool_checks(lambda folder: Postage(), {"country": "italy"}), ids=str)
def test_the_tool(check, tmp_path):
    check(tmp_path)
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import Address
from nanobot.messages.types import Provenance
from nanobot.testing.checks import Check
from nanobot.utils.clock import FrozenClock

JUNK: tuple[Any, ...] = (
    None,
    True,
    -3,
    10**20,
    1.5,
    "",
    "\0",
    "x" * 300,
    "../..",
    "grüße 🌍",
    [],
    ["a", 1],
    {},
    {"a": None},
)
"""What models send where they guess."""


@dataclass(frozen=True)
class ToolAtWork:
    """A tool in a registry and a workspace of its own, and a call of it that succeeds."""

    tool: Tool
    registry: ToolRegistry
    context: ToolContext
    arguments: Mapping[str, Any]

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call it as the agent does."""
        return await self.registry.call(self.tool.name, dict(arguments), self.context)


def tool_checks(
    make: Callable[[Path], Tool], arguments: Mapping[str, Any], *, takes_anything: bool = False
) -> list[Check]:
    """A check for each promise. `make` builds the tool; it gets the folder that is the workspace.

    A call with `arguments` has to succeed. A tool that `takes_anything`, as a shell takes any text for a command, is
    not called with arguments that make no sense.
    """

    async def hold(row: Callable[[ToolAtWork], Awaitable[None]], folder: Path) -> None:
        tool = make(folder)
        registry = ToolRegistry()
        registry.register(tool)
        clock = FrozenClock(datetime(2026, 1, 1))
        context = ToolContext("cli:direct", Address("cli", "direct"), "turn", folder, clock)
        await row(ToolAtWork(tool, registry, context, arguments))

    skipped = {test_whatever_the_arguments_are_there_is_a_result: "it takes anything"} if takes_anything else {}
    rows = {name: row for name, row in globals().items() if name.startswith("test_")}
    return [Check(name.removeprefix("test_"), partial(hold, row), skipped.get(row, "")) for name, row in rows.items()]


async def test_its_schema_is_a_json_schema_of_an_object(at_work: ToolAtWork) -> None:
    schema = at_work.tool.parameters

    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    assert json.loads(json.dumps(schema)) == schema


async def test_it_says_what_it_does_and_what_each_argument_is(at_work: ToolAtWork) -> None:
    tool = at_work.tool
    properties = tool.parameters["properties"].values()
    described = [argument["description"] for argument in properties if "description" in argument]

    assert len(tool.description) >= 40
    assert tool.description.endswith((".", ")"))
    assert all(len(words) >= 8 for words in described)  # a name that says it all may stand alone


async def test_it_declares_what_a_crash_may_repeat(at_work: ToolAtWork) -> None:
    assert isinstance(at_work.tool.effect, Effect)


async def test_a_right_call_succeeds(at_work: ToolAtWork) -> None:
    result = await at_work.call(at_work.arguments)

    assert not result.error, result.content
    assert isinstance(result.provenance, Provenance)


async def test_it_works_outside_of_a_turn(at_work: ToolAtWork) -> None:
    result = await at_work.registry.execute(at_work.tool.name, dict(at_work.arguments))

    assert not result.startswith("Error"), result


async def test_a_call_without_arguments_says_what_is_required(at_work: ToolAtWork) -> None:
    required = [name for name in at_work.tool.parameters.get("required", ()) if name in at_work.arguments]

    result = await at_work.call({})

    assert result.error or not required
    assert all(f"{name} is required" in str(result.content) for name in required)


async def test_a_made_up_argument_is_named(at_work: ToolAtWork) -> None:
    result = await at_work.call({**at_work.arguments, "made_up": 1})

    assert result.error
    assert "made_up is not a parameter" in str(result.content)


async def test_whatever_the_arguments_are_there_is_a_result(at_work: ToolAtWork) -> None:
    for name in at_work.tool.parameters["properties"]:
        for value in JUNK:
            result = await at_work.call({**at_work.arguments, name: value})

            assert isinstance(result, ToolResult)
            assert result.content, (name, value)


async def test_a_call_may_be_cancelled_at_any_moment(at_work: ToolAtWork) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02):
        task = asyncio.create_task(at_work.call(at_work.arguments))
        await asyncio.sleep(delay)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)

        assert isinstance(ended, asyncio.CancelledError | ToolResult)
