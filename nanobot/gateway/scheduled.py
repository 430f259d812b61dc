"""Turns that a schedule starts: due cron jobs, and the tasks of the heartbeat.

A run of a job ends when its report is in the journal.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from nanobot.agent.events import TurnOutcome
from nanobot.bus.events import Address, Button, InboundMessage, OutboundKind, OutboundMessage
from nanobot.channels.registry import find
from nanobot.config.paths import DataPaths
from nanobot.cron.commands import ANSWER_WORDS, reminder_buttons
from nanobot.cron.format import due_time, is_worth_sending, may_notify, message_for
from nanobot.cron.schedule import to_ms
from nanobot.cron.service import TICK_S, CronService
from nanobot.cron.types import CronJob, JobFailedError, JobSkippedError, Notify, Run
from nanobot.errors import NanobotError
from nanobot.gateway.supervisor import SupervisedTask
from nanobot.heartbeat.service import SESSION, HeartbeatService
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolSchema
from nanobot.providers.base import LLMProvider, LLMResponse
from nanobot.runtime.build import Runtime
from nanobot.utils.text import duration

if TYPE_CHECKING:
    from nanobot.gateway.channels import GatewayChannels

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


def heartbeat_task(runtime: Runtime, channels: "GatewayChannels") -> SupervisedTask | None:
    """Return the heartbeat's task, or None if the config disables it. Without due tasks it costs nothing."""
    settings = runtime.config.gateway.heartbeat
    if "enabled" in settings.model_fields_set and not settings.enabled:
        return None
    runner = HeartbeatRunner(runtime, channels)
    service = HeartbeatService(
        runtime.workspace,
        BackgroundModel(runtime),
        on_execute=runner.execute,
        on_notify=runner.notify,
        interval_s=settings.interval_s,
        clock=runtime.clock,
        state_file=DataPaths(runtime.data_dir).state / "heartbeat.json",
        opener=runtime.context.files.descriptor,
    )
    return SupervisedTask("heartbeat", service.run, problem=lambda: service.paused or None)


class BackgroundModel(LLMProvider):
    """The model for background work (`backgroundModel`, else the default one), resolved at each call."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> LLMResponse:
        if self._runtime.loop.is_stopping:  # what is due could not be worked on: ask at the next start
            await asyncio.Event().wait()
        chosen = await self._runtime.models.get(model or self._runtime.config.agents.defaults.background_model)
        return await chosen.provider.chat(messages, tools, chosen.name, max_tokens, temperature)


class HeartbeatRunner:
    """Runs due tasks in the heartbeat session and sends the result to the owner."""

    def __init__(self, runtime: Runtime, channels: "GatewayChannels") -> None:
        self._runtime = runtime
        self._channels = channels

    async def execute(self, tasks: str) -> str:
        """Run a turn on the tasks and return its answer without sending it. Raises NanobotError if there is none."""
        chat = await self._chat() or Address("cli", "direct")
        file = self._runtime.workspace / "HEARTBEAT.md"
        written = await asyncio.to_thread(self._runtime.file_provenance.of, file)
        message = InboundMessage(
            chat.channel,
            "heartbeat",
            chat.chat_id,
            f"These tasks of HEARTBEAT.md are due:\n\n{tasks}\n\nWork on them now. Tick off in HEARTBEAT.md what is "
            "done for good. Answer with what your owner should know, or HEARTBEAT_OK if that is nothing.",
            session_key_override=SESSION,
            origin=Origin.HEARTBEAT,
            provenance=written or Provenance.FILE,
            quiet=True,
        )
        result = await self._runtime.loop.run_turn(message)
        if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
            if self._runtime.loop.is_stopping:
                await asyncio.Event().wait()
            raise NanobotError(f"The tasks of the heartbeat were not done: {result.text}")
        return result.text

    async def notify(self, text: str) -> None:
        """Queue the text for its chat. Does not wait for the delivery: a platform that is down must not stop the
        heartbeat.
        """
        chat = await self._chat()
        if chat is None:
            log.warning(
                "the heartbeat has a result and no chat to send it to; write to the bot in private, or set "
                "gateway.heartbeat.channel and gateway.heartbeat.to"
            )
            return
        message = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE)
        await self._runtime.bus.publish_outbound(message)

    async def _chat(self) -> Address | None:
        """The configured chat, else the private chat that was used last, else the owner's private chat."""
        settings, channels = self._runtime.config.gateway.heartbeat, self._channels
        if settings.channel and settings.to:
            return Address(settings.channel, settings.to)
        return await channels.last_private_chat(channels.names) or await channels.owners_chat(channels.names)
