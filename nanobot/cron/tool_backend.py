"""The jobs of a chat as text: what the `cron` tool, `/cron` and the answers to reminders do."""

from collections.abc import Callable

from nanobot.cron.format import format_job, format_next, format_schedule, format_time, parse_schedule, parse_snooze
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, CronPayload
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
        self._may_speak = may_speak

    def add(
        self,
        payload: CronPayload,
        name: str = "",
        *,
        every_seconds: float | None = None,
        cron_expr: str | None = None,
        at: str | None = None,
        tz: str | None = None,
    ) -> str:
        """Add a job; return it with its next three runs."""
        user_zone = self._service.timezone
        schedule = parse_schedule(every_seconds=every_seconds, cron_expr=cron_expr, at=at, tz=tz, user_zone=user_zone)
        channel, sender, chat = payload.channel or "", payload.asked_by, payload.to or ""
        if sender and (self._may_speak is None or not self._may_speak(channel, sender, chat)):
            payload.asked_by = None
        job = CronJob("", name, schedule=schedule, payload=payload, delete_after_run=schedule.kind == "at")
        return self._format_job(self._service.add(job))

    def count(self) -> int:
        """The number of jobs, disabled ones included."""
        return len(self._service.list_jobs(include_disabled=True))

    def list(self, chat: str = "") -> str:
        """A line per job: id, schedule, next and last run."""
        jobs = self._service.list_jobs(include_disabled=True)
        lines = [self._format_line(job) for job in jobs if job.is_of_chat(chat)]
        if not lines:
            return "There are no jobs."
        return "\n".join([*lines, *(() if chat else self._service.unreadable()), *self._notes()])

    def change(self, word: str, wanted: str, chat: str = "") -> str:
        """Remove, enable, disable or run the job of this id or name. A run starts within seconds."""
        job = self._service.find_job(wanted, chat)
        if word == "remove":
            self._service.remove_job(job.id)
            return f"Job {job.id} is removed."
        if word == "run":
            self._service.request_run(job.id)
            return "\n".join([f"Job {job.id} will be run within seconds.", *self._notes()])
        job = self._service.enable_job(job.id, word == "enable") or job
        return self._format_job(job) if job.enabled else f"Job {job.id} is disabled."

    def settle_reminder(self, job_id: str, snooze: str | None, chat: str = "") -> str:
        """Settle the reminder that a job has delivered, or have it sent again after `10m` or at a time."""
        job = self._service.get_job(job_id)
        if job is None or not job.is_of_chat(chat):
            return _SETTLED
        zone = self._service.zone_of(job)
        until = parse_snooze(snooze, zone) if snooze else None
        if not self._service.settle_reminder(job_id, to_ms(until) if until else None):
            return _SETTLED
        return f"Snoozed until {format_when(until.astimezone(zone))}." if until else f"Done: {job.name}."

    def _format_job(self, job: CronJob) -> str:
        zone = self._service.zone_of(job)
        return "\n".join([format_job(job, zone, self._service.next_instants(job)), *self._notes()])

    def _format_line(self, job: CronJob) -> str:
        zone, state = self._service.zone_of(job), job.state
        parts = [f'{job.id} "{job.name}": {format_schedule(job.schedule, zone)}']
        if not job.enabled or job.wakes_at_ms != job.schedule.at_ms:
            parts.append(f"next {format_next(job, zone)}" if job.enabled else "disabled")
        if state.last_run_at_ms is not None:
            error = f" ({state.last_error})" if state.last_error else ""
            parts.append(f"last {state.last_status} {format_time(state.last_run_at_ms, zone)}{error}")
        return "; ".join(parts)

    def _notes(self) -> tuple[str, ...]:
        return () if self._service.is_served() else (NEEDS_GATEWAY,)
