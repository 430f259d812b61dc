"""Conformance checks of tools: a schema that models understand, and a result for any arguments.

@pytest.mark.parametrize("check", tool_checks(lambda folder: Postage(), {"country": "italy"}), ids=str)
def test_the_tool(check, tmp_path):
    check(tmp_path)
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import Address
from nanobot.messages.types import Provenance
from nanobot.testing.checks import Check, checks_of
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
"""Arguments as models guess them."""


@dataclass(frozen=True)
class ToolUnderTest:
    """A tool in a registry and a workspace, and arguments with which it succeeds."""

    tool: Tool
    registry: ToolRegistry
    context: ToolContext
    arguments: Mapping[str, Any]

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call the tool as the agent does."""
        return await self.registry.call(self.tool.name, dict(arguments), self.context)


def tool_checks(
    make: Callable[[Path], Tool], arguments: Mapping[str, Any], *, takes_anything: bool = False
) -> list[Check]:
    """Return the checks. `make` creates the tool for a workspace folder.

    A call with `arguments` must succeed. A tool that `takes_anything`, as a shell does, is not called with senseless
    arguments.
    """

    async def run_check(check: Callable[[ToolUnderTest], Awaitable[None]], folder: Path) -> None:
        tool = make(folder)
        registry = ToolRegistry()
        registry.register(tool)
        clock = FrozenClock(datetime(2026, 1, 1))
        context = ToolContext("cli:direct", Address("cli", "direct"), "turn", folder, clock)
        await check(ToolUnderTest(tool, registry, context, arguments))

    skipped = {test_whatever_the_arguments_are_there_is_a_result: "it takes anything"} if takes_anything else {}
    return checks_of(globals(), run_check, lambda test: skipped.get(test, ""))


async def test_its_schema_is_a_json_schema_of_an_object(subject: ToolUnderTest) -> None:
    schema = subject.tool.parameters

    Draft202012Validator.check_schema(schema)
    assert schema["type"] == "object"
    assert set(schema.get("required", ())) <= schema["properties"].keys()
    assert json.loads(json.dumps(schema)) == schema


async def test_it_says_what_it_does_and_what_each_argument_is(subject: ToolUnderTest) -> None:
    tool = subject.tool
    properties = tool.parameters["properties"].values()
    described = [argument["description"] for argument in properties if "description" in argument]

    assert len(tool.description) >= 40
    assert tool.description.endswith((".", ")"))
    assert all(len(words) >= 8 for words in described)  # a name that says it all may stand alone


async def test_it_declares_what_a_crash_may_repeat(subject: ToolUnderTest) -> None:
    assert isinstance(subject.tool.effect, Effect)


async def test_a_right_call_succeeds(subject: ToolUnderTest) -> None:
    result = await subject.call(subject.arguments)

    assert not result.error, result.content
    assert isinstance(result.provenance, Provenance)


async def test_it_works_outside_of_a_turn(subject: ToolUnderTest) -> None:
    result = await subject.registry.execute(subject.tool.name, dict(subject.arguments))

    assert not result.startswith("Error"), result


async def test_a_call_without_arguments_says_what_is_required(subject: ToolUnderTest) -> None:
    required = [name for name in subject.tool.parameters.get("required", ()) if name in subject.arguments]

    result = await subject.call({})

    assert result.error or not required
    assert all(f"{name} is required" in str(result.content) for name in required)


async def test_a_made_up_argument_is_named(subject: ToolUnderTest) -> None:
    result = await subject.call({**subject.arguments, "made_up": 1})

    assert result.error
    assert "made_up is not a parameter" in str(result.content)


async def test_whatever_the_arguments_are_there_is_a_result(subject: ToolUnderTest) -> None:
    for name in subject.tool.parameters["properties"]:
        for value in JUNK:
            result = await subject.call({**subject.arguments, name: value})

            assert isinstance(result, ToolResult)
            assert result.content, (name, value)


async def test_a_call_may_be_cancelled_at_any_moment(subject: ToolUnderTest) -> None:
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.005, 0.02):
        task = asyncio.create_task(subject.call(subject.arguments))
        await asyncio.sleep(delay)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)

        assert isinstance(ended, asyncio.CancelledError | ToolResult)
