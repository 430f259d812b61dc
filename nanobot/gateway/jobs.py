"""The jobs as a member: each due run is a turn of its own, and has succeeded when its chat has what it said."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from nanobot.agent.turn import TurnOutcome, TurnResult
from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.cron.notify import may_tell, message_for, worth_telling
from nanobot.cron.service import TICK_S, CronService
from nanobot.cron.types import CronJob, Due, JobSkippedError
from nanobot.errors import NanobotError
from nanobot.gateway.members import Member
from nanobot.runtime import Runtime

log = logging.getLogger(__name__)

DELIVERED_S = 600.0
"""How long the platform is waited for before the run counts as not delivered; the message stays in the queue."""
_LETTING_GO_S = 2.0


@asynccontextmanager
async def jobs_of_the_terminal(runtime: Runtime) -> AsyncIterator[None]:
    """While a chat is open and no gateway runs: jobs that speak to the terminal, or to nobody, run when due."""
    service = runtime.cron()
    service.serve_only(lambda job: not job.payload.deliver or job.payload.channel in {None, "", "cli"})
    serving = asyncio.create_task(Jobs(runtime, service).run(), name="jobs")
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait([serving])


class JobFailedError(NanobotError):
    """A run came to no good end; why, in words for `cron history`."""


TellOwner = Callable[[str], Awaitable[None]]


async def _nobody(_text: str) -> None:
    """At the terminal there is no owner elsewhere."""


def jobs_member(runtime: Runtime, tell_owner: TellOwner) -> Member:
    """The clockwork, begun anew where it stops ticking."""
    service = runtime.cron()
    return Member(
        "jobs",
        Jobs(runtime, service, tell_owner).run,
        silent_s=lambda: service.tick_age_s,
        stale_s=3 * TICK_S,
        problem=lambda: service.problem,
    )


class Jobs:
    """Runs what is due."""

    def __init__(self, runtime: Runtime, service: CronService, tell_owner: TellOwner = _nobody) -> None:
        self._runtime = runtime
        self._service = service
        self._tell_owner = tell_owner

    async def run(self) -> None:
        """Serve the store until cancelled. Runs that are cut off go on at the next start, as their turns do."""
        self._service.on_job = self.on_job
        try:
            await self._service.start()
            await asyncio.Event().wait()
        finally:
            await self._service.close(_LETTING_GO_S)

    async def on_job(self, job: CronJob, due: Due) -> str:
        """One run: its answer, once the chat has it. Raises JobFailedError, DeliveryFailedError, JobSkippedError."""
        await self._still_wanted(job)
        result = await self._runtime.loop.run_turn(message_for(job, due))
        if result.later:  # nanobot ends: the turn goes on at the next start, and so does this run
            await asyncio.Event().wait()
        failed = result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL)
        if may_tell(job) if failed else worth_telling(job, result.text):
            await self._deliver(job, due, result)
        if failed:
            raise JobFailedError(result.text or f"The turn was {result.outcome}.")
        return result.text

    async def _still_wanted(self, job: CronJob) -> None:
        """Raises JobSkippedError where who asked for it may not speak there any more; then it is switched off."""
        who, channel, chat = job.payload.asked_by, job.payload.channel, job.payload.to
        if who is None or channel is None:
            return
        try:
            if await asyncio.to_thread(self._runtime.may_speak, channel, who, chat or ""):
                return
        except NanobotError as error:
            raise JobSkippedError(f"nobody can say whether {who!r} may still speak on {channel}: {error}") from error
        reason = f"{who!r}, who asked for it, may not speak on {channel} any more"
        await asyncio.to_thread(self._service.enable_job, job.id, False)
        text = (
            f"The job {job.name!r} ({job.id}) is switched off: {reason}. `nanobot cron remove "
            f"{job.id}` takes it away; where you let them in again, `nanobot cron enable {job.id}` switches it on."
        )
        log.warning("%s", text)
        if job.enabled:
            await self._tell_owner(text)
        raise JobSkippedError(f"{reason}; the job is switched off")

    async def _deliver(self, job: CronJob, due: Due, result: TurnResult) -> None:
        payload = job.payload
        text = result.text
        if result.outcome not in (TurnOutcome.ANSWERED, TurnOutcome.PARTIAL):
            text = f"The job {job.name!r} failed: {text}"
        receipt = await self._runtime.bus.publish_outbound(
            OutboundMessage(
                payload.channel or "cli",
                payload.to or "direct",
                text,
                kind=OutboundKind.REPLY,
                turn_id=result.turn_id,
                thread_id=payload.thread_id,
                answers=due.run_id,
            )
        )
        try:
            async with asyncio.timeout(DELIVERED_S):
                await receipt.wait()
        except TimeoutError:
            raise JobFailedError("The platform does not have the answer yet; it stays in the queue.") from None
