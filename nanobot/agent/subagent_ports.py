"""What subagents may do, and what their manager asks of others: where their turns run, how their ends are told."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nanobot.agent.letters import Letter
from nanobot.agent.roles import Role
from nanobot.agent.tasks import Task
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.turn import EventSink, TurnResult
from nanobot.messages.types import Provenance


@dataclass(frozen=True, slots=True)
class SubagentPolicy:
    """How much subagents may do."""

    most_at_once: int = 4
    timeout_s: float = 1800.0
    depth: int = 1
    """Whether they may have subagents of their own: 2."""
    pause_s: float = 1.0
    """Before the second try of a task whose model failed."""
    most_open: int = 64
    """Tasks that run and wait together."""
    keep_days: int = 30


class Subagents(Protocol):
    """Where subagents with a role come from."""

    async def see_through(self, task: str, label: str | None = None, *, role: Role, ctx: ToolContext) -> Task:
        """Have it done while the caller waits; the task as it ended. Raises NanobotError where it cannot begin.

        Cancelled, it stops the subagent; where nanobot ends, that goes on at the next start.
        """
        ...


class Trial(Protocol):
    """A try at a task, which runs."""

    @property
    def done(self) -> "asyncio.Future[TurnResult]":
        """How it ended."""
        ...

    def end(self, *, later: bool) -> None:
        """End it soon: for good, what was said is kept; or so that it goes on at the next start."""
        ...


class Turns(Protocol):
    """Where subagents' turns run."""

    async def begin(self, task: Task, words: str, watch: EventSink) -> Trial:
        """Begin a try with these words; or go on with it where a crash cut it off."""
        ...

    async def seen(self, task: Task) -> Provenance:
        """The least trusted words that the subagent has seen. Never raises."""
        ...

    async def forget(self, session_keys: Sequence[str]) -> None:
        """Let go of these transcripts. Never raises."""
        ...


class Reports(Protocol):
    """How the session that asked hears of an end."""

    async def deliver(self, task: Task) -> bool:
        """Have it told; False where nanobot ends before. Raises StorageError where it could not be taken in."""
        ...

    async def was_told(self, task: Task) -> bool:
        """Whether an earlier life had it told. Never raises."""
        ...

    async def was_given(self, task: Task) -> bool:
        """Whether the turn that waited has the result in its rows. Never raises."""
        ...

    async def quiet(self, session_key: str) -> None:
        """Wait until no turn of this session runs, and none that waits now waits any more."""
        ...

    async def turn_over(self, session_key: str) -> None:
        """Wait until no turn of this session runs."""
        ...

    async def note(self, task: Task) -> None:
        """Let the agent know, at its next turn, of a task that the person stopped. Never raises."""
        ...


class Team(Protocol):
    """The subagents that work for one goal, among themselves."""

    async def goal_of(self, session_key: str) -> str:
        """The goal that this session works at; empty for none. Never raises."""
        ...

    def joins(self, task: Task) -> None:
        """This one works, or waits to."""
        ...

    async def unread(self, task: Task) -> Sequence[Letter]:
        """What one that is over was told by others and has not read. Never raises."""
        ...

    async def sweep(self, *, before: float) -> None:
        """Let go of what was said before. Never raises."""
        ...
