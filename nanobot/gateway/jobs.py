"""Runs due cron jobs. A run ends when its report is in the journal."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import Button, OutboundKind, OutboundMessage
from nanobot.channels.registry import find
from nanobot.cron.commands import ANSWER_WORDS, reminder_buttons
from nanobot.cron.format import due_time, is_worth_sending, may_notify, message_for
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import TICK_S, CronService
from nanobot.cron.types import CronJob, JobFailedError, JobSkippedError, Notify, Run
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
_STALE_S = 3 * TICK_S


@asynccontextmanager
async def terminal_jobs(runtime: Runtime) -> AsyncIterator[None]:
    """Run due jobs that report to the terminal or to nobody, for a terminal chat without a gateway."""
    service = runtime.cron()
    service.serve_only(lambda job: not job.payload.deliver or job.payload.channel in {None, "", "cli"})
    serving = asyncio.create_task(JobRunner(runtime, service).run(), name="jobs")
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


def jobs_task(runtime: Runtime, tell_owner: Callable[[str], Awaitable[object]]) -> SupervisedTask:
    service = runtime.cron()
    return SupervisedTask(
        "jobs",
        JobRunner(runtime, service, tell_owner).run,
        silent_s=lambda: service.tick_age_s,
        problem=lambda: service.problem,
    )


class JobRunner:
    """Runs due jobs."""

    def __init__(
        self, runtime: Runtime, service: CronService, tell_owner: Callable[[str], Awaitable[object]] | None = None
    ) -> None:
        self._runtime = runtime
        self._service = service
        self._tell_owner = tell_owner
        self._timezone = runtime.config.agents.defaults.timezone

    async def run(self) -> None:
        """Run due jobs until cancelled. Interrupted runs resume at the next start, as their turns do.

        Raises TimeoutError if the scheduler stops ticking: then it has to be started again.
        """
        self._service.on_job = self.on_job
        try:
            await self._service.start()
            while (silent_s := self._service.tick_age_s or 0.0) < _STALE_S:  # noqa: ASYNC110 a tick that is missing sends no event
                await asyncio.sleep(_STALE_S)
            raise TimeoutError(f"no activity for {silent_s:.0f} s")
        finally:
            await self._service.close(_CLOSE_S)

    async def on_job(self, job: CronJob, due: Run) -> str:
        """Run a job once: queue its answer for the chat and return it.

        Raises JobFailedError, DeliveryFailedError, JobSkippedError.
        """
        await self._check_requester(job)
        if job.payload.verbatim:
            await self._deliver(job, due, due.run_id, job.payload.message)
            log.info("job %r (%s) sent again", job.name, job.id)
            return job.payload.message
        started_at = self._runtime.clock.monotonic()
        result = await self._runtime.loop.run_turn(message_for(job, due, self._timezone))
        if result.later:  # shutting down: the turn and this run resume at the next start
            await asyncio.Event().wait()
        if result.outcome not in _SUCCEEDED:
            retry_in_s = self._retry_wait(job, due) if result.outcome is TurnOutcome.FAILED else None
            if may_notify(job) and not due.retry:
                await self._deliver(job, due, result.turn_id, "", failure=result.text, retry_in_s=retry_in_s)
            raise JobFailedError(result.text or f"The turn was {result.outcome}.", retry_in_s)
        log.info("job %r (%s) %s", job.name, job.id, result.summary(self._runtime.clock.monotonic() - started_at))
        if is_worth_sending(job, result.text):
            await self._deliver(job, due, result.turn_id, result.text)
        return result.text

    def _retry_wait(self, job: CronJob, due: Run) -> float | None:
        """Seconds until a failed run is tried again; None if it is not, or is due again before."""
        if due.manual or due.retry >= len(RETRY_WAITS_S):
            return None
        wait_s, next_ms = RETRY_WAITS_S[due.retry], job.state.next_run_at_ms
        is_due_before = next_ms is not None and next_ms <= to_ms(self._runtime.clock.now()) + wait_s * 1000
        return None if is_due_before else wait_s

    async def _check_requester(self, job: CronJob) -> None:
        """Disable the job and raise JobSkippedError if the person who asked for it is no longer allowed there."""
        sender, channel, chat = job.payload.asked_by, job.payload.channel, job.payload.to
        if sender is None or channel is None:
            return
        try:
            if await asyncio.to_thread(self._runtime.privacy.is_allowed, channel, sender, chat or ""):
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
        if job.enabled and self._tell_owner is not None:
            await self._tell_owner(text)
        raise JobSkippedError(f"{reason}; the job is disabled")

    async def _deliver(
        self, job: CronJob, due: Run, turn_id: str, text: str, *, failure: str = "", retry_in_s: float | None = None
    ) -> None:
        """Queue a text for the job's chat. With `notify: always` it can be answered with done, snooze, tomorrow.

        After a `failure` such a job reminds with its own text.
        """
        payload, at = job.payload, due_time(job, due, self._timezone)
        channel, is_reminder, shown = payload.channel or "cli", payload.notify is Notify.ALWAYS, text
        buttons: tuple[Button, ...] = ()
        if failure and is_reminder:
            again = f"The next try is in {duration(retry_in_s)}." if retry_in_s else "It is not tried again."
            text = payload.message
            shown = f"Reminder, {at}: {text}\n\n(No model answered, so this is its text alone. {again} {failure})"
        elif failure:
            text = shown = f'The job "{job.name}" failed: {failure}'
        elif channel == "cli":
            names_job = job.name.casefold() in text.casefold()
            shown = f"**{at}**\n\n{text}" if names_job else f"**{job.name}**, {at}\n\n{text}"
        try:
            if is_reminder and await asyncio.to_thread(self._service.mark_delivered, job.id, text):
                spec = find(channel)
                buttons = reminder_buttons(job.id) if spec is not None and spec.has_buttons else ()
                shown += "" if buttons else f"\n\n{ANSWER_WORDS}"
        except NanobotError as error:  # the reminder itself must not depend on that
            log.warning("The job %r (%s) cannot be snoozed: %s", job.name, job.id, error)
        message = OutboundMessage(
            channel, payload.to or "direct", shown, kind=OutboundKind.REPLY, turn_id=turn_id,
            thread_id=payload.thread_id, buttons=buttons, answers=due.run_id,
        )  # fmt: skip
        receipt = await self._runtime.bus.publish_outbound(message)
        try:
            async with asyncio.timeout(DELIVERY_S):
                await receipt.wait()
        except TimeoutError:
            log.info("The report of the job %r (%s) waits in the queue for %s.", job.name, job.id, payload.channel)
