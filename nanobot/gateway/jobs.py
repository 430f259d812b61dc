"""Runs due cron jobs as turns. A run ends when its report is in the journal."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate

from nanobot.agent.events import TurnOutcome, TurnResult
from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.cron.notify import due_time, is_worth_sending, may_notify, message_for
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import TICK_S, CronService
from nanobot.cron.types import CronJob, Due, JobSkippedError, Notify
from nanobot.errors import NanobotError
from nanobot.gateway.supervisor import SupervisedTask
from nanobot.runtime.build import Runtime
from nanobot.utils.text import duration

log = logging.getLogger(__name__)

RETRY_WAITS_S = (300.0, 900.0, 3600.0)
"""Pauses before a job whose turn failed is tried again."""
_SUCCEEDED = (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL)
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


def _waits(job: CronJob, now_ms: int) -> Sequence[float]:
    """The pauses before the retries that begin before the job is due again."""
    left_s = math.inf if job.state.next_run_at_ms is None else (job.state.next_run_at_ms - now_ms) / 1000
    totals = accumulate(RETRY_WAITS_S)
    return [wait_s for wait_s, total_s in zip(RETRY_WAITS_S, totals, strict=True) if total_s < left_s]


class JobFailedError(NanobotError):
    """A run failed. The text is for `cron history`."""


TellOwner = Callable[[str], Awaitable[object]]


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
        result = await self._run_turn(job, due)
        if result.outcome not in _SUCCEEDED:
            waits = _waits(job, to_ms(self._runtime.clock.now())) if result.outcome is TurnOutcome.FAILED else ()
            if may_notify(job):
                await self._deliver(job, due, result.turn_id, self._failure_text(job, due, result, waits))
            for retry, wait_s in enumerate(waits, 1):
                await asyncio.sleep(wait_s)
                current = await asyncio.to_thread(self._service.get_job, job.id)
                if current is None or not current.enabled:
                    break
                result = await self._run_turn(job, due, retry=retry)
                if result.outcome is not TurnOutcome.FAILED:
                    break
        if result.outcome not in _SUCCEEDED:
            raise JobFailedError(result.text or f"The turn was {result.outcome}.")
        if is_worth_sending(job, result.text):
            await self._deliver(job, due, result.turn_id, result.text)
        return result.text

    async def _run_turn(self, job: CronJob, due: Due, *, retry: int = 0) -> TurnResult:
        message = message_for(job, due, self._runtime.config.agents.defaults.timezone, retry=retry)
        started_at = self._runtime.clock.monotonic()
        result = await self._runtime.loop.run_turn(message)
        if result.later:  # shutting down: the turn and this run resume at the next start
            await asyncio.Event().wait()
        if result.outcome in _SUCCEEDED:  # a failed turn was logged as such
            seconds = self._runtime.clock.monotonic() - started_at
            log.info("job %r (%s) %s", job.name, job.id, result.summary(seconds))
        return result

    def _failure_text(self, job: CronJob, due: Due, result: TurnResult, waits: Sequence[float]) -> str:
        """What the chat gets if the turn failed: a reminder reminds without a model, too."""
        if result.outcome is not TurnOutcome.FAILED or job.payload.notify is not Notify.ALWAYS:
            return f"The job {job.name!r} failed: {result.text}"
        when = due_time(job, due, self._runtime.config.agents.defaults.timezone)
        again = f"It will be tried again in {duration(waits[0])}." if waits else "It is not tried again."
        return f"Reminder, {when}: {job.payload.message}\n\nNo model worked on it. {again} {result.text}"

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
