"""The watchdog of a turn: no phase hangs for good, no run keeps a lane that does not let go of it.

One timer a turn, which mostly never rings: it looks up now and then whether the phase has lasted too long, and in a run
when something happened last.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any

from nanobot.agent import turn as events
from nanobot.agent.pipeline.work import Patience, Turn
from nanobot.agent.run.spec import RunResult
from nanobot.agent.turn import TurnEvent, TurnPhase
from nanobot.errors import NanobotError
from nanobot.messages.types import INTERRUPTED
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

_strays: set[asyncio.Task[RunResult]] = set()
"""Runs that were left behind: referred to, so that they are not collected while they run."""


class TurnHungError(NanobotError):
    """A phase of a turn did not end. It is given up, and its lane is free."""

    def __init__(self, phase: TurnPhase, seconds: float) -> None:
        super().__init__(
            f"The turn hung: nothing happened in its phase {phase} for {seconds:g} s. It was given up, so that this "
            "session goes on. Send the message again."
        )


class Watchdog:
    """Cancels the task that opened it when its turn hangs; then `hung` says why."""

    def __init__(self, turn: Turn, patience: Patience) -> None:
        self.hung: TurnHungError | None = None
        self._turn = turn
        self._patience = patience
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(patience.shortest, self._look)

    def _look(self) -> None:
        turn, phase = self._turn, self._turn.phase
        limit_s = self._patience.of(phase)
        if turn.progress.asks:
            turn.progress.last_sign = time.monotonic()  # a person is slow, not hung; their question ends by itself
        since = turn.progress.last_sign if phase is TurnPhase.RUN else turn.phase_began
        left_s = since + limit_s - time.monotonic()
        if left_s > 0 or self._task is None:
            pause_s = min(max(left_s, 0.001), self._patience.shortest)
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._look)
        else:
            self.hung = TurnHungError(phase, limit_s)
            self._task.cancel()

    def close(self) -> None:
        """The turn is over."""
        self._timer.cancel()


async def let_run(turn: Turn, work: Coroutine[Any, Any, RunResult], letting_go_s: float) -> RunResult:
    """The run of a turn. On a cancel it is cancelled too.

    One that does not let go in time is left behind: it goes on unheard, its rows are refused, and what it had begun is
    told as ended.
    """
    run = asyncio.create_task(work)
    try:
        await asyncio.wait((run,))
    except BaseException:
        run.cancel()
        try:
            await finish(asyncio.wait((run,), timeout=letting_go_s))
        finally:  # also where somebody is impatient and cancels again
            if not run.done():
                _leave_behind(turn, run)
            elif not run.cancelled():
                run.exception()  # it gives way to the reason why it ends
        raise
    return run.result()


def _leave_behind(turn: Turn, run: asyncio.Task[RunResult]) -> None:
    who = ", ".join(turn.progress.running_tools) or "its model"
    log.warning("turn %s: %s does not let go and is left behind", turn.turn_id, who)
    turn.abandoned = True
    turn.left_unsaid = "".join(turn.progress.saying)
    turn.emit = turn.emit.handed_over()
    for started in reversed([*turn.progress.open.values()]):
        turn.emit(_end_of(started, turn.left_unsaid))
    _strays.add(run)
    run.add_done_callback(_strays.discard)


def _end_of(started: TurnEvent, said: str) -> TurnEvent:
    match started:
        case events.ToolStarted(call_id=call_id, name=name):
            return events.ToolEnded(call_id=call_id, name=name, ok=False, content="stopped", seconds=0)
        case events.TextStarted():
            return events.TextEnded(text=said, final=False)
        case events.ReasoningStarted():
            return events.ReasoningEnded(text="")
        case events.StepStarted(step=step):
            return events.StepEnded(step=step, finish_reason=INTERRUPTED, usage={})
        case _:
            return events.RunEnded(steps=0, usage={})
