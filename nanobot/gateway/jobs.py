"""Runs due cron jobs as turns. A run ends when its report is in the journal."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.cron.notify import is_worth_sending, may_notify, message_for
from nanobot.cron.service import TICK_S, CronService
from nanobot.cron.types import CronJob, Due, JobSkippedError
from nanobot.errors import NanobotError
from nanobot.gateway.supervisor import SupervisedTask
from nanobot.runtime.build import Runtime

log = logging.getLogger(__name__)

DELIVERY_S = 2.0
"""How long a run waits for the delivery of its report, so that `cron history` shows a refusal.

After that the report stays in the outbound queue, and the run ends so that the next one is on time.
"""
_CLOSE_S = 2.0


@asynccontextmanager
async def jobs_of_the_terminal(runtime: Runtime) -> AsyncIterator[None]:
    """Run due jobs that report to the terminal or to nobody, for a terminal chat without a gateway."""
    service = runtime.cron()
    service.serve_only(lambda job: not job.payload.deliver or job.payload.channel in {None, "", "cli"})
    serving = asyncio.create_task(JobRunner(runtime, service).run(), name="jobs")
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


class JobFailedError(NanobotError):
    """A run failed. The text is for `cron history`."""


TellOwner = Callable[[str], Awaitable[None]]


async def _notify_nobody(_text: str) -> None:
    """For terminal chats."""


def jobs_task(runtime: Runtime, tell_owner: TellOwner) -> SupervisedTask:
    """Return the scheduler's task, restarted if it stops ticking."""
    service = runtime.cron()
    return SupervisedTask(
        "jobs",
        JobRunner(runtime, service, tell_owner).run,
        silent_s=lambda: service.tick_age_s,
        stale_s=3 * TICK_S,
        problem=lambda: service.problem,
    )


class JobRunner:
    """Runs due jobs."""

    def __init__(self, runtime: Runtime, service: CronService, tell_owner: TellOwner = _notify_nobody) -> None:
        self._runtime = runtime
        self._service = service
        self._tell_owner = tell_owner

    async def run(self) -> None:
        """Run due jobs until cancelled. Interrupted runs resume at the next start, as their turns do."""
        self._service.on_job = self.on_job
        try:
            await self._service.start()
            await asyncio.Event().wait()
        finally:
            await self._service.close(_CLOSE_S)

    async def on_job(self, job: CronJob, due: Due) -> str:
        """Run a job once: queue its answer for the chat and return it.

        Raises JobFailedError, DeliveryFailedError, JobSkippedError.
        """
        await self._check_requester(job)
        result = await self._runtime.loop.run_turn(message_for(job, due))
        if result.later:  # shutting down: the turn and this run resume at the next start
            await asyncio.Event().wait()
        failed = result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL)
        if failed and may_notify(job):
            await self._deliver(job, due, result.turn_id, f"The job {job.name!r} failed: {result.text}")
        elif not failed and is_worth_sending(job, result.text):
            await self._deliver(job, due, result.turn_id, result.text)
        if failed:
            raise JobFailedError(result.text or f"The turn was {result.outcome}.")
        return result.text

    async def _check_requester(self, job: CronJob) -> None:
        """Disable the job and raise JobSkippedError if the person who asked for it is no longer allowed there."""
        sender, channel, chat = job.payload.asked_by, job.payload.channel, job.payload.to
        if sender is None or channel is None:
            return
        try:
            if await asyncio.to_thread(self._runtime.may_speak, channel, sender, chat or ""):
                return
        except NanobotError as error:
            raise JobSkippedError(f"cannot check whether {sender!r} is still allowed on {channel}: {error}") from error
        reason = f"{sender!r}, who asked for it, is no longer allowed on {channel}"
        await asyncio.to_thread(self._service.enable_job, job.id, False)
        text = (
            f"The job {job.name!r} ({job.id}) is disabled: {reason}. To delete it: nanobot cron remove {job.id}. "
            f"To enable it, once they are allowed again: nanobot cron enable {job.id}"
        )
        log.warning("%s", text)
        if job.enabled:
            await self._tell_owner(text)
        raise JobSkippedError(f"{reason}; the job is disabled")

    async def _deliver(self, job: CronJob, due: Due, turn_id: str, text: str) -> None:
        payload = job.payload
        receipt = await self._runtime.bus.publish_outbound(
            OutboundMessage(
                payload.channel or "cli",
                payload.to or "direct",
                text,
                kind=OutboundKind.REPLY,
                turn_id=turn_id,
                thread_id=payload.thread_id,
                answers=due.run_id,
            )
        )
        try:
            async with asyncio.timeout(DELIVERY_S):
                await receipt.wait()
        except TimeoutError:
            log.info("The report of the job %r (%s) waits in the queue for %s.", job.name, job.id, payload.channel)
