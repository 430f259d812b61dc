"""The backend of the `cron` tool: job operations with text results. Failures are NanobotErrors."""

import asyncio
from collections.abc import Callable

from nanobot.bus.events import Address
from nanobot.cron.format import (
    format_job,
    format_next,
    format_schedule,
    format_time,
    parse_schedule,
    parse_snooze,
)
from nanobot.cron.schedule import job_zone, job_zone_or_host, to_ms
from nanobot.cron.service import CronService
from nanobot.cron.types import CronError, CronJob, Notify
from nanobot.messages.types import Provenance
from nanobot.utils.text import format_when

IsAllowed = Callable[[str, str, str], bool]
"""Called with channel, sender id and chat id: whether the sender may talk to the bot there."""

NEEDS_GATEWAY = (
    "No gateway is running: jobs run once `nanobot gateway` is started. Those that do not deliver to a chat app also "
    "run while a terminal chat is open."
)

_SETTLED = "That reminder was answered before, or its job was removed."


class CronToolBackend:
    """Job operations for the agent. Results include a note if no process runs the jobs."""

    def __init__(self, service: CronService, may_speak: IsAllowed | None = None) -> None:
        """The sender is stored with a job as `asked_by` only if `may_speak` allows them."""
        self._service = service
        self._may_speak = may_speak or (lambda channel, sender_id, chat_id: False)

    async def add(
        self,
        *,
        message: str,
        name: str | None,
        every_seconds: float | None,
        cron_expr: str | None,
        at: str | None,
        tz: str | None,
        deliver: bool,
        address: Address | None,
        session_key: str | None,
        notify: str | None,
        provenance: Provenance,
        asked_by: str | None,
    ) -> str:
        """Add a job that answers at `address`; return it with its next three runs."""

        def make() -> str:
            service = self._service
            schedule = parse_schedule(
                every_seconds=every_seconds, cron_expr=cron_expr, at=at, tz=tz, user_zone=service.timezone
            )
            is_known = asked_by and address and self._may_speak(address.channel, asked_by, address.chat_id)
            job = service.add_job(
                name or "",
                schedule,
                message,
                deliver,
                address.channel if address else None,
                address.chat_id if address else None,
                delete_after_run=schedule.kind == "at",
                session_key=session_key,
                thread_id=address.thread_id if address else None,
                notify=Notify(notify or Notify.ALWAYS),
                provenance=provenance,
                asked_by=asked_by if is_known else None,
            )
            return self._format_job(job)

        return await asyncio.to_thread(make)

    async def count(self) -> int:
        """The number of jobs, disabled ones included."""
        return len(await asyncio.to_thread(self._service.list_jobs, True))

    async def list(self, chat: str = "") -> str:
        """A line per job: id, schedule, next and last run. With `chat`, only that chat's jobs."""

        def render() -> str:
            jobs = [job for job in self._service.list_jobs(include_disabled=True) if not job.is_over]
            if chat:
                jobs = [job for job in jobs if _belongs_to(job, chat)]
            if not jobs:
                return "There are no jobs."
            lines = [self._format_line(job) for job in jobs]
            if chat:
                return "\n".join([*lines, *self._notes()])
            return "\n".join([*lines, *self._service.unreadable(), *self._notes()])

        return await asyncio.to_thread(render)

    async def find(self, wanted: str, chat: str = "") -> str:
        """The id of the job with this id, or of the only one with this name. Raises CronError."""
        jobs = await asyncio.to_thread(self._service.list_jobs, True)
        jobs = [job for job in jobs if not chat or _belongs_to(job, chat)]
        found = [job.id for job in jobs if job.id == wanted]
        found = found or [job.id for job in jobs if job.name.casefold() == wanted.casefold()]
        if len(found) > 1:
            raise CronError(f"Several jobs are named {wanted!r}: {', '.join(found)}. Give the id.")
        if not found:
            raise await self._unknown_job_error(wanted, chat)
        return found[0]

    async def remove(self, job_id: str, chat: str = "") -> str:
        await self._check_own(job_id, chat)
        removed = await asyncio.to_thread(self._service.remove_job, job_id)
        if not removed:
            raise await self._unknown_job_error(job_id)
        return f"Job {job_id} is removed."

    async def enable(self, job_id: str, enabled: bool, chat: str = "") -> str:
        await self._check_own(job_id, chat)
        job = await asyncio.to_thread(self._service.enable_job, job_id, enabled)
        if job is None:
            raise await self._unknown_job_error(job_id)
        return await asyncio.to_thread(self._format_job, job) if enabled else f"Job {job_id} is disabled."

    async def run(self, job_id: str, chat: str = "") -> str:
        """Request a run within seconds; does not wait for it."""
        await self._check_own(job_id, chat)
        requested = await asyncio.to_thread(self._service.request_run, job_id)
        if not requested:
            raise await self._unknown_job_error(job_id)
        return "\n".join([f"Job {job_id} will be run within seconds.", *self._notes()])

    async def settle_reminder(self, job_id: str, snooze: str | None, chat: str = "") -> str:
        """Settle the reminder that a job has delivered, or have it sent again after `10m` or at a time."""

        def settle() -> str:
            service = self._service
            job = service.get_job(job_id)
            if job is None or (chat and not _belongs_to(job, chat)):
                return _SETTLED
            zone = job_zone_or_host(job, service.timezone)
            until = parse_snooze(snooze, zone) if snooze else None
            if not service.settle_reminder(job_id, to_ms(until) if until else None):
                return _SETTLED
            return f"Snoozed until {format_when(until.astimezone(zone))}." if until else f"Done: {job.name}."

        return await asyncio.to_thread(settle)

    async def answerable(self, chat: Address) -> CronJob | None:
        """The job with the newest reminder in this chat that nobody has answered."""
        return await asyncio.to_thread(self._service.last_delivered, chat.channel, chat.chat_id, chat.thread_id)

    def _format_job(self, job: CronJob) -> str:
        zone = job_zone(job, self._service.timezone)
        return "\n".join([format_job(job, zone, self._service.next_instants(job)), *self._notes()])

    def _format_line(self, job: CronJob) -> str:
        zone = job_zone_or_host(job, self._service.timezone)
        state = job.state
        parts = [f'{job.id} "{job.name}": {format_schedule(job.schedule, zone)}']
        if not job.enabled:
            parts.append("disabled")
        elif state.wakes_at_ms != job.schedule.at_ms:
            parts.append(f"next {format_next(job, zone)}")
        if state.last_run_at_ms is not None:
            error = f" ({state.last_error})" if state.last_error else ""
            parts.append(f"last {state.last_status} {format_time(state.last_run_at_ms, zone)}{error}")
        return "; ".join(parts)

    def _notes(self) -> tuple[str, ...]:
        return () if self._service.is_served() else (NEEDS_GATEWAY,)

    async def _check_own(self, job_id: str, chat: str) -> None:
        """Raise CronError unless the job belongs to the chat. No chat means all jobs."""
        if chat:
            jobs = await asyncio.to_thread(self._service.list_jobs, True)
            if not any(job.id == job_id and _belongs_to(job, chat) for job in jobs):
                raise await self._unknown_job_error(job_id, chat)

    async def _unknown_job_error(self, job_id: str, chat: str = "") -> CronError:
        jobs = await asyncio.to_thread(self._service.list_jobs, True)
        jobs = [job for job in jobs if not chat or _belongs_to(job, chat)]
        known = ", ".join(f'{job.id} "{job.name}"' for job in jobs[:20]) or "none"
        return CronError(f"There is no job {job_id!r}. Jobs: {known}.")


def _belongs_to(job: CronJob, chat: str) -> bool:
    return f"{job.payload.channel}:{job.payload.to}" == chat
