"""Runs Dream over the memories: on its schedule while a gateway runs, and on command.

One timer; no model call without news. Dream itself is imported on first use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.agent.memory.schedule import Due, DueTimes
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import OWNERS, Scope
from nanobot.config.schema import AgentDefaults
from nanobot.errors import StorageError
from nanobot.session.file_format import key_of
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import Clock
from nanobot.utils.text import count_noun

if TYPE_CHECKING:
    from nanobot.agent.memory.consolidation import ModelSource
    from nanobot.agent.memory.dream import Dream, DreamOutcome, DreamRun

log = logging.getLogger(__name__)

_NIGHTLY = "0 4 * * *"
_FIRST_S = 60.0
"""Delay after a start, before missed runs."""
_MAX_TIMER_S = 3600.0
"""Limit of a timer: timers stop while the machine sleeps, so look at the wall clock this often."""


@dataclass(eq=False)
class DreamScheduler:
    """Runs Dream over every memory of one bot."""

    defaults: AgentDefaults
    models: "ModelSource"
    sessions: SessionManager
    clock: Clock
    memory: MemoryStore
    """The owner's."""
    problem: str | None = None
    _running: "dict[Scope, asyncio.Task[DreamRun]]" = field(default_factory=dict)
    _last_run_at: float = 0.0

    def __post_init__(self) -> None:
        self._looks = DueTimes(self.memory.database, "look")

    @property
    def enabled(self) -> bool:
        """Whether the gateway runs it on a schedule."""
        return self.defaults.dream.enabled

    async def run(self, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep) -> None:
        """Run on schedule until cancelled. Never raises for a model or the disk."""
        await sleep(_FIRST_S)
        while True:
            due = await asyncio.to_thread(self._due)
            while (left := due - self._now()) > 0:
                await sleep(min(left, _MAX_TIMER_S))
            await self.run_all()

    async def run_all(self) -> "list[DreamRun]":
        """Run over every memory with news, one after another."""
        from nanobot.agent.memory.dream import DreamOutcome

        await asyncio.to_thread(self._save_last_run)
        failed, runs = (DreamOutcome.FAILED, DreamOutcome.RESTING), []
        for scope in await asyncio.to_thread(self._scopes):
            run = await self._run(scope)
            if run.passes:
                log.info("Dream over %s: %s", scope.chat or "the owner's memory", run.passes[-1].outcome.value)
            runs.append(run)
        self.problem = next((f"Dream: {run.reason}" for run in runs if run.outcome in failed), None)
        return runs

    async def run_now(self, scope: Scope, who: str = "", command: str = "/dream") -> "tuple[DreamOutcome, str]":
        """Run over one memory now. Return the outcome and a text for a person. Never raises for a model or the disk."""
        from nanobot.agent.memory.dream import format_run

        run = await self._run(scope, who, by_hand=True)
        last = next(iter(await asyncio.to_thread(self.memory.of(scope).revisions.passes)), None)
        return run.outcome, format_run(run, last, command)

    async def _run(self, scope: Scope, who: str = "", *, by_hand: bool = False) -> "DreamRun":
        from nanobot.agent.memory.dream import DreamOutcome, DreamRun

        if scope in self._running:
            return DreamRun(DreamOutcome.BUSY)
        work = self._dream_of(scope).run(who=who, by_hand=by_hand)
        task = self._running[scope] = asyncio.create_task(work, name="dream")
        try:
            await asyncio.wait([task])
        finally:
            if self._running.get(scope) is task:
                await self.break_off(scope)
        return DreamRun(DreamOutcome.NOTHING, reason="It was cancelled.") if task.cancelled() else task.result()

    async def break_off(self, scope: Scope) -> None:
        """Cancel a run over this memory that waits for a model; a write in progress is finished."""
        if (task := self._running.pop(scope, None)) is not None and not task.done():
            task.cancel()
            await asyncio.wait([task])

    def state(self, scope: Scope) -> str | None:
        """Return a line about repeated failures, None without."""
        _, failed = self.memory.of(scope).revisions.dream_state()
        if not failed:
            return None
        failures = count_noun(len(failed), "time")
        return f"Dream: failed {failures} in a row, the memory is unchanged: {failed[0].reason}"

    async def close(self) -> None:
        """Cancel runs that wait for a model, and finish writes in progress."""
        for scope in [*self._running]:
            await self.break_off(scope)

    def _dream_of(self, scope: Scope) -> "Dream":
        from nanobot.agent.memory.dream import Dream  # most processes never run Dream

        settings = self.defaults.dream
        model = settings.model_override or self.defaults.background_model
        return Dream(self.memory.of(scope), self.models, settings, model)

    def _scopes(self) -> list[Scope]:
        """Return the owner's scope and that of every chat with a memory."""
        chats = self.memory.memory_dir / "chats"
        folders = {path.name for path in chats.iterdir() if path.is_dir()} if chats.is_dir() else set()
        if not folders:
            return [OWNERS]
        keys = {key_of(name.rpartition("-")[0]) for name in folders}
        for session in self.sessions.list_sessions():  # a key may end in a thread
            parts = session["key"].split(":")
            keys |= {":".join(parts[:end]) for end in range(2, len(parts) + 1)}
        scopes = [Scope(key) for key in sorted(keys - {""})]
        return [OWNERS, *(scope for scope in scopes if Path(scope.folder).name in folders)]

    def _due(self) -> float:
        """Return when the next run is due, by the wall clock; a missed run is due now."""
        from nanobot.cron.schedule import check_schedule, next_instant
        from nanobot.cron.types import CronError, CronSchedule

        now, last = self.clock.now(), self._last_run_at
        with suppress(StorageError):
            last = max(last, self._looks.get("dream").at)
        if not 0 < last <= now.timestamp():  # first start, or the clock was set back
            self._save_last_run()
            last = now.timestamp()
        settings = self.defaults.dream
        if settings.cron is None and settings.interval_h is not None:
            return last + max(settings.interval_h * 3600, 60)
        schedule = CronSchedule("cron", expr=settings.cron or _NIGHTLY)
        try:
            check_schedule(schedule)
        except CronError as error:
            log.warning("agents.defaults.dream.cron: %s Using %s until it is fixed.", error, _NIGHTLY)
            schedule = CronSchedule("cron", expr=_NIGHTLY)
        assert now.tzinfo is not None  # noqa: S101 a Clock returns aware times
        due = next_instant(schedule, round(last * 1000), zone=now.tzinfo, anchor_ms=round(last * 1000))
        return due / 1000 if due is not None else inf

    def _save_last_run(self) -> None:
        """Store the time of this run, so that a restart does not repeat it."""
        self._last_run_at = self._now()
        try:
            self._looks.put("dream", Due(self._last_run_at))
        except StorageError as error:
            log.warning("%s", error)

    def _now(self) -> float:
        return self.clock.now().timestamp()
