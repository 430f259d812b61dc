"""The jobs of one store, as people make, list and change them. Needs no event loop, and may be called in any thread."""

import secrets
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TypeVar

from nanobot.cron.history import HistoryRow
from nanobot.cron.judging import DAY_MS, job_zone
from nanobot.cron.keeper import Keeper
from nanobot.cron.rounds import Rounds
from nanobot.cron.schedule import check, instants, next_instant
from nanobot.cron.store import Book, CronStore
from nanobot.cron.targets import Targets, check_target
from nanobot.cron.types import CronError, CronJob, CronPayload, CronSchedule, Misfire, Notify
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance

T = TypeVar("T")

_MOST_JOBS = 1_000


class JobEdits:
    """What a person does with jobs. Raises CronError for what cannot be, StorageError where disk or file say no."""

    def __init__(self, store: CronStore, keeper: Keeper, rounds: Rounds, targets: Targets | None) -> None:
        self._store = store
        self._keeper = keeper
        self._rounds = rounds
        self._targets = targets

    @property
    def timezone(self) -> str | None:
        """The user's zone, for jobs without one of their own."""
        return self._rounds.timezone

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
        provenance: Provenance = Provenance.OWNER,
        asked_by: str | None = None,
        misfire: Misfire = Misfire.RUN_ONCE,
        misfire_within_s: float | None = None,
    ) -> CronJob:
        """Make a job. Nothing is written where it could never run, or never reach its chat."""
        if not message.strip():
            raise CronError("A job needs a message: what is to be done or said when it is due.")
        check(schedule)
        if notify in (Notify.ON_CHANGE, Notify.ON_ALERT) and not deliver:
            raise CronError(
                f"notify {notify} says when a chat hears of the job, and it delivers to none. Use --deliver."
            )
        if misfire_within_s is not None and misfire is not Misfire.RUN_IF_WITHIN:
            raise CronError("How late a run may be (--within) counts for `--misfire run_if_within` alone.")
        check_target(deliver, channel, to, thread_id, self._targets)
        now = self._rounds.now_ms()
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
                provenance=provenance,
                asked_by=asked_by,
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
            now = self._rounds.now_ms()
            if enabled and not job.enabled:
                ran = job.state.last_due_at_ms or 0  # not again where the clock was set back since
                job.state.next_run_at_ms = self._first_instant(job, ran if now < ran < now + DAY_MS else now)
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
                job.state.run_requested_at_ms = self._rounds.now_ms()
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

    def _first_instant(self, job: CronJob, now: int) -> int:
        zone = job_zone(job, self.timezone)
        first = next_instant(job.schedule, now, zone=zone, anchor_ms=job.created_at_ms or now)
        if first is None and job.schedule.kind == "at":
            raise CronError("That time is in the past. Give one that is still to come.")
        if first is None:
            raise CronError(f"{job.schedule.expr!r} never comes due any more. Give one that does.")
        return first

    def _edit(self, change: Callable[[Book], T]) -> T:
        done = self._keeper.edit(change)
        self._nudge()
        return done

    def _fresh(self) -> Book:
        return self._keeper.fresh(owned=not self._is_serving)

    @property
    def _is_serving(self) -> bool:
        """Whether a clockwork goes by the book at this very moment, and reads it itself."""
        return False

    def _nudge(self) -> None:
        """Something was edited: whoever runs jobs here looks at once. From any thread."""
