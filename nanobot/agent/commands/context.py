"""The services that slash commands depend on."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nanobot.agent.approval.router import ApprovalCommands
from nanobot.agent.command import CommandEntry
from nanobot.agent.context import ContextBuilder
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.models import SessionModels
from nanobot.agent.scope import Scope, owners_scope
from nanobot.agent.status import AgentStatus
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import InboundMessage
from nanobot.pairing.commands import PairingCommands
from nanobot.providers.metering import Spending
from nanobot.session.manager import SessionManager


class Goals(Protocol):
    """The part of the goals that commands use."""

    async def stop_for(self, message: InboundMessage) -> str:
        """Stop the session's goal if the sender of this message may. Return its title, or an empty string."""
        ...

    async def other_process_note(self, session_key: str) -> str:
        """Return a sentence if another process works on this session's goal, else an empty string. Never raises."""
        ...

    async def forget_session(self, session_key: str) -> str:
        """Stop and delete this session's goal. Return its title, or an empty string. Raises NanobotError."""
        ...

    def lines(self, session_key: str) -> list[str]:
        """Return the status of the goal, one line each. Does not block."""
        ...


@dataclass(frozen=True, slots=True)
class CommandContext:
    """The services that commands use."""

    sessions: SessionManager
    models: SessionModels
    prompt: ContextBuilder
    tools: ToolRegistry
    status: AgentStatus
    version: str
    spending: Spending
    pairing: PairingCommands | None = None
    """None if no channel supports pairing; then there is no `/pairing`."""
    mcp_status: Callable[[], str] | None = None
    """Returns the status of each MCP server. Empty without servers; then `/mcp` is not offered."""
    approvals: ApprovalCommands | None = None
    """None if turns ask no questions."""
    restart: Callable[[], None] | None = None
    """Schedules a clean shutdown and restart of the gateway. None outside a gateway."""
    scope_of: Callable[[InboundMessage], Awaitable[Scope]] = owners_scope
    stop_subagents: Callable[[InboundMessage], Awaitable[Sequence[str]]] | None = None
    """Stops the subagents of the message's session and returns their labels. None without subagents."""
    forget_subagents: Callable[[str], Awaitable[tuple[Sequence[str], Sequence[str]]]] | None = None
    """Stops all subagents of a session. Returns their labels, and the keys of reports that may still arrive."""
    goals: Goals | None = None
    """None if sessions have no goals."""
    memory: MemoryService | None = None
    """None if nothing is remembered beyond a session."""
    problems: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Returns the problems of plugins and hooks, one line each."""
    extra_commands: Mapping[str, CommandEntry] = field(default_factory=dict)
    """Commands of other packages, by name."""
