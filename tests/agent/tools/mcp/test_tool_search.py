"""Servers with more tools than a request should carry."""

import json
from typing import Any

import pytest

from nanobot.agent.tools.base import Tool, ToolContext, ToolResult, integer, takes
from nanobot.agent.tools.mcp.source import HEAVY_TOKENS, CallTool, FindTool, is_heavy
from nanobot.agent.tools.registry import ToolRegistry
from tests.support.mcp import OpenBench, child


class Lamp(Tool):
    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.description = description
        self.parameters = takes("level", level=integer("How bright"))

    async def execute(self, level: int, *, ctx: ToolContext) -> str:
        return f"{self.name} at {level} for {ctx.turn_id}"


@pytest.fixture
def registry() -> ToolRegistry:
    lamps = [
        Lamp("mcp_home_dim_light", "Make a lamp darker."),
        Lamp("mcp_home_open_door", "Open the front door."),
        *(Lamp(f"mcp_office_thing_{number}", "Something else.") for number in range(50)),
    ]
    made = ToolRegistry()
    for tool in (FindTool(lamps, {"home": 2, "office": 50}), CallTool(lamps)):
        made.register(tool)
    return made


async def test_a_tool_is_found_by_what_it_does_and_called_by_its_name(registry: ToolRegistry, ctx: ToolContext):
    found = json.loads(await registry.execute("mcp_find", {"query": "make the lamp darker"}))

    called = await registry.call("mcp_call", {"name": found[0]["name"], "arguments": {"level": "3"}}, ctx)

    assert [one["name"] for one in found] == ["mcp_home_dim_light", "mcp_home_open_door"]
    assert found[0]["parameters"]["required"] == ["level"]
    assert called.content == "mcp_home_dim_light at 3 for turn-1"
    assert "home (2), office (50)" in json.dumps(registry.get_definitions())
    assert "mcp_office_thing_49" in await registry.execute("mcp_find", {"query": "xyz"})  # nothing fits: all there is


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "mcp_home_dim_lihgt"}, "Did you mean mcp_home_dim_light?"),
        ({"name": "mcp_home_dim_light", "arguments": {}}, "level"),
        ({"name": "mcp_home_dim_light", "arguments": {"level": "bright"}}, "Its arguments are:"),
    ],
)
async def test_a_wrong_call_says_what_would_be_right(
    registry: ToolRegistry, ctx: ToolContext, arguments: dict[str, Any], said: str
):
    result = await registry.call("mcp_call", arguments, ctx)

    assert result.error
    assert said in str(result.content)


async def test_a_call_reaches_for_what_the_called_tool_reaches_for(registry: ToolRegistry, ctx: ToolContext):
    reaches = await registry.required_access("mcp_call", {"name": "mcp_home_open_door", "arguments": {"level": 1}}, ctx)

    assert [reach.rule for reach in reaches] == ["tool:mcp_home_open_door"]
    assert await registry.required_access("mcp_call", {"name": "none"}, ctx) == ()


async def test_a_server_with_too_much_to_say_is_put_on_the_shelf(bench: OpenBench, ctx: ToolContext):
    wordy = await bench(child("wordy", "wordy"))

    result = await wordy.call("mcp_call", name="mcp_wordy_echo", arguments={"p1": "x"})

    assert wordy.registry.names == ["mcp_call", "mcp_find"]
    assert wordy.registry.tokens < HEAVY_TOKENS / 20
    assert isinstance(result, ToolResult)
    assert result.content == '{"p1": "x"}'


def test_a_few_tools_are_told_of_as_they_are():
    assert not is_heavy([Lamp(f"mcp_home_lamp_{number}", "A lamp.") for number in range(60)])
