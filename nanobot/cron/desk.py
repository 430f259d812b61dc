"""What the `cron` tool asks for, done and told in words. It fits the port that the tool names.

Every refusal is a NanobotError whose text says what would be right. Store and calendar are asked in threads.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from nanobot.cron.judging import job_zone
from nanobot.cron.service import CronService
from nanobot.cron.types import CronError, CronJob, Notify
from nanobot.cron.wording import job_zone_or_host, schedule_of, told_instant, told_job, told_schedule
from nanobot.messages.types import least_trusted

T = TypeVar("T")
MaySpeak = Callable[[str, str, str], bool]
"""Whether on a channel this sender may speak in this chat."""

NEEDS_GATEWAY = (
    "No gateway is running: jobs begin when `nanobot gateway` is started. Those of the terminal run while a chat is "
    "open there, too."
)


class CronDesk:
    """The jobs as the agent asks for them. Where nobody runs them, its answers say so."""

    def __init__(self, service: CronService, may_speak: MaySpeak | None = None) -> None:
        """Whom `may_speak` knows as let in themselves is kept with a job as who asked for it."""
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
        channel: str | None,
        to: str | None,
        thread_id: str | None,
        session_key: str | None,
        notify: str | None,
        provenance: str,
        asked_by: str | None,
    ) -> str:
        """Make a job; what was made, with its next three runs."""

        def make() -> str:
            service = self._service
            schedule = schedule_of(
                every_seconds=every_seconds, cron_expr=cron_expr, at=at, tz=tz, user_zone=service.timezone
            )
            is_known = asked_by and channel and self._may_speak(channel, asked_by, to or "")
            job = service.add_job(
                name or "",
                schedule,
                message,
                deliver,
                channel,
                to,
                delete_after_run=schedule.kind == "at",
                session_key=session_key,
                thread_id=thread_id,
                notify=Notify(notify or Notify.ALWAYS),
                provenance=least_trusted([provenance]),
                asked_by=asked_by if is_known else None,
            )
            return self._told(job)

        return await asyncio.to_thread(make)

    async def list(self, chat: str = "") -> str:
        """Every job in a line: its id, when it runs, what became of its last run. Of a chat only its own."""

        def told() -> str:
            jobs = self._service.list_jobs(include_disabled=True)
            if chat:
                jobs = [job for job in jobs if _is_of(job, chat)]
            if not jobs:
                return "There are no jobs."
            lines = [self._line(job) for job in jobs]
            if chat:
                return "\n".join([*lines, *self._remarks()])
            return "\n".join([*lines, *self._service.unreadable(), *self._remarks()])

        return await asyncio.to_thread(told)

    async def remove(self, job_id: str, chat: str = "") -> str:
        """Take a job away."""
        await self._check_own(job_id, chat)
        removed = await asyncio.to_thread(self._service.remove_job, job_id)
        if not removed:
            raise await self._unknown(job_id)
        return f"Job {job_id} is removed."

    async def enable(self, job_id: str, enabled: bool, chat: str = "") -> str:
        """Switch a job on or off."""
        await self._check_own(job_id, chat)
        job = await asyncio.to_thread(self._service.enable_job, job_id, enabled)
        if job is None:
            raise await self._unknown(job_id)
        return await asyncio.to_thread(self._told, job) if enabled else f"Job {job_id} is switched off."

    async def run(self, job_id: str, chat: str = "") -> str:
        """Have a job run soon, beside the turn that asks: the turn does not wait for it."""
        await self._check_own(job_id, chat)
        requested = await asyncio.to_thread(self._service.request_run, job_id)
        if not requested:
            raise await self._unknown(job_id)
        return "\n".join([f"Job {job_id} will be run within seconds.", *self._remarks()])

    def _told(self, job: CronJob) -> str:
        zone = job_zone(job, self._service.timezone)
        return "\n".join([told_job(job, zone, self._service.next_instants(job)), *self._remarks()])

    def _line(self, job: CronJob) -> str:
        zone = job_zone_or_host(job, self._service.timezone)
        state = job.state
        parts = [f'{job.id} "{job.name}": {told_schedule(job.schedule, zone)}']
        parts.append(f"next {told_instant(state.next_run_at_ms, zone)}" if job.enabled else "switched off")
        if state.last_run_at_ms is not None:
            error = f" ({state.last_error})" if state.last_error else ""
            parts.append(f"last {state.last_status} {told_instant(state.last_run_at_ms, zone)}{error}")
        return "; ".join(parts)

    def _remarks(self) -> tuple[str, ...]:
        return () if self._service.is_served() else (NEEDS_GATEWAY,)

    async def _check_own(self, job_id: str, chat: str) -> None:
        """Of a chat in which others read, only its own jobs are known. Raises CronError."""
        if chat:
            jobs = await asyncio.to_thread(self._service.list_jobs, True)
            if not any(job.id == job_id and _is_of(job, chat) for job in jobs):
                raise await self._unknown(job_id, chat)

    async def _unknown(self, job_id: str, chat: str = "") -> CronError:
        jobs = await asyncio.to_thread(self._service.list_jobs, True)
        jobs = [job for job in jobs if not chat or _is_of(job, chat)]
        known = ", ".join(f'{job.id} "{job.name}"' for job in jobs[:20]) or "none"
        return CronError(f"There is no job {job_id!r}. Jobs: {known}.")


def _is_of(job: CronJob, chat: str) -> bool:
    """Whether it speaks in this chat."""
    return f"{job.payload.channel}:{job.payload.to}" == chat
