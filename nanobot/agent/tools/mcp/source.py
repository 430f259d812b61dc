"""The servers as a source of tools.

A known server offers its tools at once, from its stored listing, and is started by the first call. The first turn
waits a moment for all unknown servers together; what is not there by then comes with a later turn.
"""

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.mcp.listing import Listing
from nanobot.agent.tools.mcp.server import McpServer, McpTimeouts, Phase
from nanobot.agent.tools.mcp.tool import tools_of
from nanobot.agent.tools.mcp.tool_search import CallTool, FindTool, is_heavy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.config.schema import McpServerConfig
from nanobot.net.egress import NetworkPolicy
from nanobot.utils.clock import Clock
from nanobot.utils.text import count_noun

logger = logging.getLogger(__name__)

_PHASE_TEXTS = {
    Phase.IDLE: "idle, started by its first call",
    Phase.STARTING: "starting",
    Phase.READY: "connected",
    Phase.FAILED: "failed",
}


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
        return "\n".join(_format_server(server) for server in self.servers)

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


def _format_server(server: McpServer) -> str:
    state = server.state
    tools = "not met yet" if server.listing is None else count_noun(len(server.listing.tools), "tool")
    retry = f" Next try in {state.retry_in_s:.0f} s at the earliest." if state.retry_in_s else ""
    reason = f": {state.reason}.{retry}" if state.phase is Phase.FAILED else ""
    return f"{server.name}: {_PHASE_TEXTS[state.phase]}, {tools}{reason}"
