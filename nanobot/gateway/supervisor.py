"""Runs the gateway's background tasks. One that fails is restarted with backoff; the others keep running."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from nanobot.utils.clock import Clock
from nanobot.utils.storage_error import error_text

log = logging.getLogger(__name__)

FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 60.0
STABLE_S = 300.0
"""After running this long, a failure starts the backoff from the beginning."""


@dataclass(slots=True)
class SupervisedTask:
    """A background task of the gateway and its state."""

    name: str
    run: Callable[[], Awaitable[object]]
    """Runs until cancelled. If it returns, it is done; if it raises, it is restarted."""
    silent_s: Callable[[], float | None] = lambda: None
    """Seconds since its last activity; None if it may be idle for any time."""
    problem: Callable[[], str | None] = lambda: None
    """What prevents it from working, in one line."""
    alive: bool = False
    ended: bool = False
    """Whether `run` returned."""
    restarts: int = 0
    last_error: str = ""

    @property
    def trouble(self) -> str:
        """What a person should look at, in one line; empty if nothing is wrong."""
        failed = "" if self.alive or self.ended else f"failed and restarts soon: {self.last_error}"
        return self.problem() or failed

    def to_json(self) -> dict[str, Any]:
        """The state for health and status."""
        silent_s = self.silent_s()
        return {
            "alive": self.alive,
            "restarts": self.restarts,
            "lastTickS": None if silent_s is None else round(silent_s, 1),
            "lastError": self.problem() or self.last_error,
        }


@dataclass(slots=True)
class TaskSupervisor:
    """Runs tasks and restarts those that fail."""

    clock: Clock
    tasks: dict[str, SupervisedTask] = field(default_factory=dict)
    _group: asyncio.TaskGroup | None = None
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)

    def add(self, task: SupervisedTask) -> None:
        """Add a task; it starts at once if `run` is running."""
        self.tasks[task.name] = task
        if self._group is not None:
            self._running[task.name] = self._group.create_task(self._supervise(task), name=f"supervised {task.name}")

    async def remove(self, name: str) -> None:
        """Stop and remove a task, if there is one with this name."""
        self.tasks.pop(name, None)
        if (running := self._running.pop(name, None)) is not None:
            running.cancel()
            await asyncio.wait([running])

    async def run(self) -> None:
        """Keep all tasks running until cancelled. Errors of a task do not propagate."""
        async with asyncio.TaskGroup() as self._group:
            for task in [*self.tasks.values()]:
                self.add(task)

    async def _supervise(self, task: SupervisedTask) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            started_at, task.alive = self.clock.monotonic(), True
            try:
                await task.run()
                task.ended = True
                return
            except Exception as error:  # one task's failure must not stop the others
                task.last_error = f"{type(error).__name__}: {error_text(error)}"
                log.exception("%s failed; restarting it in %.0f s", task.name, wait_s)
            finally:
                task.alive = False
            if self.clock.monotonic() - started_at > STABLE_S:
                wait_s = FIRST_WAIT_S
            await asyncio.sleep(wait_s)
            task.restarts += 1
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)
