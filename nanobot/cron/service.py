"""CronService: the jobs of one store, and the clockwork that runs each at its time, once.

A round reads the store under its lock, judges what is due, leases what is to be run and writes it all back in one step;
so two processes on one store run an instant once, and whoever finds the lease of a dead one settles it. Between rounds
there is a look at the clock and at the file every two seconds, which costs microseconds. Edits (`edits`) need no event
loop; `start`, `run_job` and `close` do.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanobot.cron.edits import JobEdits
from nanobot.cron.history import HistoryRow
from nanobot.cron.keeper import Keeper
from nanobot.cron.leases import Leases
from nanobot.cron.rounds import Begun, Ended, Rounds, WasBegun
from nanobot.cron.store import Book, CronStore
from nanobot.cron.targets import Targets
from nanobot.cron.types import CronError, CronJob, Due, JobSkippedError
from nanobot.errors import NanobotError, StorageError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

log = logging.getLogger(__name__)

OnJob = Callable[..., Awaitable[str | None]]
"""Runs a job: `on_job(job, due)`, or `on_job(job)`. What it returns is the run's answer; what it raises, its failure;
JobSkippedError says that it was not run after all."""

TICK_S = 2.0
"""How often the clock and the file are looked at. Three of these without a tick, and the clockwork is not well."""
_STEP_S = 1.0


class CronService(JobEdits):
    """The jobs of a store, and what runs them.

    `timezone` is the user's, for jobs without one of their own. `was_begun` is asked about a run whose process died:
    has the agent got it, so that it goes on by itself? Without it, it is taken that it has; a run that the agent never
    saw is begun again. `on_problem` hears of what keeps the clockwork from its work, once a problem.
    """

    def __init__(
        self,
        store_path: Path | str,
        on_job: OnJob | None = None,
        *,
        clock: Clock | None = None,
        timezone: str | None = None,
        targets: Targets | None = None,
        was_begun: WasBegun | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self.on_job = on_job
        self.problem: str | None = None
        """What keeps the clockwork from its work, for health to tell."""
        store = CronStore(Path(store_path))
        self._clock = clock or SystemClock()
        keeper = Keeper(store, lambda refusal: self._tell(refusal or self._trouble()))
        rounds = Rounds(self._clock, timezone, Leases(store.locks), store.history, was_begun)
        super().__init__(store, keeper, rounds, targets)
        self._on_problem = on_problem
        self._runs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._ended: list[tuple[CronJob, Ended]] = []
        """Runs whose end nobody has begun to write down."""
        self._writing = asyncio.Lock()
        self._leaving: set[asyncio.Task[None]] = set()
        """What was stopped and has not ended yet: it may still hold our locks."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._looked = False
        self._skew_s = 0.0
        self._ticked_s: float | None = None

    def serve_only(self, served: Callable[[CronJob], bool]) -> None:
        """From the next `start` on, run these jobs alone: the others wait for a process that runs all."""
        self._rounds.only = served

    def is_served(self) -> bool:
        """Whether some process, this one perhaps, runs the jobs when they are due."""
        return self._rounds.leases.is_served()

    # -- the clockwork ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Run jobs when they are due, until `stop` or `close`. What was missed meanwhile is settled at once."""
        while self._leaving:
            await asyncio.wait({*self._leaving})
        if self._task is not None:
            return
        self._rounds.leases = Leases(self._store.locks)
        self._loop, self._wake, self._looked = asyncio.get_running_loop(), asyncio.Event(), False
        self._writing = asyncio.Lock()
        self._ticked_s = self._clock.monotonic()
        if self.on_job is not None:
            await finish(asyncio.to_thread(self._take_locks))
        self._task = asyncio.create_task(self._serve(), name="cron")

    def stop(self) -> None:
        """Stop at once. A run that is cut off stays leased; the next start settles it."""
        lives = {life for life in (*self._runs, self._task) if life is not None and not life.done()}
        self._task, self._ticked_s = None, None
        self._leaving |= lives
        for life in lives:
            life.add_done_callback(self._gone)
            life.cancel()
        if not self._leaving:
            self._rounds.leases.close()

    async def close(self, grace_s: float = 5.0) -> None:
        """Begin no more runs, give those that are under way so much time, then stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._runs:
            await asyncio.wait({*self._runs}, timeout=grace_s)
        cut_off = {*self._runs}
        self.stop()
        if cut_off:
            await asyncio.wait(cut_off)

    def status(self) -> dict[str, Any]:
        """How it is: `enabled` (it runs), `jobs`, `next_wake_at_ms`; for health `tick_age_s`, `running`, `problem`."""
        jobs = self._keeper.book.jobs if self._keeper.book is not None else []
        with suppress(StorageError):
            jobs = self._fresh().jobs
        planned = [job.state.next_run_at_ms for job in jobs if job.enabled and job.state.next_run_at_ms is not None]
        return {
            "enabled": self._task is not None,
            "jobs": len(jobs),
            "next_wake_at_ms": min(planned, default=None),
            "tick_age_s": self.tick_age_s,
            "running": len(self._rounds.running),
            "problem": self.problem,
        }

    @property
    def tick_age_s(self) -> float | None:
        """Seconds since the clockwork last ticked; None where it does not run. Above 3 * TICK_S something is wrong."""
        return None if self._ticked_s is None else self._clock.monotonic() - self._ticked_s

    async def run_job(self, job_id: str, force: bool = False) -> bool:
        """Run a job now and wait for its end; its schedule goes on as if nothing had been.

        False where there is no such job, it is switched off (`force` runs it all the same), it is running already, or
        nothing was handed in that runs jobs. Cancelling cuts the run off.
        """
        if self.on_job is None:
            return False
        begun = await self._leasing(lambda book, rows: self._rounds.lease_by_hand(book, rows, job_id, force=force))
        try:
            for job, due in begun:
                await self._begin(job, due)
        finally:
            if self._task is None and not self._runs:
                self._rounds.leases.close()
        return bool(begun)

    async def tick(self) -> float | None:
        """Look at the clock and the file; begin what is due. Seconds until the next instant; None where none is."""
        self._ticked_s = self._clock.monotonic()
        if self.on_job is None:
            return None
        if self._has_work():
            for job, due in await self._leasing(self._rounds.settle):
                self._begin(job, due)
            self._looked = True
        waits = [job.state.next_run_at_ms for job in self._waiting() if job.state.next_run_at_ms is not None]
        return max(min(waits) - self._rounds.now_ms(), 0) / 1000 if waits else None

    async def settled(self) -> None:
        """Wait until every run that is under way has ended."""
        while self._runs:
            await asyncio.wait({*self._runs})

    async def _serve(self) -> None:
        while True:
            if self.on_job is not None and not self._rounds.leases.complete:
                await finish(asyncio.to_thread(self._take_locks))
            try:
                wait_s = await self.tick()
            except StorageError as error:
                wait_s = None
                self._tell(str(error))
            except Exception as error:  # whatever a round stumbles over, the next one must come
                wait_s = None
                if self.problem is None:
                    log.exception("A round of the jobs failed.")
                self._tell(f"A round of the jobs failed with {type(error).__name__}: {error}")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if wait_s is None else min(wait_s, TICK_S)):
                    await self._wake.wait()
            self._wake.clear()

    def _take_locks(self) -> None:
        """A disk that refuses locks keeps no reminder from ringing."""
        with suppress(OSError):
            self._rounds.leases.open()
            if self._rounds.only is None:
                self._rounds.leases.serve()

    # -- a round ---------------------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        """Whether a round may change anything."""
        skew_s = self._clock.now().timestamp() - self._clock.monotonic()
        stepped, self._skew_s = abs(skew_s - self._skew_s) > _STEP_S, skew_s
        if stepped:
            self._rounds.forget_plans()
        if not self._looked or stepped or self._keeper.is_behind() or self._is_any_due():
            return True
        running = [(job, job.state.running) for job in self._keeper.jobs]
        return any(lease is not None and not self._rounds.is_at_work(job, lease) for job, lease in running)

    async def _leasing(self, change: Callable[[Book, list[HistoryRow]], list[Begun]]) -> list[Begun]:
        """What a change has leased. Where the wait is cancelled, nothing of it is at work here: the leases are left."""
        work = asyncio.ensure_future(asyncio.to_thread(self._keeper.change, change))
        try:
            return await finish(work)
        except asyncio.CancelledError:
            for job, _ in work.result() if work.exception() is None else ():
                self._rounds.running.pop(job.id, None)
            raise

    def _is_any_due(self) -> bool:
        now = self._rounds.now_ms()
        return any(
            job.state.run_requested_at_ms is not None or (job.state.next_run_at_ms or now + 1) <= now
            for job in self._waiting()
        )

    def _waiting(self) -> list[CronJob]:
        jobs, refused = self._keeper.jobs, self._rounds.refused
        return [job for job in jobs if job.state.running is None and self._rounds.serves(job) and job.id not in refused]

    def _gone(self, life: "asyncio.Task[None]") -> None:
        self._leaving.discard(life)
        if not self._leaving:
            self._rounds.leases.close()

    # -- a run -----------------------------------------------------------------------------------------------------

    def _begin(self, job: CronJob, due: Due) -> "asyncio.Task[None]":
        running = self._rounds.running
        lease = running.get(job.id)

        def ended(run: "asyncio.Task[None]") -> None:
            self._runs.discard(run)
            if run.cancelled() and running.get(job.id) is lease:  # perhaps before its first step
                running.pop(job.id, None)  # the lease stays in the file, for the next start to settle

        run = asyncio.create_task(self._run(job, due), name=due.run_id)
        self._runs.add(run)
        run.add_done_callback(ended)
        return run

    async def _run(self, job: CronJob, due: Due) -> None:
        began_s = self._clock.monotonic()
        try:
            ended = Ended("ok", answer=await self._called(job, due))
        except JobSkippedError as skipped:
            ended = Ended("skipped", str(skipped))
        except Exception as error:  # whatever a job's own code raises is how the run ended
            is_odd = not isinstance(error, NanobotError)
            log.warning("The job %r (%s) failed: %r", job.name, job.id, str(error), exc_info=is_odd)
            ended = Ended("error", str(error) or type(error).__name__)
        ended = replace(ended, duration_ms=round((self._clock.monotonic() - began_s) * 1000))
        await finish(self._written_down(job, ended))

    def _called(self, job: CronJob, due: Due) -> Awaitable[str | None]:
        if self.on_job is None:
            raise JobSkippedError("nothing was handed in that runs jobs")
        try:
            inspect.signature(self.on_job).bind(job, due)
        except TypeError:
            return self.on_job(job)
        return self.on_job(job, due)

    async def _written_down(self, job: CronJob, ended: Ended) -> None:
        """How a run ended is on the disk when this returns: with all that ended while another was written, at once."""
        self._ended.append((job, ended))
        async with self._writing:
            together, self._ended = self._ended, []
            if together:
                await asyncio.to_thread(self._finish, together)

    def _finish(self, together: Sequence[tuple[CronJob, Ended]]) -> None:
        """Write down how these runs ended. Never raises: what the disk refuses is kept in memory."""

        def end(book: Book, rows: list[HistoryRow]) -> None:
            for job, ended in together:
                self._rounds.ended(book, rows, job, ended)

        try:
            self._keeper.change(end)
        except (StorageError, CronError) as error:
            for job, ended in together:
                log.warning(
                    "How the job %r (%s) ended (%s) cannot be written: %s", job.name, job.id, ended.status, error
                )
        for job, _ in together:
            self._rounds.running.pop(job.id, None)
        self._nudge()

    # -- beside them -------------------------------------------------------------------------------------------------

    def _trouble(self) -> str | None:
        """What is wrong with the entries of a file that can be read."""
        if self._keeper.book is None:
            return None
        wrong = [entry.reason for entry in self._keeper.book.unreadable]
        wrong += [
            f"{job.name} ({job.id}): {job.state.last_error}"
            for job in self._keeper.jobs
            if job.id in self._rounds.refused
        ]
        return f"{self._store.path}: {'; '.join(wrong)}" if wrong else None

    def _tell(self, problem: str | None) -> None:
        """Say it once when it begins, and once when it is over."""
        if problem == self.problem:
            return
        self.problem = problem
        if problem is None:
            log.info("The jobs of %s are well again.", self._store.path)
            return
        log.error("%s", problem)
        if self._on_problem is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_problem, problem)  # rounds are at work in a thread
        else:
            self._on_problem(problem)

    @property
    def _is_serving(self) -> bool:
        return self._task is not None

    def _nudge(self) -> None:
        """Have the clockwork look at once; from any thread."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)
