"""The policy of subagents, and the protocols between their manager and the rest of the bot."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nanobot.agent.events import EventSink, TurnResult
from nanobot.agent.subagent.mailbox import TeamMessage
from nanobot.agent.subagent.roles import TaskRole
from nanobot.agent.subagent.tasks import Task
from nanobot.agent.tools.base import ToolContext
from nanobot.messages.types import Provenance


@dataclass(frozen=True, slots=True)
class SubagentPolicy:
    """Limits of subagents."""

    most_at_once: int = 4
    timeout_s: float = 1800.0
    depth: int = 1
    """2 if subagents may start subagents, else 1."""
    pause_s: float = 1.0
    """Delay before retrying a task whose model failed."""
    most_open: int = 64
    """Running and waiting tasks together."""
    keep_days: int = 30


class SpawnsSubagents(Protocol):
    """Runs subagents with a role."""

    async def see_through(self, task: str, label: str | None = None, *, role: TaskRole, ctx: ToolContext) -> Task:
        """Run a task while the caller waits, and return it ended. Raises NanobotError if it cannot start.

        Cancelling stops the subagent. On shutdown it continues at the next start.
        """
        ...


class TaskAttempt(Protocol):
    """A running attempt at a task."""

    @property
    def done(self) -> "asyncio.Future[TurnResult]":
        """The result of the attempt."""
        ...

    def end(self, *, later: bool) -> None:
        """End the attempt soon: for good, keeping its text, or so that it continues at the next start (`later`)."""
        ...


class TaskTurnRunner(Protocol):
    """Runs the turns of subagents."""

    async def begin(self, task: Task, words: str, watch: EventSink) -> TaskAttempt:
        """Start an attempt with this prompt, or resume one that a crash interrupted."""
        ...

    async def seen(self, task: Task) -> Provenance:
        """Return the least trusted provenance in the subagent's session. Never raises."""
        ...

    async def forget(self, session_keys: Sequence[str]) -> None:
        """Delete these transcripts. Never raises."""
        ...


class TaskReporter(Protocol):
    """Delivers results to the parent session."""

    async def deliver(self, task: Task) -> bool:
        """Deliver the report. Return False if nanobot shuts down first. Raises StorageError if it could not
        be stored.
        """
        ...

    async def was_told(self, task: Task) -> bool:
        """Whether a previous process delivered the report. Never raises."""
        ...

    async def was_given(self, task: Task) -> bool:
        """Whether the waiting turn has stored the result. Never raises."""
        ...

    async def quiet(self, session_key: str) -> None:
        """Wait until no turn of this session runs, including those queued now."""
        ...

    async def wait_idle(self, session_key: str) -> None:
        """Wait until no turn of this session runs."""
        ...

    async def note(self, task: Task) -> None:
        """Tell the agent at its next turn that the person stopped a task. Never raises."""
        ...


class TaskTeam(Protocol):
    """The subagents that work for one goal."""

    async def goal_of(self, session_key: str) -> str:
        """Return the id of the session's goal; empty if none. Never raises."""
        ...

    def joins(self, task: Task) -> None:
        """Add a task to its team."""
        ...

    async def unread(self, task: Task) -> Sequence[TeamMessage]:
        """Return the messages that an ended task has not read. Never raises."""
        ...

    async def sweep(self, *, before: float) -> None:
        """Delete messages older than `before`. Never raises."""
        ...
