"""What slash commands depend on: the services behind them, one entry of the command table, one call of a command."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Protocol

from nanobot.agent.engine.spec import Model
from nanobot.agent.scope import OWNERS, Scope, owners_scope
from nanobot.agent.status import AgentStatus
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.bus.events import Button, InboundMessage
from nanobot.session.manager import Session, SessionManager
from nanobot.usage.budget import SpendingLimits
from nanobot.usage.sums import UsageSummary


class TurnModels(Protocol):
    """The models as a turn needs them."""

    async def get(self, name: str | None) -> Model:
        """Return the model of that name or preset; None means the configured one.

        Raises NanobotError if it is not available; the text names the key or name to change.
        """
        ...

    async def of_session(self, session: Session) -> Model:
        """Return the model of a session. Raises as `get`."""
        ...


class Models(TurnModels, Protocol):
    """The models as the `/model` command needs them."""

    async def choose(self, session: Session, name: str | None) -> Model:
        """Set the session's model; None means the configured one. The caller stores the session. Raises as `get`."""
        ...

    async def choices(self, session: Session) -> list[str]:
        """Return the names to choose from."""
        ...


class SystemPrompt(Protocol):
    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """Build the system prompt. It is byte-stable until a source file changes.

        `scope` selects the memory it includes; of many skills it lists those in use when the session `began`; `summary`
        is what the session remembers of its consolidated messages.
        """
        ...


class Approvals(Protocol):
    """Open approval questions and permanent approvals."""

    def waiting(self, session_key: str) -> list[str]:
        """Return the open questions of this session, one line each."""
        ...

    async def answer(self, argument: str) -> str:
        """Run the `/approvals` command with this argument; return its reply. Never raises."""
        ...


class Spending(Protocol):
    """Usage and spending limits."""

    async def limits_now(self) -> SpendingLimits:
        """Return the limits, including what was raised for today or this month."""
        ...

    async def raise_limits(self, usd: float | None) -> list[str]:
        """Raise each limit in dollars that is nearly reached by this amount, by half of it for None. Return the new
        limits, one line each. Raises StorageError.
        """
        ...

    async def summary(self, session_key: str = "") -> UsageSummary:
        """Return the usage of today, this month and this session. Raises StorageError."""
        ...


class Pairing(Protocol):
    """Pairing requests and paired senders."""

    async def answer(self, argument: str) -> str:
        """Run the `/pairing` command with this argument; return its reply. Never raises."""
        ...

    async def refuse(self, channel: str, sender_id: str, command: str) -> str:
        """Return the reply to a sender who is no owner but used this command, with how to become one. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class CommandCall:
    """One use of a command."""

    session: Session
    argument: str
    message: InboundMessage
    scope: Scope = OWNERS
    """Whose memory the reply may show."""
    attended: bool = False
    """Whether the person who sees the reply can answer questions, as in a terminal."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """One entry of the command table."""

    answer: Callable[[CommandCall], Awaitable[str]]
    """Runs the command and returns the reply. Raises NanobotError only for storage failures."""
    text: str
    arguments: str = ""
    """Its arguments, for help and menus."""
    for_owners: bool = False
    buttons: tuple[Button, ...] = ()
    """Shown below its reply in a chat app."""


class Memory(Protocol):
    """The part of the memory that commands use."""

    async def on_session_archived(self, session_key: str, file: Path) -> None:
        """Handle a session that was archived to this file. Never raises."""
        ...

    def state(self, session_key: str, scope: Scope) -> list[str]:
        """Return the status of the memory, one line each. Does not block."""
        ...

    async def compact_now(self, session: Session) -> str:
        """Move all but the last messages of a session, which the caller holds, into memory. Return why not all that
        could move did; empty if they did. Cancelling is safe; never raises for a model or the disk.
        """
        ...

    async def clear(self, call: CommandCall) -> tuple[list[str], Callable[[], Awaitable[object]] | None]:
        """Remove the memory of this scope from every prompt. Return what was removed, and how to restore it (None if
        there was nothing). Raises NanobotError; then nothing was removed.
        """
        ...


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
    models: Models
    prompt: SystemPrompt
    tools: ToolRegistry
    status: AgentStatus
    version: str
    spending: Spending
    pairing: Pairing | None = None
    """None if no channel supports pairing; then there is no `/pairing`."""
    mcp_status: Callable[[], str] | None = None
    """Returns the status of each MCP server. Empty without servers; then `/mcp` is not offered."""
    approvals: Approvals | None = None
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
    memory: Memory | None = None
    """None if nothing is remembered beyond a session."""
    problems: Callable[[], Sequence[str]] = field(default=lambda: ())
    """Returns the problems of plugins and hooks, one line each."""
    extra_commands: Mapping[str, CommandEntry] = field(default_factory=dict)
    """Commands of other packages, by name."""
