"""A course: a task on its way in this process, from its place in the line to its report."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from nanobot.agent.subagent_ports import Trial
from nanobot.agent.tasks import Task


class Wants(Enum):
    """How a course is to end early."""

    STOP = "stop"
    LATER = "later"


@dataclass(slots=True, eq=False)
class Course:
    """A task on its way, in this process."""

    task: Task
    taken_up: bool = False
    """Whether an earlier life began it."""
    wants: Wants | None = None
    wanted: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The end is known, and on the disk."""
    told: asyncio.Event = field(default_factory=asyncio.Event)
    """All is over: it was reported, or nanobot ends."""
    trial: Trial | None = None
    """What runs of it."""
    late: bool = False
    """Whether its time was up."""
    lent: bool = False
    """Whether its place at work is somebody else's while it waits for subagents of its own."""
    away: int = 0
    """For how many of them it waits."""
    waiters: int = 0
    """Turns that wait for its result."""
    served: asyncio.Event = field(default_factory=asyncio.Event)
    """None of them waits any more."""
    given: bool = False
    """Whether one of them has it."""
    watchers: list[Callable[[str], None]] = field(default_factory=list)
    """Told what it does, for who watches those turns."""
    doing: str = ""
    """The tool that it used last."""
    said_aside: bool = False
    """Whether the person hears of the end by the answer to their own word."""
    forgotten: bool = False
    """Whether nothing is to be said of it any more, to the model neither."""

    def end(self, wants: Wants) -> None:
        """End it early. What a person stopped is not taken up again."""
        if self.wants is not Wants.STOP:
            self.wants = wants
        self.wanted.set()
        if self.trial is not None:
            self.trial.end(later=self.wants is Wants.LATER)

    async def unless_ended(self, waiting: Coroutine[Any, Any, Any]) -> bool:
        """Wait for it; False where this is to end before, and then it did not happen."""
        if self.wants is not None:
            waiting.close()
            return False
        wait, wanted = asyncio.ensure_future(waiting), asyncio.ensure_future(self.wanted.wait())
        try:
            await asyncio.wait((wait, wanted), return_when=asyncio.FIRST_COMPLETED)
            return wait.done()
        finally:
            for one in (wait, wanted):
                one.cancel()
