"""CronService: the jobs of one store, each run once when due, across processes.

Operations on jobs block and are thread-safe; they need no event loop. `start`, `run_job` and `close` do. A round claims
the due runs in the database before they start; a run whose process died is settled by the next round of another one.
Between rounds, clock and file are checked every TICK_S seconds.
"""

import asyncio
import hashlib
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from copy import deepcopy
from dataclasses import replace
from datetime import tzinfo
from itertools import islice
from pathlib import Path
from typing import Any

from nanobot.bus.events import Address
from nanobot.cron.schedule import check_schedule, instants, job_zone, job_zone_or_host, next_instant
from nanobot.cron.scheduler import ClaimedRun, EndedRun, Scheduler, WasStarted
from nanobot.cron.store import CronStore, JobFile, Runs
from nanobot.cron.types import (
    DAY_MS,
    CronError,
    CronJob,
    CronPayload,
    CronSchedule,
    JobFailedError,
    JobSkippedError,
    Misfire,
    Notify,
    Run,
)
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import Provenance
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.storage_error import error_text
from nanobot.utils.text import nearest

log = logging.getLogger(__name__)

OnJob = Callable[..., Awaitable[str | None]]
"""Runs a job: `on_job(job, due)` or `on_job(job)`. Returns the answer; raises for a failure, or JobSkippedError if the
job was not run."""

TICK_S = 2.0
"""How often clock and file are checked. The service is unhealthy after three of these without a tick."""
_CLOCK_STEP_S = 1.0
_MAX_JOBS = 1_000
_NAME_CHARS = 30
_MAX_NAMED = 20
"""Jobs named in an error."""
_PLACEHOLDER_TARGETS = frozenset({"", "last", "default", "none", "null"})


class CronService:
    """The jobs of a store, and their execution.

    Operations on jobs raise CronError for invalid input and StorageError if the store cannot be used. `timezone` is the
    user's, for jobs without one. `channels` are those that a job may deliver to, and whether they are enabled; None for
    any. `was_started` tells whether the agent received a run whose process died and therefore resumes it itself; other
    runs are started again. The default assumes that it did. The runs are in the database of `data_dir`, by default the
    data folder of the config in use.
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
        data_dir: Path | None = None,
    ) -> None:
        self.on_job = on_job
        self.timezone = timezone
        """The user's time zone, for jobs without one."""
        self.problem: str | None = None
        """What keeps jobs from running, for the health check."""
        self._channels = channels
        self._clock = clock or SystemClock()
        self._store = CronStore(Path(store_path), data_dir)
        self._scheduler = Scheduler(self._store, self._clock, timezone, was_started)
        self._runs: set[asyncio.Task[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._unrecorded: list[tuple[ClaimedRun, EndedRun]] = []
        """Ended runs that are not recorded yet."""
        self._recording = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._has_ticked = False
        self._skew_s = 0.0
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
        with self._edit() as (job_file, _, _):
            _add(job_file, job)
        return deepcopy(job)

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
        """Record what a running job is about to send, so that `settle_reminder` can send it again. False if there is no
        job.
        """
        with self._edit() as (job_file, runs, now):
            return job_file.get(job_id) is not None and runs.set_delivered(job_id, now, text)

    def last_delivered(self, chat: Address) -> CronJob | None:
        """The job whose reminder in this chat is the newest that nobody has answered. Terminals count as one chat."""

        def is_here(payload: CronPayload) -> bool:
            if chat.channel == "cli":
                return payload.channel in (None, "", "cli")
            is_same_chat = (payload.channel, payload.to) == (chat.channel, chat.chat_id)
            return is_same_chat and payload.thread_id in (None, chat.thread_id)

        jobs = [job for job in self._read().jobs if job.runs.delivered_ms and is_here(job.payload)]
        return max(jobs, key=lambda job: job.runs.delivered_ms, default=None)

    def settle_reminder(self, job_id: str, snooze_until_ms: int | None = None) -> bool:
        """Settle what a job has delivered: it is not tried again, and with a time it is sent again then, as a new job.

        False if it has delivered nothing, or that was settled before.
        """
        with self._edit() as (job_file, runs, now):
            job = job_file.get(job_id)
            if job is None or (sent := job.runs.delivered) is None:
                return False
            again_id = hashlib.sha256(f"{sent.message_id}:{sent.delivered_ms}".encode()).hexdigest()[:8]
            if snooze_until_ms is not None and job_file.get(again_id) is None:  # there is one after a crash right here
                again = CronJob(
                    again_id,
                    job.name,
                    schedule=CronSchedule("at", at_ms=snooze_until_ms),
                    payload=replace(job.payload, message=sent.delivered or "", verbatim=True),
                    created_at_ms=now,
                    updated_at_ms=now,
                    delete_after_run=True,
                )
                again.state.next_run_at_ms = self._first_instant(again, now)
                _add(job_file, again)
            runs.clear_delivered(job_id)
            runs.drop_waiting(job_id, only_retry=True)
            if job.delete_after_run and job.schedule.kind == "at" and not job.enabled:
                job_file.remove(job)
        return True

    def list_jobs(self, include_disabled: bool = False) -> list[CronJob]:
        """The jobs, next to run first, without finished one-shots. Raises StorageError if the file is unreadable."""

        def is_listed(job: CronJob) -> bool:
            return job.enabled or job.runs.retry is not None or (include_disabled and not job.is_over)

        jobs = [job for job in self._read().jobs if is_listed(job)]
        return sorted(jobs, key=lambda job: (job.wakes_at_ms is None, job.wakes_at_ms or 0))

    def get_job(self, job_id: str) -> CronJob | None:
        return self._read().get(job_id)

    def find_job(self, wanted: str, chat: str = "") -> CronJob:
        """The job of this id, or the only one of this name, ignoring case. `chat`, such as `telegram:123`, restricts it
        to the jobs of that chat. Raises CronError.
        """
        jobs = [job for job in self.list_jobs(include_disabled=True) if job.is_of_chat(chat)]
        by_id = [job for job in jobs if job.id == wanted]
        found = by_id or [job for job in jobs if job.name.casefold() == wanted.casefold()]
        if len(found) > 1:
            raise CronError(f"Several jobs are named {wanted!r}: {', '.join(job.id for job in found)}. Give the id.")
        if not found:
            near = nearest(wanted, [job.name for job in jobs], 1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            known = ", ".join(f'{job.id} "{job.name}"' for job in jobs[:_MAX_NAMED]) or "none"
            raise CronError(f"There is no job {wanted!r}.{hint} Jobs: {known}.")
        return found[0]

    def zone_of(self, job: CronJob) -> tzinfo:
        """The zone to show a job's times in."""
        return job_zone_or_host(job, self.timezone)

    def unreadable(self) -> list[str]:
        """A sentence for each invalid entry of the file."""
        return self._read().unreadable

    def remove_job(self, job_id: str) -> bool:
        """Remove a job; False if there is none."""
        with self._edit() as (job_file, _, _):
            if (job := job_file.get(job_id)) is not None:
                job_file.remove(job)
        return job is not None

    def enable_job(self, job_id: str, enabled: bool = True) -> CronJob | None:
        """Enable or disable a job; None if there is none. Runs missed while disabled are not made up for."""
        with self._edit() as (job_file, runs, now):
            if (job := job_file.get(job_id)) is None:
                return None
            if enabled and not job.enabled:
                last_due_ms = job.runs.last_due_ms or 0  # do not repeat it if the clock was set back
                after_ms = last_due_ms if now < last_due_ms < now + DAY_MS else now
                job.state.next_run_at_ms = self._first_instant(job, after_ms)
            elif not enabled:
                job.state.next_run_at_ms = None
                runs.drop_waiting(job_id)
            job.enabled, job.updated_at_ms = enabled, now
        return job

    def change_job(
        self, job_id: str, *, name: str | None = None, message: str | None = None, schedule: CronSchedule | None = None
    ) -> CronJob | None:
        """Change what a job does and when; what is None stays. None if there is none. Raises CronError if it could
        never run.
        """
        if message is not None:
            _check_message(message)
        if schedule is not None:
            check_schedule(schedule)
        with self._edit() as (job_file, runs, now):
            if (job := job_file.get(job_id)) is None:
                return None
            if schedule is not None:
                first = self._first_instant(replace(job, schedule=schedule), now)
                job.schedule, job.delete_after_run = replace(schedule), schedule.kind == "at"
                job.state.next_run_at_ms = first if job.enabled else None
                runs.drop_waiting(job_id, only_retry=True)
            job.payload.message = message or job.payload.message
            if name is not None:
                job.name = " ".join(name.split()) or _first_words(job.payload.message)
            job.updated_at_ms = now
        return job

    def request_run(self, job_id: str) -> bool:
        """Ask the process that serves the store to run a job, within seconds; False if there is none."""
        with self._edit() as (job_file, runs, now):
            if (job := job_file.get(job_id)) is None:
                return False
            at_ms = runs.free_instant(job_id, now)
            runs.put(Run(job_id, at_ms, at_ms, manual=True, name=job.name, outcome="waiting"))
        return True

    def next_instants(self, job: CronJob) -> list[int]:
        """The next three due instants in milliseconds; empty if it is disabled."""
        first = job.state.next_run_at_ms
        if not job.enabled or first is None:
            return []
        zone = job_zone(job, self.timezone)
        return [first, *islice(instants(job.schedule, first, zone=zone, anchor_ms=first), 2)]

    def history(self, job_id: str | None = None) -> list[Run]:
        """Past runs, oldest first. Raises StorageError."""
        return self._store.history(job_id)

    def adopt(self, old: Path) -> None:
        """Move the store from its location in earlier releases, once. Raises StorageError."""
        self._store.adopt(old)

    @contextmanager
    def _edit(self) -> Iterator[tuple[JobFile, Runs, int]]:
        """The jobs and runs to change, and the time. Wakes the scheduler up."""
        now = self._scheduler.now_ms()
        with self._store.edit(now) as (job_file, runs):
            yield job_file, runs, now
        self._wake_up()

    def _first_instant(self, job: CronJob, now: int) -> int:
        zone = job_zone(job, self.timezone)
        first = next_instant(job.schedule, now, zone=zone, anchor_ms=job.created_at_ms or now)
        if first is None and job.schedule.kind == "at":
            raise CronError("That time is in the past. Give a future time.")
        if first is None:
            raise CronError(f"{job.schedule.expr!r} never matches again. Give one that does.")
        return first

    def _read(self) -> JobFile:
        """The jobs as they are now; those last known if the file cannot be read."""
        try:
            return self._store.read(self._scheduler.now_ms())
        except StorageError:
            if self._store.job_file is None:
                raise
            return deepcopy(self._store.job_file)

    # -- lifecycle -------------------------------------------------------------------------------------------------

    def serve_only(self, served: Callable[[CronJob], bool]) -> None:
        """From the next `start` on, run only these jobs; another process runs the others."""
        self._scheduler.only = served

    def is_served(self) -> bool:
        """Whether any process, including this one, runs the jobs when due."""
        return self._store.is_served(by_us=self._task is not None)

    def is_running(self, job_id: str) -> bool:
        """Whether this job is running, here or in another process. Raises StorageError."""
        job = self.get_job(job_id)
        return job is not None and self._scheduler.is_running(job)

    async def start(self) -> None:
        """Run jobs when due, until `stop` or `close`. Runs missed meanwhile are settled at once."""
        if self._task is not None:
            return
        self._loop, self._wake, self._has_ticked = asyncio.get_running_loop(), asyncio.Event(), False
        self._recording = asyncio.Lock()
        self._ticked_s = self._clock.monotonic()
        if self.on_job is not None and self._scheduler.only is None:
            with suppress(StorageError):  # the first tick reports it
                await finish(asyncio.to_thread(self._store.serve))
        self._task = asyncio.create_task(self._serve(), name="cron")

    def stop(self) -> None:
        """Stop at once. The next start settles interrupted runs."""
        for task in (*self._runs, self._task):
            if task is not None:
                task.cancel()
        self._task, self._ticked_s = None, None

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
        self._store.lease.release()

    def status(self) -> dict[str, Any]:
        """`enabled` (is it running), `jobs`, `next_wake_at_ms`; for health `tick_age_s`, `running`, `problem`."""
        jobs: list[CronJob] = []
        with suppress(StorageError):
            jobs = self._read().jobs
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
        claimed = await self._claim(lambda: self._scheduler.claim_manually(job_id, force=force))
        try:
            for claimed_run in claimed:
                await self._start_run(claimed_run)
        finally:
            if self._task is None and not self._runs:
                self._store.lease.release()
        return bool(claimed)

    async def tick(self) -> float | None:
        """Check clock and file and start due jobs. Returns seconds until the next due instant, or None."""
        self._ticked_s = self._clock.monotonic()
        if self.on_job is None:
            return None
        if self._unrecorded:
            await self._record_ended()
        if self._needs_round(self._scheduler.now_ms()):
            for claimed_run in await self._claim(self._scheduler.run_round):
                self._start_run(claimed_run)
            self._has_ticked = True
        waits = self._waits_until()
        return max(min(waits) - self._scheduler.now_ms(), 0) / 1000 if waits else None

    async def wait_for_runs(self) -> None:
        while self._runs:
            await asyncio.wait({*self._runs})

    async def _serve(self) -> None:
        while True:
            wait_s = None
            try:
                wait_s = await self.tick()
            except StorageError as error:
                self._report_problem(str(error))
            except Exception as error:  # a failed round must not stop the next one
                if self.problem is None:
                    log.exception("A scheduling round failed.")
                self._report_problem(f"A scheduling round failed with {type(error).__name__}: {error_text(error)}")
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if wait_s is None else min(wait_s, TICK_S)):
                    await self._wake.wait()
            self._wake.clear()

    def _needs_round(self, now: int) -> bool:
        skew_s = self._clock.now().timestamp() - self._clock.monotonic()
        clock_stepped, self._skew_s = abs(skew_s - self._skew_s) > _CLOCK_STEP_S, skew_s
        if not self._has_ticked or clock_stepped or self._store.is_behind():
            return True
        is_any_due = any(at_ms <= now for at_ms in self._waits_until())
        return is_any_due or any(
            job.runs.running is not None and not self._scheduler.is_running(job) for job in self._store.jobs
        )

    def _waits_until(self) -> list[int]:
        """When the jobs that do not run are due."""
        scheduler = self._scheduler
        return [
            job.wakes_at_ms
            for job in self._store.jobs
            if job.runs.running is None
            and job.wakes_at_ms is not None
            and scheduler.serves(job)
            and job.id not in scheduler.failed
        ]

    async def _claim(self, claim: Callable[[], list[ClaimedRun]]) -> list[ClaimedRun]:
        """Claim runs in a thread. If cancelled, they are not started; the next round settles them."""
        claiming = asyncio.ensure_future(asyncio.to_thread(claim))
        try:
            claimed = await finish(claiming)
        except asyncio.CancelledError:
            for job, _ in claiming.result() if claiming.exception() is None else ():
                self._scheduler.running.discard(job.id)
            raise
        self._report_problem(self._store.problem or self._invalid_entries())
        return claimed

    # -- a run -----------------------------------------------------------------------------------------------------

    def _start_run(self, claimed: ClaimedRun) -> "asyncio.Task[None]":
        def ended(task: "asyncio.Task[None]") -> None:
            self._runs.discard(task)
            if task.cancelled():  # maybe before its first step; the next round settles it
                self._scheduler.running.discard(claimed[0].id)

        task = asyncio.create_task(self._run(claimed), name=claimed[1].run_id)
        self._runs.add(task)
        task.add_done_callback(ended)
        return task

    async def _run(self, claimed: ClaimedRun) -> None:
        job, started_s = claimed[0], self._clock.monotonic()
        try:
            if self.on_job is None:
                raise JobSkippedError("this service has no job handler")
            arguments: tuple[object, ...] = claimed
            try:
                inspect.signature(self.on_job).bind(*arguments)
            except TypeError:
                arguments = (job,)
            ended = EndedRun("ran", answer=await self.on_job(*arguments))
        except JobSkippedError as skipped:
            ended = EndedRun("skipped", str(skipped))
        except Exception as error:  # any error of a job is the result of its run
            seconds, is_unexpected = self._clock.monotonic() - started_s, not isinstance(error, NanobotError)
            words = "job %r (%s) failed after %.1f s: %s"
            log.warning(words, job.name, job.id, seconds, error_text(error), exc_info=is_unexpected)
            retry_in_s = error.retry_in_s if isinstance(error, JobFailedError) else None
            ended = EndedRun("failed", error_text(error), retry_in_s=retry_in_s)
        ended = replace(ended, duration_ms=round((self._clock.monotonic() - started_s) * 1000))
        self._unrecorded.append((claimed, ended))
        await finish(self._record_ended())

    async def _record_ended(self) -> None:
        """Record the runs that have ended, in one write."""
        async with self._recording:
            batch, self._unrecorded = self._unrecorded, []
            if not batch:
                return
            try:
                await asyncio.to_thread(self._scheduler.record, batch)
            except StorageError as error:  # the next tick tries again; until then these jobs count as running
                self._unrecorded = [*batch, *self._unrecorded]
                self._report_problem(str(error))
                return
            for (job, _), _ in batch:
                self._scheduler.running.discard(job.id)
        self._report_problem(self._store.problem or self._invalid_entries())
        self._wake_up()

    # -- problems ----------------------------------------------------------------------------------------------------

    def _invalid_entries(self) -> str | None:
        problems = list(self._store.job_file.unreadable) if self._store.job_file is not None else []
        failed = self._scheduler.failed
        problems += [f"{job.name} ({job.id}): {failed[job.id]}" for job in self._store.jobs if job.id in failed]
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


def _add(job_file: JobFile, job: CronJob) -> None:
    if len(job_file.entries) >= _MAX_JOBS:
        raise CronError(f"There are already {_MAX_JOBS} jobs. Remove some with `nanobot cron remove`.")
    while not job.id or job_file.get(job.id) is not None:
        job.id = secrets.token_hex(4)
    job_file.entries.append(job)


def _check_message(message: str) -> None:
    if not message.strip():
        raise CronError("A job needs a message: what to do or say when it runs.")


def _first_words(message: str) -> str:
    """The beginning of a message, as the name of its job."""
    text = " ".join(message.split())
    return text if len(text) <= _NAME_CHARS else text[: _NAME_CHARS + 1].rpartition(" ")[0] or text[:_NAME_CHARS]
