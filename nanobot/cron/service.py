"""CronService: the jobs of one store, and the clockwork that runs each at its time, once.

A round reads the store under its lock, judges what is due, leases what is to be run and writes it all back in one step;
so two processes on one store run an instant once, and whoever finds the lease of a dead one settles it. Between rounds
there is a look at the clock and at the file every two seconds, which costs microseconds. Jobs and their edits need no
event loop; `start`, `run_job` and `close` do.
"""

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from nanobot.cron.history import HistoryRow, Outcome
from nanobot.cron.judging import Passed, job_zone, judge, passed_until, plan
from nanobot.cron.leases import Leases
from nanobot.cron.notify import fingerprint
from nanobot.cron.schedule import check, instants, next_instant, to_ms
from nanobot.cron.store import Book, CronStore, Stamp, StoreBusyError
from nanobot.cron.targets import Targets, check_target
from nanobot.cron.types import (
    GRACE_MS,
    RUNS_KEPT,
    CronError,
    CronJob,
    CronJobState,
    CronPayload,
    CronSchedule,
    Due,
    JobSkippedError,
    Lease,
    Misfire,
    Notify,
    RunRecord,
    Status,
)
from nanobot.errors import StorageError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock

log = logging.getLogger(__name__)

T = TypeVar("T")
OnJob = Callable[..., Awaitable[str | None]]
"""Runs a job: `on_job(job, due)`, or `on_job(job)`. What it returns is the run's answer; what it raises, its failure;
JobSkippedError says that it was not run after all."""

TICK_S = 2.0
"""How often the clock and the file are looked at. Three of these without a tick, and the clockwork is not well."""
_AGAIN_S = 5.0
"""How long a disk is left alone that refused."""
_STEP_S = 1.0
_ATTEMPTS = 3
_MOST_JOBS = 1_000
_UNKNOWN: Stamp = (-1, -1, -1)
_KILLED = "nanobot was stopped in the middle of this run"
_STILL_AT_WORK = "the run before was still at work"
_OUTCOMES: dict[Status, Outcome] = {"ok": "ran", "error": "failed", "skipped": "skipped"}


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a run ended."""

    status: Status
    error: str | None = None
    answer: str | None = None
    duration_ms: int | None = None


class CronService:
    """The jobs of a store. Edits raise CronError for what cannot be, StorageError where the disk or the file says no.

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
        was_begun: Callable[[CronJob, Due], bool] | None = None,
        on_problem: Callable[[str], None] | None = None,
    ) -> None:
        self.on_job = on_job
        self.timezone = timezone
        self.problem: str | None = None
        """What keeps the clockwork from its work, for health to tell."""
        self._store = CronStore(Path(store_path))
        self._clock = clock or SystemClock()
        self._targets = targets
        self._was_begun = was_begun
        self._on_problem = on_problem
        self._leases = Leases(self._store.locks)
        self._book: Book | None = None
        self._stamp: Stamp | None = _UNKNOWN
        self._ahead = False
        """Whether the book knows of runs that the disk refused to keep."""
        self._unwritten: list[HistoryRow] = []
        self._refused: set[str] = set()
        self._running: dict[str, Lease] = {}
        self._runs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._looked = False
        self._skew_s = 0.0
        self._tried_s = 0.0
        self._ticked_s: float | None = None

    # -- jobs ------------------------------------------------------------------------------------------------------

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
        session_key: str | None = None,
        thread_id: str | None = None,
        notify: Notify = Notify.ALWAYS,
        misfire: Misfire = Misfire.RUN_ONCE,
        misfire_within_s: float | None = None,
    ) -> CronJob:
        """Make a job. Nothing is written where it could never run, or never reach its chat."""
        if not message.strip():
            raise CronError("A job needs a message: what is to be done or said when it is due.")
        check(schedule)
        check_target(deliver, channel, to, thread_id, self._targets)
        now = self._now_ms()
        job = CronJob(
            id=secrets.token_hex(4),
            name=" ".join(name.split()) or " ".join(message.split())[:30],
            schedule=replace(schedule),
            payload=CronPayload(
                message=message,
                deliver=deliver,
                channel=channel,
                to=to,
                session_key=session_key,
                thread_id=thread_id,
                notify=notify,
            ),
            created_at_ms=now,
            updated_at_ms=now,
            delete_after_run=delete_after_run,
            misfire=misfire,
            misfire_within_s=misfire_within_s,
        )
        job.state.next_run_at_ms = self._first_instant(job, now)

        def add(book: Book) -> CronJob:
            if len(book.entries) >= _MOST_JOBS:
                raise CronError(f"There are {_MOST_JOBS} jobs already. Remove some with `nanobot cron remove`.")
            while book.get(job.id) is not None:
                job.id = secrets.token_hex(4)
            book.entries.append(job)
            return deepcopy(job)

        return self._edit(add)

    def list_jobs(self, include_disabled: bool = False) -> list[CronJob]:
        """The jobs, those first that run first. Raises StorageError where the file was never readable."""
        jobs = [job for job in deepcopy(self._fresh().jobs) if job.enabled or include_disabled]
        return sorted(jobs, key=lambda job: (job.state.next_run_at_ms is None, job.state.next_run_at_ms or 0))

    def get_job(self, job_id: str) -> CronJob | None:
        """The job of that id."""
        return deepcopy(self._fresh().get(job_id))

    def unreadable(self) -> list[str]:
        """What stands in the file and is no job, each in a sentence."""
        return [entry.reason for entry in self._fresh().unreadable]

    def remove_job(self, job_id: str) -> bool:
        """Take a job away; False where there is none."""

        def remove(book: Book) -> bool:
            job = book.get(job_id)
            if job is not None:
                book.remove(job)
            return job is not None

        return self._edit(remove)

    def enable_job(self, job_id: str, enabled: bool = True) -> CronJob | None:
        """Switch a job on or off; None where there is none. Instants that pass while it is off are nobody's."""

        def enable(book: Book) -> CronJob | None:
            job = book.get(job_id)
            if job is None:
                return None
            now = self._now_ms()
            if enabled and not job.enabled:
                job.state.next_run_at_ms = self._first_instant(job, now)
            elif not enabled:
                job.state.next_run_at_ms = job.state.run_requested_at_ms = None
            job.enabled, job.updated_at_ms = enabled, now
            return deepcopy(job)

        return self._edit(enable)

    def request_run(self, job_id: str) -> bool:
        """Have a job run now by whoever serves the store, within seconds; False where there is none."""

        def request(book: Book) -> bool:
            job = book.get(job_id)
            if job is not None:
                job.state.run_requested_at_ms = self._now_ms()
            return job is not None

        return self._edit(request)

    def next_instants(self, job: CronJob, count: int = 3) -> list[int]:
        """When it runs next, the planned instant first; nothing where it is switched off."""
        first = job.state.next_run_at_ms
        if not job.enabled or first is None:
            return []
        zone = job_zone(job, self.timezone)
        return [first, *islice(instants(job.schedule, first, zone=zone, anchor_ms=first), count - 1)]

    def history(self, job_id: str | None = None) -> list[HistoryRow]:
        """What became of due instants, the oldest first. Raises StorageError."""
        try:
            return self._store.history.rows(job_id)
        except OSError as error:
            raise StorageError(f"{self._store.history.path} cannot be read: {error.strerror}.") from error

    def adopt(self, old: Path) -> None:
        """Take over the store from where earlier releases kept it, once. Raises StorageError."""
        self._store.adopt(old)

    def is_served(self) -> bool:
        """Whether some process, this one perhaps, runs the jobs when they are due."""
        return self._leases.is_served()

    # -- the clockwork ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Run jobs when they are due, until `stop` or `close`. What was missed meanwhile is settled at once."""
        if self._task is not None:
            return
        self._leases = Leases(self._store.locks)
        self._loop, self._wake, self._looked = asyncio.get_running_loop(), asyncio.Event(), False
        self._ticked_s = self._clock.monotonic()
        await finish(asyncio.to_thread(self._take_locks))
        self._task = asyncio.create_task(self._serve(), name="cron")

    def stop(self) -> None:
        """Stop at once. A run that is cut off stays leased; the next start settles it."""
        lives = {life for life in (*self._runs, self._task) if life is not None and not life.done()}
        self._task, self._ticked_s = None, None
        leases, left = self._leases, {*lives}

        def gone(life: asyncio.Task[None]) -> None:
            left.discard(life)
            if not left:
                leases.close()

        for life in lives:
            life.add_done_callback(gone)
            life.cancel()
        if not lives:
            leases.close()

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
        jobs = self._book.jobs if self._book is not None else []
        with suppress(StorageError):
            jobs = self._fresh().jobs
        planned = [job.state.next_run_at_ms for job in jobs if job.enabled and job.state.next_run_at_ms is not None]
        return {
            "enabled": self._task is not None,
            "jobs": len(jobs),
            "next_wake_at_ms": min(planned, default=None),
            "tick_age_s": self.tick_age_s,
            "running": len(self._running),
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

        def lease(book: Book, rows: list[HistoryRow]) -> tuple[CronJob, Due] | None:
            job = book.get(job_id)
            if job is None or not (job.enabled or force):
                return None
            if job.state.running is not None:
                if self._is_at_work(job, job.state.running):
                    return None
                self._ended(job, job.state.running, _Ended("error", _KILLED), rows)
            now = self._now_ms()
            return self._leased(job, Due(job.id, now, now, manual=True))

        begun = await finish(asyncio.to_thread(self._own_change, lease))
        if begun is None:
            return False
        try:
            await self._begin(*begun)
        finally:
            if self._task is None and not self._runs:
                self._leases.close()
        return True

    async def tick(self) -> float | None:
        """Look at the clock and the file; begin what is due. Seconds until the next instant; None where none is."""
        self._ticked_s = self._clock.monotonic()
        if self.on_job is None:
            return None
        if self._has_work():
            for job, due in await finish(asyncio.to_thread(self._own_change, self._settle)):
                self._begin(job, due)
        waits = [job.state.next_run_at_ms for job in self._waiting() if job.state.next_run_at_ms is not None]
        return max(min(waits) - self._now_ms(), 0) / 1000 if waits else None

    async def settled(self) -> None:
        """Wait until every run that is under way has ended."""
        while self._runs:
            await asyncio.wait({*self._runs})

    async def _serve(self) -> None:
        while True:
            if not self._leases.complete:
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
            self._leases.open()
            self._leases.serve()

    # -- a round ---------------------------------------------------------------------------------------------------

    def _has_work(self) -> bool:
        """Whether a round may change anything."""
        monotonic_s = self._clock.monotonic()
        skew_s = self._clock.now().timestamp() - monotonic_s
        stepped, self._skew_s = abs(skew_s - self._skew_s) > _STEP_S, skew_s
        if not self._looked or stepped or self._store.stamp() != self._stamp:
            return not self._ahead or self._may_try_again(monotonic_s) or self._is_any_due()
        if self._ahead and self._may_try_again(monotonic_s):
            return True
        return self._is_any_due() or any(
            job.state.running is not None and not self._is_at_work(job, job.state.running) for job in self._jobs()
        )

    def _may_try_again(self, monotonic_s: float) -> bool:
        return monotonic_s - self._tried_s >= _AGAIN_S

    def _is_any_due(self) -> bool:
        now = self._now_ms()
        return any(
            job.state.run_requested_at_ms is not None or (job.state.next_run_at_ms or now + 1) <= now
            for job in self._waiting()
        )

    def _jobs(self) -> list[CronJob]:
        return self._book.jobs if self._book is not None else []

    def _waiting(self) -> list[CronJob]:
        return [job for job in self._jobs() if job.state.running is None and job.id not in self._refused]

    def _settle(self, book: Book, rows: list[HistoryRow]) -> list[tuple[CronJob, Due]]:
        """Judge every job; what is to be run is leased."""
        self._looked, self._refused = True, set()
        begun = []
        for job in book.jobs:
            try:
                found = self._settle_job(job, rows)
            except CronError as error:
                self._refused.add(job.id)
                job.state.last_status, job.state.last_error = "error", str(error)
                continue
            if found is not None:
                begun.append(found)
        return begun

    def _settle_job(self, job: CronJob, rows: list[HistoryRow]) -> tuple[CronJob, Due] | None:
        state, now = job.state, self._now_ms()
        if job.id in self._running:
            return None
        if state.running is not None:
            if self._is_at_work(job, state.running):
                return None
            if (again := self._take_over(job, state.running, rows)) is not None:
                return again
        if state.run_requested_at_ms is not None:
            state.run_requested_at_ms = None
            return self._leased(job, Due(job.id, now, now, manual=True))
        state.next_run_at_ms = plan(job, now, self.timezone)
        if state.next_run_at_ms is None:
            if job.enabled and job.schedule.kind == "at" and job.is_ours:
                at, never = job.schedule.at_ms or 0, "its time was over before anybody waited for it"
                self._pass(job, [] if state.last_due_at_ms == at else [Passed(at, at, 1, never)], rows)
                job.enabled = False
            return None
        if state.next_run_at_ms > now:
            return None
        verdict = judge(job, now, self.timezone)
        self._pass(job, verdict.passed, rows)
        state.next_run_at_ms = verdict.next_ms
        if verdict.run_ms is None:
            job.enabled = job.enabled and job.schedule.kind != "at"
            return None
        state.last_due_at_ms = verdict.run_ms
        return self._leased(job, Due(job.id, verdict.run_ms, now, verdict.late_ms, verdict.missed))

    def _pass(self, job: CronJob, passed: list[Passed] | tuple[Passed, ...], rows: list[HistoryRow]) -> None:
        for one in passed:
            row: HistoryRow = {
                "jobId": job.id,
                "name": job.name,
                "dueAtMs": one.first_ms,
                "outcome": "skipped",
                "trigger": "schedule",
                "reason": one.reason,
            }
            if one.count > 1:
                row["untilMs"], row["count"] = one.last_ms, one.count
            rows.append(row)
            job.state.last_due_at_ms = one.last_ms
            job.state.last_status, job.state.last_error = "skipped", one.reason
            self._remember(job, RunRecord(one.last_ms, "skipped", 0, one.reason))

    def _leased(self, job: CronJob, due: Due) -> tuple[CronJob, Due]:
        with suppress(OSError):
            self._leases.open()
        lease = Lease(due.at_ms, due.started_ms, self._leases.holder, due.attempt, due.manual, due.late_ms, due.missed)
        before = deepcopy(job)
        job.state.running = self._running[job.id] = lease
        return before, due

    def _is_at_work(self, job: CronJob, lease: Lease) -> bool:
        if lease.holder == self._leases.holder:
            return job.id in self._running
        return job.id in self._running or self._leases.is_alive(lease.holder)

    def _take_over(self, job: CronJob, lease: Lease, rows: list[HistoryRow]) -> tuple[CronJob, Due] | None:
        """The holder of this lease is gone: settle it, or run it again where nobody else will."""
        with suppress(OSError):
            for row in reversed(self._store.history.rows(job.id)):
                if row["dueAtMs"] == lease.due_ms and row["outcome"] != "skipped":  # it ended, and died over the word
                    status: Status = "ok" if row["outcome"] == "ran" else "error"
                    self._ended(job, lease, _Ended(status, row.get("reason")), [])
                    return None
        due = Due(job.id, lease.due_ms, self._now_ms(), lease.late_ms, lease.missed, lease.manual, lease.attempt + 1)
        if self._was_begun is not None and lease.attempt < _ATTEMPTS and not self._was_begun(deepcopy(job), due):
            late_ms = due.started_ms - due.at_ms
            return self._leased(job, replace(due, late_ms=late_ms if late_ms > GRACE_MS else 0))
        self._ended(job, lease, _Ended("error", _KILLED), rows)
        return None

    # -- a run -----------------------------------------------------------------------------------------------------

    def _begin(self, job: CronJob, due: Due) -> "asyncio.Task[None]":
        run = asyncio.create_task(self._run(job, due), name=due.run_id)
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        return run

    async def _run(self, job: CronJob, due: Due) -> None:
        began_s = self._clock.monotonic()
        try:
            try:
                ended = _Ended("ok", answer=await self._called(job, due))
            except JobSkippedError as skipped:
                ended = _Ended("skipped", str(skipped))
            except Exception as error:  # whatever a job's own code raises is how the run ended
                log.warning("The job %s (%s) failed.", job.name, job.id, exc_info=True)
                ended = _Ended("error", str(error) or type(error).__name__)
        except asyncio.CancelledError:
            self._running.pop(job.id, None)  # the lease stays in the file, for the next start to settle
            raise
        ended = replace(ended, duration_ms=round((self._clock.monotonic() - began_s) * 1000))
        await finish(asyncio.to_thread(self._finish, job, due, ended))

    def _called(self, job: CronJob, due: Due) -> Awaitable[str | None]:
        if self.on_job is None:
            raise JobSkippedError("nothing was handed in that runs jobs")
        try:
            inspect.signature(self.on_job).bind(job, due)
        except TypeError:
            return self.on_job(job)
        return self.on_job(job, due)

    def _finish(self, job: CronJob, due: Due, ended: _Ended) -> None:
        """Write down how a run ended. Never raises: what the disk refuses is kept in memory."""
        lease = self._running[job.id]

        def note(book: Book, rows: list[HistoryRow]) -> None:
            there = book.get(job.id)
            if there is None or there.state.running is None or there.state.running.holder != lease.holder:
                rows.append(_row(job, lease, ended))  # removed while it ran
            else:
                self._ended(there, lease, ended, rows, still_at_work=True)

        try:
            self._own_change(note)
        except (StorageError, CronError) as error:
            log.warning("How the job %s (%s) ended (%s) cannot be written: %s", job.name, job.id, ended.status, error)
        self._running.pop(job.id, None)
        self._nudge()

    def _ended(
        self,
        job: CronJob,
        lease: Lease,
        ended: _Ended,
        rows: list[HistoryRow],
        *,
        still_at_work: bool = False,
    ) -> None:
        state, now = job.state, self._now_ms()
        state.running = None
        state.last_run_at_ms, state.last_status, state.last_error = lease.started_ms, ended.status, ended.error
        self._remember(job, RunRecord(lease.started_ms, ended.status, ended.duration_ms or 0, ended.error))
        if ended.status == "ok" and job.payload.notify is Notify.ON_CHANGE and (ended.answer or "").strip():
            state.last_answer = fingerprint(ended.answer or "")
        rows.append(_row(job, lease, ended))
        if job.schedule.kind == "at" and not lease.manual:
            job.enabled, state.next_run_at_ms = False, None
        if still_at_work and job.enabled and (state.next_run_at_ms or now + 1) <= now:
            with suppress(CronError):
                status, error = state.last_status, state.last_error
                passed, state.next_run_at_ms = passed_until(job, now, self.timezone, _STILL_AT_WORK)
                self._pass(job, [passed], rows)
                state.last_status, state.last_error = status, error

    def _remember(self, job: CronJob, run: RunRecord) -> None:
        job.state.run_history = [*job.state.run_history, run][-RUNS_KEPT:]

    # -- the store -------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return to_ms(self._clock.now())

    def _first_instant(self, job: CronJob, now: int) -> int:
        zone = job_zone(job, self.timezone)
        first = next_instant(job.schedule, now, zone=zone, anchor_ms=job.created_at_ms or now)
        if first is None and job.schedule.kind == "at":
            raise CronError("That time is in the past. Give one that is still to come.")
        if first is None:
            raise CronError(f"{job.schedule.expr!r} never comes due any more. Give one that does.")
        return first

    def _edit(self, change: Callable[[Book], T]) -> T:
        """A person's change: on the disk, or not at all."""
        with self._store.held():
            book = self._caught_up(self._store.load())
            done = change(book)
            self._store.save(book)
            self._stamp = _UNKNOWN  # whatever it does to others is looked at in the next round
        self._nudge()
        return done

    def _fresh(self) -> Book:
        """The book as the file has it now; where that cannot be read, as it was when it last could."""
        stamp = self._store.stamp()
        if self._book is not None and stamp == self._stamp:
            return self._book
        try:
            loaded = self._caught_up(self._store.load())
        except StorageError:
            if self._book is None:
                raise
            return self._book
        if self._task is None and not self._ahead:
            self._book, self._stamp = loaded, stamp
        return loaded

    def _own_change(self, change: Callable[[Book, list[HistoryRow]], T]) -> T:
        """A change of the clockwork's own: on the disk; where that refuses, in memory, until it takes it."""
        with ExitStack() as holding:
            refused: StorageError | None = None
            self._tried_s = self._clock.monotonic()
            try:
                holding.enter_context(self._store.held())
                stamp = self._store.stamp()
                book = self._caught_up(self._store.load())
            except StoreBusyError:
                raise
            except StorageError as error:
                if self._book is None:
                    raise
                refused, stamp, book = error, self._store.stamp(), deepcopy(self._book)
            self._ahead = refused is not None
            rows: list[HistoryRow] = []
            done = change(book, rows)
            self._unwritten += rows
            try:
                self._store.note(self._unwritten)
                self._unwritten = []
                if refused is None:
                    left = Book([entry for entry in book.entries if not _is_over(entry)], book.raw)
                    self._store.save(left)
                    book, stamp = left, self._store.stamp()
            except StorageError as error:
                refused = refused or error
            self._book, self._stamp, self._ahead = book, stamp, refused is not None
            self._tell(str(refused) if refused is not None else self._trouble())
            return done

    def _caught_up(self, book: Book) -> Book:
        """What ran while the disk refused is put into what the file has."""
        for mine in self._jobs() if self._ahead else ():
            job = book.get(mine.id)
            if job is None or not _is_further(mine.state, job.state):
                continue
            job.state = deepcopy(mine.state)
            if job.schedule.kind == "at" and job.schedule.at_ms == mine.schedule.at_ms:
                job.enabled = mine.enabled
        return book

    def _trouble(self) -> str | None:
        """What is wrong with the entries of a file that can be read."""
        if self._book is None:
            return None
        wrong = [entry.reason for entry in self._book.unreadable]
        wrong += [f"{job.name} ({job.id}): {job.state.last_error}" for job in self._jobs() if job.id in self._refused]
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

    def _nudge(self) -> None:
        """Have the clockwork look at once; from any thread."""
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake.set)


def _row(job: CronJob, lease: Lease, ended: _Ended) -> HistoryRow:
    row: HistoryRow = {
        "jobId": job.id,
        "name": job.name,
        "dueAtMs": lease.due_ms,
        "outcome": _OUTCOMES[ended.status],
        "trigger": "manual" if lease.manual else "schedule",
        "runAtMs": lease.started_ms,
    }
    if ended.duration_ms is not None:
        row["durationMs"] = ended.duration_ms
    if lease.late_ms:
        row["lateMs"] = lease.late_ms
    if ended.error:
        row["reason"] = ended.error[:1000]
    return row


def _is_over(entry: object) -> bool:
    """Whether it is a one-shot that ran, and was to go then."""
    if not isinstance(entry, CronJob) or entry.schedule.kind != "at" or entry.enabled or not entry.delete_after_run:
        return False
    return entry.state.last_status == "ok" and entry.state.last_due_at_ms == entry.schedule.at_ms


def _is_further(mine: CronJobState, theirs: CronJobState) -> bool:
    """Whether more has been run here than there."""
    due, ran = (
        (mine.last_due_at_ms or 0, theirs.last_due_at_ms or 0),
        (mine.last_run_at_ms or 0, theirs.last_run_at_ms or 0),
    )
    return due[0] > due[1] or ran[0] > ran[1]
