"""CronService: the jobs of one store, each run once when due, across processes.

A round locks the store, leases due jobs and writes everything back at once, so that each due instant runs once; the
lease of a dead process is settled by the next. Between rounds, clock and file are checked every TICK_S seconds. Edits
(`edits`) need no event loop; `start`, `run_job` and `close` do.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from nanobot.cron.edits import JobEdits
from nanobot.cron.history import HistoryRow
from nanobot.cron.scheduler import EndedRun, LeasedRun, Scheduler, WasStarted
from nanobot.cron.store import CronStore, JobFile
from nanobot.cron.types import CronError, CronJob, Due, JobFailedError, JobSkippedError
from nanobot.errors import NanobotError, StorageError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.lease import ProcessLease
from nanobot.utils.locks import ProcessLock, is_held
from nanobot.utils.open_no_follow import open_own
from nanobot.utils.storage_error import error_text

log = logging.getLogger(__name__)
T = TypeVar("T")

OnJob = Callable[..., Awaitable[str | None]]
"""Runs a job: `on_job(job, due)` or `on_job(job)`. Returns the answer; raises for a failure, or JobSkippedError if the
job was not run."""

TICK_S = 2.0
"""How often clock and file are checked. The service is unhealthy after three of these without a tick."""
_CLOCK_STEP_S = 1.0


class CronService(JobEdits):
    """The jobs of a store, and their execution.

    `timezone` is the user's, for jobs without one. `channels` are those that a job may deliver to, and whether they are
    enabled; None for any. `was_started` tells whether the agent received a run whose process
    died and therefore resumes it itself; other runs are started again. The default assumes that it did.
    """

    def __init__(
        self,
        store_path: Path | str,
        on_job: OnJob | None = None,
        *,
        clock: Clock | None = None,
        timezone: str | None = None,
        channels: Mapping[str, bool] | None = None,
        was_started: WasStarted | None = None,
    ) -> None:
        self.on_job = on_job
        self.problem: str | None = None
        """What keeps jobs from running, for the health check."""
        store = CronStore(Path(store_path))
        lease = ProcessLease(store.locks / "runs", open_own)
        self._clock = clock or SystemClock()
        super().__init__(store, Scheduler(self._clock, timezone, lease, store.history, was_started), channels)
        self._serving = ProcessLock(store.locks / "serving.lock", open_own)
        """Held by the process that runs the jobs."""
        self._runs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._unrecorded: list[tuple[CronJob, EndedRun]] = []
        """Ended runs that are not recorded yet."""
        self._writing = asyncio.Lock()
        self._stopping: set[asyncio.Task[None]] = set()
        """Cancelled tasks that have not ended yet and may still hold locks."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._has_ticked = False
        self._skew_s = 0.0
        self._ticked_s: float | None = None

    def serve_only(self, served: Callable[[CronJob], bool]) -> None:
        """From the next `start` on, run only these jobs; another process runs the others."""
        self._scheduler.only = served

    def is_served(self) -> bool:
        """Whether any process, including this one, runs the jobs when due."""
        return self._serving.is_acquired or is_held(self._store.locks / "serving.lock", open_own)

    def is_running(self, job_id: str) -> bool:
        """Whether this job is running, here or in another process. Raises StorageError."""
        job = self._fresh().get(job_id)
        return job is not None and job.state.running is not None and self._scheduler.is_running(job, job.state.running)

    # -- lifecycle -------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Run jobs when due, until `stop` or `close`. Runs missed meanwhile are settled at once."""
        while self._stopping:
            await asyncio.wait({*self._stopping})
        if self._task is not None:
            return
        self._loop, self._wake, self._has_ticked = asyncio.get_running_loop(), asyncio.Event(), False
        self._writing = asyncio.Lock()
        self._ticked_s = self._clock.monotonic()
        if self.on_job is not None:
            await finish(asyncio.to_thread(self._take_locks))
        self._task = asyncio.create_task(self._serve(), name="cron")

    def stop(self) -> None:
        """Stop at once. Interrupted runs stay leased; the next start settles them."""
        stopping = {task for task in (*self._runs, self._task) if task is not None and not task.done()}
        self._task, self._ticked_s = None, None
        self._stopping |= stopping
        for task in stopping:
            task.add_done_callback(self._task_stopped)
            task.cancel()
        if not self._stopping:
            self._release_locks()

    async def close(self, grace_s: float = 5.0) -> None:
        """Start no more runs, give running ones `grace_s` seconds, then stop."""
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
        """`enabled` (is it running), `jobs`, `next_wake_at_ms`; for health `tick_age_s`, `running`, `problem`."""
        jobs = self._store.jobs
        with suppress(StorageError):
            jobs = self._fresh().jobs
        planned = [job.state.next_run_at_ms for job in jobs if job.enabled and job.state.next_run_at_ms is not None]
        return {
            "enabled": self._task is not None,
            "jobs": len(jobs),
            "next_wake_at_ms": min(planned, default=None),
            "tick_age_s": self.tick_age_s,
            "running": len(self._scheduler.running),
            "problem": self.problem,
        }

    @property
    def tick_age_s(self) -> float | None:
        """Seconds since the last tick; None if not running. Above 3 * TICK_S the service is unhealthy."""
        return None if self._ticked_s is None else self._clock.monotonic() - self._ticked_s

    async def run_job(self, job_id: str, force: bool = False) -> bool:
        """Run a job now and wait for its end; its schedule is not affected.

        False if the job is unknown, disabled (unless `force`) or already running, or if there is no `on_job`.
        Cancelling interrupts the run.
        """
        if self.on_job is None:
            return False
        leased = await self._change_and_lease(
            lambda file, rows: self._scheduler.lease_manually(file, rows, job_id, force=force)
        )
        try:
            for job, due in leased:
                await self._start_run(job, due)
        finally:
            if self._task is None and not self._runs:
                self._release_locks()
        return bool(leased)

    async def tick(self) -> float | None:
        """Check clock and file and start due jobs. Returns seconds until the next due instant, or None."""
        self._ticked_s = self._clock.monotonic()
        if self.on_job is None:
            return None
        if self._needs_round():
            for job, due in await self._change_and_lease(self._scheduler.run_round):
                self._start_run(job, due)
            self._has_ticked = True
        waits = [wakes for job in self._waiting_jobs() if (wakes := job.state.wakes_at_ms) is not None]
        return max(min(waits) - self._scheduler.now_ms(), 0) / 1000 if waits else None

    async def wait_for_runs(self) -> None:
        """Wait until all current runs have ended."""
        while self._runs:
            await asyncio.wait({*self._runs})

    async def _serve(self) -> None:
        while True:
            if self.on_job is not None and not self._serving.is_acquired:
                await finish(asyncio.to_thread(self._take_locks))
            try:
                wait_s = await self.tick()
            except StorageError as error:
                wait_s = None
                self._report_problem(str(error))
            except Exception as error:  # a failed round must not stop the next one
                wait_s = None
                if self.problem is None:
                    log.exception("A scheduling round failed.")
                self._report_problem(f"A scheduling round failed with {type(error).__name__}: {error_text(error)}")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if wait_s is None else min(wait_s, TICK_S)):
                    await self._wake.wait()
            self._wake.clear()

    def _take_locks(self) -> None:
        """Take the locks if possible; jobs also run on a disk without locks."""
        with suppress(OSError, StorageError):
            self._scheduler.lease.hold()
            if self._scheduler.only is None and not self._serving.is_acquired:
                self._serving.try_acquire()

    def _release_locks(self) -> None:
        """Unfinished runs are settled by the next process."""
        self._serving.release()
        self._scheduler.lease.release()

    # -- a round ---------------------------------------------------------------------------------------------------

    def _needs_round(self) -> bool:
        """Whether a round could change anything."""
        skew_s = self._clock.now().timestamp() - self._clock.monotonic()
        clock_stepped, self._skew_s = abs(skew_s - self._skew_s) > _CLOCK_STEP_S, skew_s
        if clock_stepped:
            self._scheduler.forget_plans()
        if not self._has_ticked or clock_stepped or self._store.is_behind() or self._is_any_due():
            return True
        running = [(job, job.state.running) for job in self._store.jobs]
        return any(lease is not None and not self._scheduler.is_running(job, lease) for job, lease in running)

    async def _change_and_lease(
        self, change: Callable[[JobFile, list[HistoryRow]], list[LeasedRun]]
    ) -> list[LeasedRun]:
        """Apply a change and return the runs it leased. If cancelled, they are not started and keep their leases."""
        change_task = asyncio.ensure_future(asyncio.to_thread(self._change, change))
        try:
            return await finish(change_task)
        except asyncio.CancelledError:
            for job, _ in change_task.result() if change_task.exception() is None else ():
                self._scheduler.running.pop(job.id, None)
            raise

    def _is_any_due(self) -> bool:
        now = self._scheduler.now_ms()
        return any(
            job.state.run_requested_at_ms is not None or (job.state.wakes_at_ms or now + 1) <= now
            for job in self._waiting_jobs()
        )

    def _waiting_jobs(self) -> list[CronJob]:
        jobs, failed = self._store.jobs, self._scheduler.failed
        return [
            job for job in jobs if job.state.running is None and self._scheduler.serves(job) and job.id not in failed
        ]

    def _task_stopped(self, task: "asyncio.Task[None]") -> None:
        self._stopping.discard(task)
        if not self._stopping:
            self._release_locks()

    # -- a run -----------------------------------------------------------------------------------------------------

    def _start_run(self, job: CronJob, due: Due) -> "asyncio.Task[None]":
        running = self._scheduler.running
        lease = running.get(job.id)

        def ended(run: "asyncio.Task[None]") -> None:
            self._runs.discard(run)
            if run.cancelled() and running.get(job.id) is lease:  # maybe before its first step
                running.pop(job.id, None)  # the lease stays in the file; the next start settles it

        run = asyncio.create_task(self._run(job, due), name=due.run_id)
        self._runs.add(run)
        run.add_done_callback(ended)
        return run

    async def _run(self, job: CronJob, due: Due) -> None:
        started_s = self._clock.monotonic()
        try:
            ended = EndedRun("ok", answer=await self._call_handler(job, due))
        except JobSkippedError as skipped:
            ended = EndedRun("skipped", str(skipped))
        except Exception as error:  # any error of a job is the result of its run
            seconds, is_unexpected = self._clock.monotonic() - started_s, not isinstance(error, NanobotError)
            words = "job %r (%s) failed after %.1f s: %s"
            log.warning(words, job.name, job.id, seconds, error_text(error), exc_info=is_unexpected)
            retry_in_s = error.retry_in_s if isinstance(error, JobFailedError) else None
            ended = EndedRun("error", error_text(error), retry_in_s=retry_in_s)
        ended = replace(ended, duration_ms=round((self._clock.monotonic() - started_s) * 1000))
        await finish(self._record_ended(job, ended))

    def _call_handler(self, job: CronJob, due: Due) -> Awaitable[str | None]:
        if self.on_job is None:
            raise JobSkippedError("this service has no job handler")
        try:
            inspect.signature(self.on_job).bind(job, due)
        except TypeError:
            return self.on_job(job)
        return self.on_job(job, due)

    async def _record_ended(self, job: CronJob, ended: EndedRun) -> None:
        """Record a run's end durably, in one write with the runs that ended meanwhile."""
        self._unrecorded.append((job, ended))
        async with self._writing:
            batch, self._unrecorded = self._unrecorded, []
            if batch:
                await asyncio.to_thread(self._record_batch, batch)

    def _record_batch(self, batch: Sequence[tuple[CronJob, EndedRun]]) -> None:
        """Record the ends of these runs. Never raises: on a disk error they are kept in memory."""

        def end(job_file: JobFile, rows: list[HistoryRow]) -> None:
            for job, ended in batch:
                self._scheduler.record_end(job_file, rows, job, ended)

        try:
            self._change(end)
        except (StorageError, CronError) as error:
            for job, ended in batch:
                log.warning(
                    "The end of the job %r (%s, %s) cannot be written: %s", job.name, job.id, ended.status, error
                )
        for job, _ in batch:
            self._scheduler.running.pop(job.id, None)
        self._wake_up()

    # -- problems ----------------------------------------------------------------------------------------------------

    def _change(self, change: Callable[[JobFile, list[HistoryRow]], T]) -> T:
        result = self._store.change(change)
        self._report_problem(self._store.problem or self._file_problem())
        return result

    def _file_problem(self) -> str | None:
        """Invalid entries in a readable file."""
        problems = [entry.reason for entry in self._store.job_file.unreadable] if self._store.job_file else []
        problems += [
            f"{job.name} ({job.id}): {job.state.last_error}"
            for job in self._store.jobs
            if job.id in self._scheduler.failed
        ]
        return f"{self._store.path}: {'; '.join(problems)}" if problems else None

    def _report_problem(self, problem: str | None) -> None:
        """Log a problem once when it starts and once when it is over."""
        if problem == self.problem:
            return
        self.problem = problem
        if problem is None:
            log.info("The jobs of %s work again.", self._store.path)
        else:
            log.error("%s", problem)

    @property
    def _is_serving(self) -> bool:
        return self._task is not None

    def _wake_up(self) -> None:
        """Trigger a tick now. Thread-safe."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)
