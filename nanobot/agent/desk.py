"""What slash commands work with: a desk of ports, a row of their table, a command that was given."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Protocol

from nanobot.agent.run.spec import Model
from nanobot.agent.scope import OWNERS, Scope
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.vitals import Vitals
from nanobot.bus.events import InboundMessage
from nanobot.session.manager import Session, SessionManager
from nanobot.usage.budget import Limits
from nanobot.usage.sums import Summary


class Models(Protocol):
    """Where models come from."""

    async def get(self, wanted: str | None) -> Model:
        """The model of that name or preset, the configured one for None.

        Raises NanobotError where it cannot be had; the text says which key or name to change.
        """
        ...

    def names(self) -> list[str]:
        """What a person may choose from; any model's own name is good too."""
        ...


class SystemPrompt(Protocol):
    """Where the system prompt comes from."""

    def build_system_prompt(self, summary: str = "", *, scope: Scope = OWNERS, began: date | None = None) -> str:
        """The head of every request; the same bytes until a source file changes. It tells what this scope may know, and
        of many skills those that were of use when the session began; `summary` is what a session remembers of its own
        past.
        """
        ...


class Approvals(Protocol):
    """Where it is said what an owner is not asked about any more, and what waits for their answer."""

    def waiting(self, session_key: str) -> list[str]:
        """The questions that are open in this session, in a line each."""
        ...

    async def answer(self, argument: str) -> str:
        """Do what an owner asks; what they are told. Never raises."""
        ...


class Spending(Protocol):
    """Where one learns what was used and what may be."""

    async def limits_now(self) -> Limits:
        """What may be spent, with what was added for today or this month."""
        ...

    async def raise_limits(self, usd: float | None) -> list[str]:
        """Add so much to each limit that is near, half of it for None; what holds then. Raises OSError."""
        ...

    async def summary(self, session_key: str = "") -> Summary:
        """What was used today, this month and by this session. Raises OSError."""
        ...


class Pairing(Protocol):
    """Where it is said who may speak."""

    async def answer(self, argument: str) -> str:
        """Do what an owner asks; what they are told. Never raises."""
        ...

    async def refuse(self, channel: str, sender_id: str) -> str:
        """What somebody is told who asked and is no owner, and how they become one. Never raises."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A command that was given: in which session, with which words behind it, by which message."""

    session: Session
    argument: str
    message: InboundMessage
    scope: Scope = OWNERS
    """Whose memory may be told in the answer."""
    attended: bool = False
    """Whether somebody sees it answered who may answer questions, as at a terminal."""


@dataclass(frozen=True, slots=True)
class CommandEntry:
    """A row of the table."""

    answer: Callable[[Asked], Awaitable[str]]
    """Do it; what the person is told. Raises NanobotError only where storage does."""
    text: str
    words: str = ""
    """What may follow it."""
    for_owners: bool = False


class Memory(Protocol):
    """What commands want of what is remembered."""

    async def archived(self, session_key: str, file: Path) -> None:
        """Told of each session that was put into the archive, and into which file. Never raises."""
        ...

    def state(self, session_key: str, scope: Scope) -> list[str]:
        """How it is, in a line each; quickly."""
        ...

    async def clear(self, asked: Asked) -> tuple[list[str], Callable[[], Awaitable[object]] | None]:
        """Take out of every prompt what is remembered in the scope of this command; what that was, and how it is taken
        back, None where nothing was. Raises NanobotError, and then nothing was.
        """
        ...


class Goals(Protocol):
    """What commands want of what a session works at over many turns."""

    async def stop_of(self, said: InboundMessage) -> str:
        """Stop the goal of the session of this word, as far as its sender may; what it was called, empty for none."""
        ...

    async def elsewhere(self, session_key: str) -> str:
        """That another process works at the goal of this session, in a sentence; else empty. Never raises."""
        ...

    async def forget_of(self, session_key: str) -> str:
        """Keep nothing of this session's goal; what it was called. Raises NanobotError."""
        ...

    def lines(self, session_key: str) -> list[str]:
        """How far it is, in a line each; quickly."""
        ...


@dataclass(frozen=True, slots=True)
class Desk:
    """What commands work with."""

    sessions: SessionManager
    models: Models
    prompt: SystemPrompt
    tools: ToolRegistry
    vitals: Vitals
    version: str
    spending: Spending
    pairing: Pairing | None = None
    """None where there are no channels to pair on; there is no such command then."""
    servers: Callable[[], str] | None = None
    """How each MCP server is; None without servers: then the command is not offered, and says so."""
    approvals: Approvals | None = None
    """None where no turn asks anything."""
    restart: Callable[[], None] | None = None
    """Ends the gateway in good order, soon, and begins it anew; None where there is none."""
    scope_of: Callable[[InboundMessage], Scope] = field(default=lambda message: OWNERS)
    stop_children: Callable[[InboundMessage], Awaitable[Sequence[str]]] | None = None
    """Stops the subagents of a word's session; what each was called. None where there are none."""
    forget_children: Callable[[str], Awaitable[tuple[Sequence[str], Sequence[str]]]] | None = None
    """Stops all subagents of a session; what each was called, and the keys of reports that may be on their way."""
    goals: Goals | None = None
    """None where no session has goals."""
    memory: Memory | None = None
    """None where nothing is remembered beyond a session."""
    troubles: Callable[[], Sequence[str]] = field(default=lambda: ())
    """What is wrong with plugins and hooks, a line each."""
    more: Mapping[str, CommandEntry] = field(default_factory=dict)
    """What other rooms answer to, by name."""
