"""The servers as a source of tools: what each turn is offered of them.

A server that was met before offers its tools at once, from what is remembered, and is started by the first call. One
nobody has met is asked before the first turn, together with the others, for a moment; what is not there by then comes
with a later turn.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path

from nanobot.agent.tools.base import Tool
from nanobot.agent.tools.mcp.listing import Listing
from nanobot.agent.tools.mcp.remote import OpenClient, open_client
from nanobot.agent.tools.mcp.server import McpPatience, McpServer, Phase
from nanobot.agent.tools.mcp.settings import ServerSettings
from nanobot.agent.tools.mcp.shelf import is_heavy, shelved
from nanobot.agent.tools.mcp.tool import tools_of
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.utils.clock import Clock
from nanobot.utils.text import counted

logger = logging.getLogger(__name__)


_WORDS = {
    Phase.IDLE: "idle, started by its first call",
    Phase.STARTING: "starting",
    Phase.READY: "connected",
    Phase.FAILED: "failed",
}


class McpServers:
    """All servers of the config."""

    def __init__(
        self,
        servers: Sequence[ServerSettings],
        *,
        memory: Path,
        workspace: Path,
        clock: Clock,
        patience: McpPatience | None = None,
        client: OpenClient = open_client,
    ) -> None:
        """`memory` is the folder in which their tools are remembered; `client` makes what requests go through.

        Nothing is started.
        """
        self._patience = patience or McpPatience()
        self._workspace = workspace
        self.servers = [
            McpServer(one, memory=memory, workspace=workspace, clock=clock, patience=self._patience, client=client)
            for one in servers
        ]
        self._offered: dict[McpServer, Listing | None] = {}
        self._tools: dict[str, Tool] = {}
        self._met: set[McpServer] = set()
        self._recalled = False
        self._refreshing = asyncio.Lock()

    async def refresh(self, registry: ToolRegistry) -> None:
        """See that the registry has what the servers offer now. Waits a moment for those it meets; never raises."""
        async with self._refreshing:
            await self.recall()
            strangers = {server: server.start() for server in self.servers if server.listing is None}
            met = {
                server: task
                for server, task in strangers.items()
                if task is not None and server not in self._met and not server.is_slow
            }
            self._met.update(strangers)
            if met:
                await asyncio.wait(met.values(), timeout=self._patience.first_listing_s)
                await asyncio.gather(*(server.note_slowness() for server, task in met.items() if not task.done()))
            await asyncio.gather(*(server.freshen() for server in self.servers))
            self._offer(registry)

    async def recall(self) -> None:
        """Take up what is remembered of the servers. Never raises."""
        if not self._recalled:
            await asyncio.gather(*(server.recall() for server in self.servers))
            self._recalled = True

    async def close(self) -> None:
        """End them all. Never raises, and does not wait long."""
        await asyncio.gather(*(server.close() for server in self.servers))

    def named(self, name: str) -> McpServer | None:
        """The server of this name."""
        return next((server for server in self.servers if server.settings.name == name), None)

    def report(self) -> str:
        """How each server is, a line each."""
        return "\n".join(_line(server) for server in self.servers)

    def tools(self) -> list[Tool]:
        """What they offer, as far as it is known, less what their owner does not want."""
        found: dict[str, Tool] = {}
        for server in self.servers:
            found |= {tool.name: tool for tool in tools_of(server, found.keys(), self._workspace)}
        return list(found.values())

    def _within_bearable_weight(self, tools: list[Tool]) -> list[Tool]:
        if not is_heavy(tools):
            return tools
        logger.info(
            "%s of MCP servers are too many for every request: mcp_find finds them.", counted(len(tools), "tool")
        )
        return shelved(
            tools, {server.settings.name: len(server.offered()) for server in self.servers if server.listing}
        )

    def _offer(self, registry: ToolRegistry) -> None:
        now = {server: server.listing for server in self.servers}
        if now == self._offered:
            return
        self._offered = now
        tools = {tool.name: tool for tool in self._within_bearable_weight(self.tools())}
        for name in self._tools.keys() - tools.keys():
            registry.unregister(name)
        for name, tool in tools.items():
            if registry.has(name) and name not in self._tools:
                logger.warning("The tool %s of an MCP server is left out: there is one of that name.", name)
                continue
            registry.register(tool)
        self._tools = {name: tool for name, tool in tools.items() if registry.get(name) is tool}


def _line(server: McpServer) -> str:
    state = server.state
    tools = "not met yet" if server.listing is None else counted(len(server.listing.tools), "tool")
    retry = f" Next try in {state.retry_in_s:.0f} s at the earliest." if state.retry_in_s else ""
    reason = f": {state.reason}.{retry}" if state.phase is Phase.FAILED else ""
    return f"{server.settings.name}: {_WORDS[state.phase]}, {tools}{reason}"
