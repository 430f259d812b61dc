"""Adding, listing and changing the jobs of a store. Thread-safe, no event loop."""

import secrets
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from nanobot.bus.events import Address
from nanobot.cron.history import HistoryRow
from nanobot.cron.schedule import check_schedule, instants, job_zone, next_instant
from nanobot.cron.scheduler import Scheduler
from nanobot.cron.store import CronStore, JobFile
from nanobot.cron.types import DAY_MS, CronError, CronJob, CronPayload, CronSchedule, Delivered, Misfire, Notify
from nanobot.messages.types import Provenance
from nanobot.utils.text import nearest

_PLACEHOLDER_TARGETS = frozenset({"", "last", "default", "none", "null"})


T = TypeVar("T")

_MAX_JOBS = 1_000
_NAME_CHARS = 30


class JobEdits:
    """Operations on jobs. They raise CronError for invalid input and StorageError if the store cannot be used."""

    def __init__(self, store: CronStore, scheduler: Scheduler, channels: Mapping[str, bool] | None) -> None:
        self._store = store
        self._scheduler = scheduler
        self._channels = channels

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

        def mark(job_file: JobFile) -> bool:
            if (job := job_file.get(job_id)) is not None:
                job.state.delivered = Delivered(self._scheduler.now_ms(), text)
            return job is not None

        return self._edit(mark)

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

        def enable(job_file: JobFile) -> CronJob | None:
            job = job_file.get(job_id)
            if job is None:
                return None
            now = self._scheduler.now_ms()
            if enabled and not job.enabled:
                last_run_ms = job.state.last_due_at_ms or 0  # do not repeat it if the clock was set back
                job.state.next_run_at_ms = self._first_instant(
                    job, last_run_ms if now < last_run_ms < now + DAY_MS else now
                )
            elif not enabled:
                job.state.next_run_at_ms = job.state.run_requested_at_ms = job.state.retry = None
            job.enabled, job.updated_at_ms = enabled, now
            return deepcopy(job)

        return self._edit(enable)

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

        def change(job_file: JobFile) -> CronJob | None:
            job = job_file.get(job_id)
            if job is None:
                return None
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
            return deepcopy(job)

        return self._edit(change)

    def request_run(self, job_id: str) -> bool:
        """Ask the process that serves the store to run a job, within seconds; False if there is none."""

        def request(job_file: JobFile) -> bool:
            job = job_file.get(job_id)
            if job is not None:
                job.state.run_requested_at_ms = self._scheduler.now_ms()
            return job is not None

        return self._edit(request)

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

    def _edit(self, change: Callable[[JobFile], T]) -> T:
        result = self._store.edit(change)
        self._wake_up()
        return result

    def _fresh(self) -> JobFile:
        return self._store.fresh(may_replace=not self._is_serving)

    @property
    def _is_serving(self) -> bool:
        """Whether this service is running and reads the file itself."""
        return False

    def _wake_up(self) -> None:
        """Called after an edit, to check for due jobs at once. Thread-safe."""


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
