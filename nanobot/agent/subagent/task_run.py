"""One task as it runs in this process."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nanobot.agent.subagent.tasks import Task
from nanobot.agent.subagent.turns import TaskAttempt


class TaskRequest(Enum):
    """Why a run ends early: stopped, or continued at the next start."""

    STOP = "stop"
    LATER = "later"


@dataclass(slots=True, eq=False)
class TaskRun:
    """A task that runs in this process."""

    task: Task
    resumed: bool = False
    """Whether a previous process started it."""
    request: TaskRequest | None = None
    end_requested: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the end is known and saved."""
    reported: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the report was delivered or nanobot shuts down."""
    attempt: TaskAttempt | None = None
    """The running attempt."""
    timed_out: bool = False
    """Whether its time ran out."""
    slot_lent: bool = False
    """Whether it gave up its slot while it waits for its own subagents."""
    awaited_subagents: int = 0
    """Number of its own subagents it waits for."""
    waiters: int = 0
    """Number of turns that wait for the result."""
    waiters_served: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while no turn waits."""
    result_taken: bool = False
    """Whether a waiting turn got the result."""
    watchers: list[Callable[[str], None]] = field(default_factory=list)
    """Progress callbacks of the waiting turns."""
    last_action: str = ""
    """The last tool call."""
    answered_directly: bool = False
    """Whether the person learns of the end from the reply to their own command."""
    forgotten: bool = False
    """Whether the end is not reported at all, not even to the model."""

    def end(self, request: TaskRequest) -> None:
        """End the task early. A stop by a person is final."""
        if self.request is not TaskRequest.STOP:
            self.request = request
        self.end_requested.set()
        if self.attempt is not None:
            self.attempt.end(later=self.request is TaskRequest.LATER)

    async def wait_unless_ended(self, waiting: Coroutine[Any, Any, Any]) -> bool:
        """Wait for the coroutine. Return False if the task is to end first; the coroutine is then cancelled."""
        if self.request is not None:
            waiting.close()
            return False
        waiter, end_requested = asyncio.ensure_future(waiting), asyncio.ensure_future(self.end_requested.wait())
        try:
            await asyncio.wait((waiter, end_requested), return_when=asyncio.FIRST_COMPLETED)
            return waiter.done()
        finally:
            for future in (waiter, end_requested):
                future.cancel()
