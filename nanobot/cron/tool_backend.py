"""The jobs of a chat as text: what the `cron` tool, `/cron` and the answers to reminders do."""

from collections.abc import Callable, Sequence

from nanobot.cron.format import format_job, format_next, format_schedule, format_time, parse_schedule, parse_snooze
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronError, CronJob, CronPayload, JobSpec, Notify
from nanobot.utils.text import format_when

IsAllowed = Callable[[str, str, str], bool]
"""Called with channel, sender id and chat id: whether the sender may talk to the bot there."""

NEEDS_GATEWAY = (
    "No gateway is running: jobs run once `nanobot gateway` is started. Those that do not deliver to a chat app also "
    "run while a terminal chat is open."
)

_SETTLED = "That reminder was answered before, or its job was removed."


class CronToolBackend:
    """Job operations for the agent. Methods block, return text, and raise NanobotError.

    `chat`, such as `telegram:123`, restricts them to the jobs of that chat. Results include a note if no process runs
    the jobs.
    """

    def __init__(self, service: CronService, may_speak: IsAllowed | None = None) -> None:
        """The sender is stored with a job as `asked_by` only if `may_speak` allows them."""
        self._service = service
        self._may_speak = may_speak or (lambda channel, sender_id, chat_id: False)

    def add(self, spec: JobSpec) -> str:
        """Add a job; return it with its next three runs."""
        schedule = parse_schedule(
            every_seconds=spec.every_seconds,
            cron_expr=spec.cron_expr,
            at=spec.at,
            tz=spec.tz,
            user_zone=self._service.timezone,
        )
        chat = spec.address
        is_known = spec.asked_by and chat and self._may_speak(chat.channel, spec.asked_by, chat.chat_id)
        payload = CronPayload(
            message=spec.message,
            deliver=spec.deliver,
            channel=chat.channel if chat else None,
            to=chat.chat_id if chat else None,
            thread_id=chat.thread_id if chat else None,
            session_key=spec.session_key,
            notify=Notify(spec.notify or Notify.ALWAYS),
            provenance=spec.provenance,
            asked_by=spec.asked_by if is_known else None,
        )
        job = CronJob("", spec.name or "", schedule=schedule, payload=payload, delete_after_run=schedule.kind == "at")
        return self._format_job(self._service.add(job))

    def count(self) -> int:
        """The number of jobs, disabled ones included."""
        return len(self._service.list_jobs(include_disabled=True))

    def list(self, chat: str = "") -> str:
        """A line per job: id, schedule, next and last run."""
        lines = [self._format_line(job) for job in self._jobs_of(chat)]
        if not lines:
            return "There are no jobs."
        return "\n".join([*lines, *(() if chat else self._service.unreadable()), *self._notes()])

    def remove(self, wanted: str, chat: str = "") -> str:
        job = self._find(wanted, chat)
        self._service.remove_job(job.id)
        return f"Job {job.id} is removed."

    def enable(self, wanted: str, enabled: bool, chat: str = "") -> str:
        job = self._find(wanted, chat)
        job = self._service.enable_job(job.id, enabled) or job
        return self._format_job(job) if enabled else f"Job {job.id} is disabled."

    def run(self, wanted: str, chat: str = "") -> str:
        """Request a run within seconds; does not wait for it."""
        job = self._find(wanted, chat)
        self._service.request_run(job.id)
        return "\n".join([f"Job {job.id} will be run within seconds.", *self._notes()])

    def settle_reminder(self, job_id: str, snooze: str | None, chat: str = "") -> str:
        """Settle the reminder that a job has delivered, or have it sent again after `10m` or at a time."""
        job = self._service.get_job(job_id)
        if job is None or not _belongs_to(job, chat):
            return _SETTLED
        zone = self._service.zone_of(job)
        until = parse_snooze(snooze, zone) if snooze else None
        if not self._service.settle_reminder(job_id, to_ms(until) if until else None):
            return _SETTLED
        return f"Snoozed until {format_when(until.astimezone(zone))}." if until else f"Done: {job.name}."

    def _jobs_of(self, chat: str) -> Sequence[CronJob]:
        jobs = self._service.list_jobs(include_disabled=True)
        return [job for job in jobs if _belongs_to(job, chat)]

    def _find(self, wanted: str, chat: str) -> CronJob:
        """The job with this id, or the only one with this name. Raises CronError."""
        found = [job for job in self._service.find_jobs(wanted) if _belongs_to(job, chat)]
        if len(found) > 1:
            raise CronError(f"Several jobs are named {wanted!r}: {', '.join(job.id for job in found)}. Give the id.")
        if not found:
            known = ", ".join(f'{job.id} "{job.name}"' for job in self._jobs_of(chat)[:20]) or "none"
            raise CronError(f"There is no job {wanted!r}. Jobs: {known}.")
        return found[0]

    def _format_job(self, job: CronJob) -> str:
        zone = self._service.zone_of(job)
        return "\n".join([format_job(job, zone, self._service.next_instants(job)), *self._notes()])

    def _format_line(self, job: CronJob) -> str:
        zone = self._service.zone_of(job)
        state = job.state
        parts = [f'{job.id} "{job.name}": {format_schedule(job.schedule, zone)}']
        if not job.enabled:
            parts.append("disabled")
        elif job.wakes_at_ms != job.schedule.at_ms:
            parts.append(f"next {format_next(job, zone)}")
        if state.last_run_at_ms is not None:
            error = f" ({state.last_error})" if state.last_error else ""
            parts.append(f"last {state.last_status} {format_time(state.last_run_at_ms, zone)}{error}")
        return "; ".join(parts)

    def _notes(self) -> tuple[str, ...]:
        return () if self._service.is_served() else (NEEDS_GATEWAY,)


def _belongs_to(job: CronJob, chat: str) -> bool:
    return not chat or f"{job.payload.channel}:{job.payload.to}" == chat
