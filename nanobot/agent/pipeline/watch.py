"""The watchdog of a turn: no phase hangs for good, no run keeps a lane that does not let go of it."""

import asyncio
import logging
import time
from collections.abc import Awaitable
from typing import TypeVar

from nanobot.agent import turn as events
from nanobot.agent.pipeline.work import Turn
from nanobot.agent.run.runner import RunResult
from nanobot.agent.turn import TurnEvent, TurnPhase
from nanobot.errors import NanobotError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

T = TypeVar("T")

_strays: set[asyncio.Task[RunResult]] = set()
"""Runs that were left behind: referred to, so that they are not collected while they run."""


class TurnHungError(NanobotError):
    """A phase of a turn did not end. It is given up, and its lane is free."""

    def __init__(self, phase: TurnPhase, seconds: float) -> None:
        super().__init__(
            f"The turn hung: nothing happened in its phase {phase} for {seconds:g} s. It was given up, so that this "
            "session goes on. Send the message again."
        )


async def in_time(work: Awaitable[T], phase: TurnPhase, seconds: float) -> T:
    """The work of a phase. Raises TurnHungError where it takes longer; then it is cancelled."""
    try:
        async with asyncio.timeout(seconds) as limit:
            return await work
    except TimeoutError:
        if not limit.expired():
            raise
        raise TurnHungError(phase, seconds) from None


async def watched(turn: Turn, run: asyncio.Task[RunResult], silence_s: float, letting_go_s: float) -> RunResult:
    """The run of a turn, as long as it gives signs of life. Raises TurnHungError where it does not, and what it raises.

    On a cancel the run is cancelled too. One that does not let go in time is left behind: it runs on unheard, its rows
    are refused, and what it had begun is told as ended.
    """
    turn.last_sign = time.monotonic()
    try:
        while not run.done():
            silent_s = time.monotonic() - turn.last_sign
            if silent_s >= silence_s:
                raise TurnHungError(TurnPhase.RUN, silence_s)
            await asyncio.wait((run,), timeout=silence_s - silent_s)
    except BaseException:
        run.cancel()
        await finish(asyncio.wait((run,), timeout=letting_go_s))
        if not run.done():
            _leave_behind(turn, run)
        elif not run.cancelled():
            run.exception()  # it gives way to the reason why it ends
        raise
    return run.result()


def _leave_behind(turn: Turn, run: asyncio.Task[RunResult]) -> None:
    who = ", ".join(turn.running_tools) or "its model"
    log.warning("turn %s: %s does not let go and is left behind", turn.turn_id, who)
    turn.abandoned = True
    turn.emit = turn.emit.handed_over()
    for started in reversed([*turn.open.values()]):
        turn.emit(_end_of(started))
    _strays.add(run)
    run.add_done_callback(_strays.discard)


def _end_of(started: TurnEvent) -> TurnEvent:
    match started:
        case events.ToolStarted(call_id=call_id, name=name):
            return events.ToolEnded(call_id=call_id, name=name, ok=False, content="stopped", seconds=0)
        case events.TextStarted():
            return events.TextEnded(text="", final=False)
        case events.ReasoningStarted():
            return events.ReasoningEnded(text="")
        case events.StepStarted(step=step):
            return events.StepEnded(step=step, finish_reason="interrupted", usage={})
        case _:
            return events.RunEnded(steps=0, usage={})
