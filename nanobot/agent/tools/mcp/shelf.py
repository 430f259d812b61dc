"""Tools that weigh too much to be told of in every request: the model looks for those it needs, and calls them by name.

A request carries two small tools instead, whose bytes stay the same, so that providers go on caching what stands before
them. What a call reaches for, and how it is checked, is the found tool's own affair.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, passed_on
from nanobot.agent.tools.reach import Reach, ReachKind
from nanobot.agent.tools.schema import string, takes
from nanobot.agent.tools.validation import mended
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line, nearest

HEAVY_TOKENS = 12_000
"""From this weight on the tools of all servers together are put on the shelf."""
_MOST_FOUND = 8
_WORD = re.compile(r"[a-z0-9]+")


def is_heavy(tools: Iterable[Tool]) -> bool:
    """Whether telling of all these in each request is too much."""
    return estimate_tokens(json.dumps([tool.to_schema() for tool in tools])) > HEAVY_TOKENS


def shelved(tools: Sequence[Tool], servers: dict[str, int]) -> list[Tool]:
    """The two tools that stand for all of these. `servers`: how many tools each server has."""
    return [FindTool(tools, servers), CallTool(tools)]


_SOURCE = "the MCP servers"


class FindTool(Tool):
    """Which tools there are for a purpose, and how they are called."""

    name = "mcp_find"
    source = _SOURCE
    effect = Effect.READ  # its words are trusted as those in the definitions of a request are, where they would stand
    parameters = takes("query", query=string("What the tool is to do, in a few words, or part of its name"))

    def __init__(self, tools: Sequence[Tool], servers: dict[str, int]) -> None:
        self._tools = tools
        known = ", ".join(f"{name} ({count})" for name, count in servers.items())
        self.description = clip_line(
            f"Find more tools, to be called by mcp_call. Servers and their tools: {known}.", 1000
        )

    async def execute(self, query: str) -> str:
        """The tools that fit best, each with its schema."""
        wanted = set(_WORD.findall(query.lower()))
        ranked = sorted(self._tools, key=lambda tool: (-_fits(tool, wanted), tool.name))
        found = [tool for tool in ranked if _fits(tool, wanted)][:_MOST_FOUND]
        if not found:
            names = ", ".join(tool.name for tool in self._tools)
            return f"No tool fits these words. All there are: {clip_line(names, 8000)}"
        return json.dumps([tool.to_schema()["function"] for tool in found], ensure_ascii=False)


class CallTool(Tool):
    """Any of them, by its name."""

    name = "mcp_call"
    source = _SOURCE
    description = "Call a tool that mcp_find told of."
    provenance = Provenance.MCP
    parameters = takes(
        "name",
        name=string("The tool's name"),
        arguments={"type": "object", "description": "Its arguments, by its schema", "properties": {}},
    )

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool for tool in tools}

    async def execute(
        self, name: str, arguments: dict[str, Any] | None = None, *, ctx: ToolContext | None = None
    ) -> ToolResult:
        """Call it, once its own schema is met."""
        tool = self._tools.get(name)
        if tool is None:
            near = nearest(name, self._tools)
            hint = f" Did you mean {' or '.join(near)}?" if near else " mcp_find tells which there are."
            return ToolResult.failed(f"No server has a tool named {name[:80]!r}.{hint}")
        given = mended(arguments or {}, tool.parameters)
        if problems := tool.validate_params(given):
            schema = json.dumps(tool.parameters, ensure_ascii=False)
            return ToolResult.failed(f"{name} was not run. {' '.join(problems)} Its arguments are: {schema}")
        return await passed_on(tool, given, ctx)

    async def reaches(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Reach]:
        """What the called tool reaches for."""
        tool = self._tools.get(arguments["name"])
        if tool is None:
            return ()
        given = arguments.get("arguments")
        if not isinstance(given, dict | None):
            return (Reach(ReachKind.TOOL, tool.name),)
        return await tool.reaches(given or {}, ctx)


def _fits(tool: Tool, wanted: set[str]) -> int:
    """How many of the words are in its name, which count twice, or in its description."""
    in_name = wanted.intersection(_WORD.findall(tool.name.lower()))
    return 2 * len(in_name) + len(wanted.intersection(_WORD.findall(tool.description.lower())) - in_name)
