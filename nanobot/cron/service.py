"""CronService: the jobs of one store, each run once when due, across processes.

Operations on jobs block and are thread-safe; they need no event loop. `start`, `run_job` and `close` do. A round locks
the store, leases due jobs and writes everything back at once, so that each due instant runs once; the lease of a dead
process is settled by the next. Between rounds, clock and file are checked every TICK_S seconds.
"""

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nanobot.bus.events import Address
from nanobot.cron.history import HistoryRow
from nanobot.cron.schedule import check_schedule, instants, job_zone, job_zone_or_host, next_instant
from nanobot.cron.scheduler import EndedRun, LeasedRun, Scheduler, WasStarted
from nanobot.cron.store import CronStore, JobFile
from nanobot.cron.types import (
    DAY_MS,
    CronError,
    CronJob,
    CronPayload,
    CronSchedule,
    Delivered,
    Due,
    JobFailedError,
    JobSkippedError,
    Misfire,
    Notify,
)
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Provenance
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.lease import ProcessLease
from nanobot.utils.locks import ProcessLock, is_held
from nanobot.utils.open_no_follow import open_own
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import nearest

log = logging.getLogger(__name__)
T = TypeVar("T")

OnJob = Callable[..., Awaitable[str | None]]
"""Runs a job: `on_job(job, due)` or `on_job(job)`. Returns the answer; raises for a failure, or JobSkippedError if the
job was not run."""

TICK_S = 2.0
"""How often clock and file are checked. The service is unhealthy after three of these without a tick."""
_CLOCK_STEP_S = 1.0
_MAX_JOBS = 1_000
_NAME_CHARS = 30
_PLACEHOLDER_TARGETS = frozenset({"", "last", "default", "none", "null"})


class CronService:
    """The jobs of a store, and their execution.

    Operations on jobs raise CronError for invalid input and StorageError if the store cannot be used. `timezone` is the
    user's, for jobs without one. `channels` are those that a job may deliver to, and whether they are enabled; None for
    any. `was_started` tells whether the agent received a run whose process died and therefore resumes it itself; other
    runs are started again. The default assumes that it did.
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
        self._store = store = CronStore(Path(store_path))
        self._channels = channels
        self._clock = clock or SystemClock()
        lease = ProcessLease(store.locks / "runs", open_own)
        self._scheduler = Scheduler(self._clock, timezone, lease, store.history, was_started)
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

    # -- jobs ------------------------------------------------------------------------------------------------------

    @property
    def timezone(self) -> str | None:
        """The user's time zone, for jobs without one."""
        return self._scheduler.timezone

    def add_job(
        self,
        name: str,
        schedule: CronSchedule,
        message: str,
        deliver: bool = False,
        channel: str | None = None,
        to: str | None = None,
        delete_after_run: bool = False,
        *,
        notify: Notify = Notify.ALWAYS,
        provenance: Provenance = Provenance.OWNER,
        misfire: Misfire = Misfire.RUN_ONCE,
        misfire_within_s: float | None = None,
    ) -> CronJob:
        """Add a job. Raises CronError if it could never run or never reach its chat."""
        payload = CronPayload(
            message=message, deliver=deliver, channel=channel, to=to, notify=notify, provenance=provenance
        )
        return self.add(
            CronJob(
                "",
                name,
                schedule=replace(schedule),
                payload=payload,
                delete_after_run=delete_after_run,
                misfire=misfire,
                misfire_within_s=misfire_within_s,
            )
        )

    def add(self, job: CronJob) -> CronJob:
        """Add this job with a new id. Raises CronError as `add_job` does."""
        payload = job.payload
        _check_message(payload.message)
        check_schedule(job.schedule)
        if payload.notify in (Notify.ON_CHANGE, Notify.ON_ALERT) and not payload.deliver:
            raise CronError(f"notify {payload.notify} needs a chat to notify. Use --deliver.")
        if job.misfire_within_s is not None and job.misfire is not Misfire.RUN_IF_WITHIN:
            raise CronError("--within is only valid with `--misfire run_if_within`.")
        if payload.deliver:
            self._check_target(payload)
        now = self._scheduler.now_ms()
        name = " ".join(job.name.split()) or _first_words(payload.message)
        job = replace(job, name=name, created_at_ms=now, updated_at_ms=now)
        job.state.next_run_at_ms = self._first_instant(job, now)
        return self._edit(lambda job_file: _add(job_file, job))

    def _check_target(self, payload: CronPayload) -> None:
        """Raise CronError if what a job delivers would not arrive."""
        channel = payload.channel
        if not channel or (payload.to or "").strip().lower() in _PLACEHOLDER_TARGETS:
            raise CronError(
                "A job that delivers needs a channel and a chat id to post to, for example `--channel telegram --to "
                "12345`."
            )
        if self._channels is None or channel == "cli":  # the terminal needs no channel
            return
        if channel not in self._channels:
            near = nearest(channel, self._channels, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            enabled_names = ", ".join(sorted(name for name, is_on in self._channels.items() if is_on)) or "none"
            raise CronError(f"There is no channel {channel!r}. {hint}Enabled channels: {enabled_names}.")
        if not self._channels[channel]:
            raise CronError(
                f"The channel {channel} is not enabled, so nothing would arrive. Set channels.{channel}.enabled, or "
                f"run `nanobot channels login {channel}`."
            )

    def mark_delivered(self, job_id: str, text: str) -> bool:
        """Record what a job is about to send, so that `settle_reminder` can send it again. False if there is no job."""

        def mark(job: CronJob) -> None:
            job.state.delivered = Delivered(self._scheduler.now_ms(), text)

        return self._change_job(job_id, mark) is not None

    def last_delivered(self, chat: Address) -> CronJob | None:
        """The job whose reminder in this chat is the newest that nobody has answered. Terminals count as one chat."""

        def is_here(payload: CronPayload) -> bool:
            if chat.channel == "cli":
                return payload.channel in (None, "", "cli")
            is_same_chat = (payload.channel, payload.to) == (chat.channel, chat.chat_id)
            return is_same_chat and payload.thread_id in (None, chat.thread_id)

        delivered = {
            job.state.delivered.at_ms: job
            for job in self._fresh().jobs
            if job.state.delivered is not None and is_here(job.payload)
        }
        return deepcopy(delivered[max(delivered)]) if delivered else None

    def settle_reminder(self, job_id: str, snooze_until_ms: int | None = None) -> bool:
        """Settle what a job has delivered: it is not tried again, and with a time it is sent again then, as a new job.

        False if it has delivered nothing, or that was settled before.
        """

        def settle(job_file: JobFile) -> bool:
            job, now = job_file.get(job_id), self._scheduler.now_ms()
            if job is None or job.state.delivered is None:
                return False
            if snooze_until_ms is not None:
                again = CronJob(
                    "",
                    job.name,
                    schedule=CronSchedule("at", at_ms=snooze_until_ms),
                    payload=replace(job.payload, message=job.state.delivered.text, verbatim=True),
                    created_at_ms=now,
                    updated_at_ms=now,
                    delete_after_run=True,
                )
                again.state.next_run_at_ms = self._first_instant(again, now)
                _add(job_file, again)
            job.state.delivered = job.state.retry = None
            if job.delete_after_run and job.schedule.kind == "at" and not job.enabled:
                job_file.remove(job)
            return True

        return self._edit(settle)

    def list_jobs(self, include_disabled: bool = False) -> list[CronJob]:
        """The jobs, next to run first, without finished one-shots. Raises StorageError if the file is unreadable."""

        def is_listed(job: CronJob) -> bool:
            return job.enabled or job.state.retry is not None or (include_disabled and not job.is_over)

        jobs = [job for job in deepcopy(self._fresh().jobs) if is_listed(job)]
        return sorted(jobs, key=lambda job: (job.state.wakes_at_ms is None, job.state.wakes_at_ms or 0))

    def get_job(self, job_id: str) -> CronJob | None:
        """The job of this id, or None."""
        return deepcopy(self._fresh().get(job_id))

    def find_jobs(self, wanted: str) -> list[CronJob]:
        """The job of this id, or else those of this name, ignoring case."""
        if (job := self.get_job(wanted)) is not None:
            return [job]
        return [job for job in self.list_jobs(include_disabled=True) if job.name.casefold() == wanted.casefold()]

    def zone_of(self, job: CronJob) -> tzinfo:
        """The zone to show a job's times in."""
        return job_zone_or_host(job, self.timezone)

    def unreadable(self) -> list[str]:
        """A sentence for each invalid entry of the file."""
        return [entry.reason for entry in self._fresh().unreadable]

    def remove_job(self, job_id: str) -> bool:
        """Remove a job; False if there is none."""

        def remove(job_file: JobFile) -> bool:
            job = job_file.get(job_id)
            if job is not None:
                job_file.remove(job)
            return job is not None

        return self._edit(remove)

    def enable_job(self, job_id: str, enabled: bool = True) -> CronJob | None:
        """Enable or disable a job; None if there is none. Runs missed while disabled are not made up for."""

        def enable(job: CronJob) -> None:
            now = self._scheduler.now_ms()
            if enabled and not job.enabled:
                last_run_ms = job.state.last_due_at_ms or 0  # do not repeat it if the clock was set back
                job.state.next_run_at_ms = self._first_instant(
                    job, last_run_ms if now < last_run_ms < now + DAY_MS else now
                )
            elif not enabled:
                job.state.next_run_at_ms = job.state.run_requested_at_ms = job.state.retry = None
            job.enabled, job.updated_at_ms = enabled, now

        return self._change_job(job_id, enable)

    def change_job(
        self,
        job_id: str,
        *,
        name: str | None = None,
        message: str | None = None,
        schedule: CronSchedule | None = None,
    ) -> CronJob | None:
        """Change what a job does and when; what is None stays. None if there is none. Raises CronError if it could
        never run.
        """
        _check_message(message)
        if schedule is not None:
            check_schedule(schedule)

        def change(job: CronJob) -> None:
            now = self._scheduler.now_ms()
            if schedule is not None:
                first = self._first_instant(replace(job, schedule=schedule), now)
                job.schedule, job.delete_after_run = replace(schedule), schedule.kind == "at"
                job.state.next_run_at_ms, job.state.retry = first if job.enabled else None, None
            if message is not None:
                job.payload.message = message
            if name is not None:
                job.name = " ".join(name.split()) or _first_words(job.payload.message)
            job.updated_at_ms = now

        return self._change_job(job_id, change)

    def request_run(self, job_id: str) -> bool:
        """Ask the process that serves the store to run a job, within seconds; False if there is none."""

        def request(job: CronJob) -> None:
            job.state.run_requested_at_ms = self._scheduler.now_ms()

        return self._change_job(job_id, request) is not None

    def next_instants(self, job: CronJob, count: int = 3) -> list[int]:
        """The next `count` due instants in milliseconds; empty if it is disabled."""
        first = job.state.next_run_at_ms
        if not job.enabled or first is None:
            return []
        zone = job_zone(job, self.timezone)
        return [first, *islice(instants(job.schedule, first, zone=zone, anchor_ms=first), count - 1)]

    def history(self, job_id: str | None = None) -> list[HistoryRow]:
        """Past runs, oldest first. Raises StorageError."""
        return self._store.history.rows(job_id)

    def adopt(self, old: Path) -> None:
        """Move the store from its location in earlier releases, once. Raises StorageError."""
        self._store.adopt(old)

    def _first_instant(self, job: CronJob, now: int) -> int:
        zone = job_zone(job, self.timezone)
        first = next_instant(job.schedule, now, zone=zone, anchor_ms=job.created_at_ms or now)
        if first is None and job.schedule.kind == "at":
            raise CronError("That time is in the past. Give a future time.")
        if first is None:
            raise CronError(f"{job.schedule.expr!r} never matches again. Give one that does.")
        return first

    def _change_job(self, job_id: str, change: Callable[[CronJob], None]) -> CronJob | None:
        """Change a job and return it; None if there is none."""

        def apply(job_file: JobFile) -> CronJob | None:
            if (job := job_file.get(job_id)) is not None:
                change(job)
            return deepcopy(job)

        return self._edit(apply)

    def _edit(self, change: Callable[[JobFile], T]) -> T:
        result = self._store.edit(change)
        self._wake_up()
        return result

    def _fresh(self) -> JobFile:
        return self._store.fresh(may_replace=self._task is None)

    # -- lifecycle -------------------------------------------------------------------------------------------------

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

    def _wake_up(self) -> None:
        """Trigger a tick now. Thread-safe."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)


def _add(job_file: JobFile, job: CronJob) -> CronJob:
    if len(job_file.entries) >= _MAX_JOBS:
        raise CronError(f"There are already {_MAX_JOBS} jobs. Remove some with `nanobot cron remove`.")
    while not job.id or job_file.get(job.id) is not None:
        job.id = secrets.token_hex(4)
    job_file.entries.append(job)
    return deepcopy(job)


def _check_message(message: str | None) -> None:
    if message is not None and not message.strip():
        raise CronError("A job needs a message: what to do or say when it runs.")


def _first_words(message: str) -> str:
    """The beginning of a message, as the name of its job."""
    text = " ".join(message.split())
    return text if len(text) <= _NAME_CHARS else text[: _NAME_CHARS + 1].rpartition(" ")[0] or text[:_NAME_CHARS]
