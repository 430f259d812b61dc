"""Search for tools that are too many for every request: the model finds those it needs, and calls them by name.

Requests contain two small tools instead, whose bytes stay the same, so that providers keep caching what precedes them.
What a call accesses and how it is validated is determined by the called tool.
"""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from nanobot.agent.tools.access import Access, AccessKind
from nanobot.agent.tools.base import Effect, Tool, ToolContext, ToolResult, delegate_call, string, takes
from nanobot.agent.tools.validation import repair_arguments
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance
from nanobot.utils.text import clip_line, nearest

HEAVY_TOKENS = 12_000
"""If the tools of all servers together have more tokens than this, the search replaces them."""
_MAX_RESULTS = 8
_WORD = re.compile(r"[a-z0-9]+")


def is_heavy(tools: Iterable[Tool]) -> bool:
    """Return whether the definitions of these tools are too large for each request."""
    return estimate_tokens(json.dumps([tool.to_schema() for tool in tools])) > HEAVY_TOKENS


_SOURCE = "the MCP servers"


class FindTool(Tool):
    name = "mcp_find"
    source = _SOURCE
    effect = Effect.READ  # its text is trusted like the tool definitions in a request, which it replaces
    parameters = takes("query", query=string("What the tool is to do, in a few words, or part of its name"))

    def __init__(self, tools: Sequence[Tool], servers: dict[str, int]) -> None:
        self._tools = tools
        known = ", ".join(f"{name} ({count})" for name, count in servers.items())
        self.description = clip_line(
            f"Find more tools, to be called by mcp_call. Servers and their tools: {known}.", 1000
        )

    async def execute(self, query: str) -> str:
        """Return the best matching tools with their schemas."""
        words = set(_WORD.findall(query.lower()))
        ranked = sorted(self._tools, key=lambda tool: (-_score(tool, words), tool.name))
        matches = [tool for tool in ranked if _score(tool, words)][:_MAX_RESULTS]
        if not matches:
            names = ", ".join(tool.name for tool in self._tools)
            return f"No tool matches these words. All tools: {clip_line(names, 8000)}"
        return json.dumps([tool.to_schema()["function"] for tool in matches], ensure_ascii=False)


class CallTool(Tool):
    name = "mcp_call"
    source = _SOURCE
    description = "Call a tool that mcp_find returned."
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
        """Call the tool, if the arguments fit its own schema."""
        tool = self._tools.get(name)
        if tool is None:
            near = nearest(name, self._tools)
            hint = f" Did you mean {' or '.join(near)}?" if near else " mcp_find lists the tools."
            return ToolResult.failed(f"No server has a tool named {name[:80]!r}.{hint}")
        repaired = repair_arguments(arguments or {}, tool.parameters)
        if problems := tool.validate_params(repaired):
            schema = json.dumps(tool.parameters, ensure_ascii=False)
            return ToolResult.failed(f"{name} was not run. {' '.join(problems)} Its arguments are: {schema}")
        return await delegate_call(tool, repaired, ctx)

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> Sequence[Access]:
        """Declare what the called tool declares."""
        tool = self._tools.get(arguments["name"])
        if tool is None:
            return ()
        inner = arguments.get("arguments")
        if not isinstance(inner, dict | None):
            return (Access(AccessKind.TOOL, tool.name),)
        return await tool.required_access(inner or {}, ctx)


def _score(tool: Tool, words: set[str]) -> int:
    """Count the words in its name, which count twice, and in its description."""
    in_name = words.intersection(_WORD.findall(tool.name.lower()))
    return 2 * len(in_name) + len(words.intersection(_WORD.findall(tool.description.lower())) - in_name)
