"""The servers as a source of tools.

A known server offers its tools at once, from its stored listing, and is started by the first call. The first turn
waits a moment for all unknown servers together; what is not there by then comes with a later turn.

Tools that are too many for every request are found and called by two small ones, whose bytes stay the same, so that
providers keep caching what precedes them.
"""

import asyncio
import json
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nanobot.agent.tools.base import (
    Access,
    AccessKind,
    Effect,
    Tool,
    ToolContext,
    ToolResult,
    delegate_call,
    string,
    takes,
)
from nanobot.agent.tools.mcp.listing import Listing
from nanobot.agent.tools.mcp.server import McpServer, McpTimeouts, Phase
from nanobot.agent.tools.mcp.tool import tools_of
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.validation import repair_arguments
from nanobot.config.schema import McpServerConfig
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import Provenance
from nanobot.net.egress import NetworkPolicy
from nanobot.utils.clock import Clock
from nanobot.utils.text import clip_line, count_noun, nearest

logger = logging.getLogger(__name__)


class McpServers:
    """All servers of the config."""

    def __init__(
        self,
        configs: Mapping[str, McpServerConfig],
        *,
        state_dir: Path,
        workspace: Path,
        clock: Clock,
        network: NetworkPolicy | None = None,
        timeouts: McpTimeouts | None = None,
    ) -> None:
        """`state_dir` holds the listings and the programs' working directories, `workspace` the received files.
        Starts nothing.
        """
        self._state_dir = state_dir
        self._workspace = workspace
        self._clock = clock
        self._network = network or NetworkPolicy()
        self._timeouts = timeouts or McpTimeouts()
        self.servers = [self._make(name, config) for name, config in configs.items()]
        self._former: list[McpServer] = []
        self._offered: dict[McpServer, Listing | None] = {}
        self._tools: dict[str, Tool] = {}
        self._awaited: set[McpServer] = set()
        self._refreshing = asyncio.Lock()

    def _make(self, name: str, config: McpServerConfig) -> McpServer:
        return McpServer(
            name,
            config,
            state_dir=self._state_dir,
            clock=self._clock,
            network=self._network,
            timeouts=self._timeouts,
        )

    async def refresh(self, registry: ToolRegistry) -> None:
        """Register what the servers offer now. Waits a moment for unknown servers; never raises."""
        async with self._refreshing:
            await self.load_listings()
            unknown = [server for server in self.servers if server.listing is None]
            starting = {server: connection.ready for server in unknown if (connection := server.start()) is not None}
            if waiting := [ready for server, ready in starting.items() if server not in self._awaited]:
                await asyncio.wait(waiting, timeout=self._timeouts.first_listing_s)
            self._awaited.update(unknown)
            await asyncio.gather(*(server.relist() for server in self.servers if server.has_changed))
            self._offer(registry)

    async def load_listings(self) -> None:
        """Load the stored listings. Never raises."""
        await asyncio.gather(*(server.load_listing() for server in self.servers))

    async def change(self, configs: Mapping[str, McpServerConfig], network: NetworkPolicy) -> None:
        """Use these servers from the next turn on. One with the same settings is kept, if it is a program or if the
        network policy is the same as before. Others end when they are idle.
        """
        removed = {server.name: server for server in self.servers}
        async with self._refreshing:
            same_network, self._network = network == self._network, network
            self.servers = []
            for name, config in configs.items():
                server = removed.get(name)
                if server is None or server.config != config or not (same_network or config.transport == "stdio"):
                    server = self._make(name, config)
                else:
                    del removed[name]
                self.servers.append(server)
            for server in removed.values():
                server.retire()
            self._former += removed.values()

    async def close(self) -> None:
        """Stop all servers. Never raises, and does not wait long."""
        await asyncio.gather(*(server.close() for server in [*self._former, *self.servers]))

    def find(self, name: str) -> McpServer | None:
        """Return the server of this name, or None."""
        return next((server for server in self.servers if server.name == name), None)

    def report(self) -> str:
        """Describe the state of each server, a line each."""
        lines = []
        for server in self.servers:
            state = server.state
            tools = "not met yet" if server.listing is None else count_noun(len(server.listing.tools), "tool")
            retry = f" Next try in {state.retry_in_s:.0f} s at the earliest." if state.retry_in_s else ""
            reason = f": {state.reason}.{retry}" if state.phase is Phase.FAILED else ""
            lines.append(f"{server.name}: {state.phase}, {tools}{reason}")
        return "\n".join(lines)

    def tools(self) -> list[Tool]:
        """Return all enabled tools that are known."""
        tools_by_name: dict[str, Tool] = {}
        for server in self.servers:
            tools_by_name |= {tool.name: tool for tool in tools_of(server, tools_by_name.keys(), self._workspace)}
        return list(tools_by_name.values())

    def in_requests(self, tools: list[Tool]) -> list[Tool]:
        """Return what requests contain for these tools: all of them, or two small tools that find and call them."""
        if not is_heavy(tools):
            return tools
        logger.info(
            "%s of MCP servers are too many for every request: the model finds them with mcp_find.",
            count_noun(len(tools), "tool"),
        )
        counts = {server.name: len(server.offered_names()) for server in self.servers if server.listing}
        return [FindTool(tools, counts), CallTool(tools)]

    def _offer(self, registry: ToolRegistry) -> None:
        listings = {server: server.listing for server in self.servers}
        if listings == self._offered:
            return
        self._offered = listings
        tools = {tool.name: tool for tool in self.in_requests(self.tools())}
        for name in self._tools.keys() - tools.keys():
            registry.unregister(name)
        for name, tool in tools.items():
            if registry.has(name) and name not in self._tools:
                logger.warning("The tool %s of an MCP server is left out: its name is taken.", name)
                continue
            registry.register(tool)
        self._tools = {name: tool for name, tool in tools.items() if registry.get(name) is tool}


# -- tools that are too many for every request --------------------------------------------------------------------

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
