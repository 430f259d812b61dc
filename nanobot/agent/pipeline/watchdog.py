"""The watchdog of a turn: cancels a phase that hangs, and abandons a run that ignores its cancellation.

One timer per turn checks how long the phase has lasted and, in a run, how long nothing has happened.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from nanobot.agent.events import TurnPhase, TurnResult
from nanobot.agent.pipeline.turn import Turn, TurnTimeouts
from nanobot.errors import NanobotError
from nanobot.utils.aio import finish

log = logging.getLogger(__name__)

_abandoned: set[asyncio.Task[TurnResult]] = set()
"""Strong references to abandoned runs, so that they are not garbage collected while they run."""


class TurnHungError(NanobotError):
    """A phase of a turn exceeded its time limit and was cancelled."""

    def __init__(self, phase: TurnPhase, seconds: float) -> None:
        super().__init__(
            f"The turn hung: nothing happened in its phase {phase} for {seconds:g} s. It was stopped, so that this "
            "session can go on. Send the message again."
        )


class RunCancelledError(NanobotError):
    """The provider or a tool raised CancelledError although nobody stopped the turn."""

    def __init__(self) -> None:
        super().__init__(
            "The provider of the model, or a tool, cancelled this turn by itself. Send the message again; if it "
            "happens again, choose another model with `/model`, and report it."
        )


class Watchdog:
    """Cancels the task that created it when the turn hangs, and sets `hung`."""

    def __init__(self, turn: Turn, timeouts: TurnTimeouts) -> None:
        self.hung: TurnHungError | None = None
        self._progress = turn.progress
        self._timeouts = timeouts
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(timeouts.shortest, self._check)

    def _check(self) -> None:
        progress, loop = self._progress, asyncio.get_running_loop()
        limit_s = self._timeouts.of(progress.phase)
        if progress.open.has_question():
            progress.touch()  # approval questions have a timeout of their own
        since = progress.last_activity if progress.phase is TurnPhase.RUN else progress.phase_began
        remaining_s = since + limit_s - loop.time()
        if remaining_s > 0 or self._task is None:
            pause_s = min(max(remaining_s, 0.001), self._timeouts.shortest)
            self._timer = loop.call_later(pause_s, self._check)
        else:
            self.hung = TurnHungError(progress.phase, limit_s)
            self._task.cancel()

    def close(self) -> None:
        self._timer.cancel()


async def run_with_watchdog(turn: Turn, coroutine: Coroutine[Any, Any, TurnResult], grace_s: float) -> TurnResult:
    """Run the coroutine as a task and return its result. Cancelling this cancels the task.

    A task that does not end within `grace_s` is abandoned: its events and rows are dropped, and an end event is emitted
    for everything it had started.
    """
    run = asyncio.create_task(coroutine)
    try:
        await asyncio.wait((run,))
    except BaseException:
        run.cancel()
        try:
            await finish(asyncio.wait((run,), timeout=grace_s))
        finally:  # also if cancelled a second time
            if not run.done():
                _abandon(turn, run)
            elif not run.cancelled():
                run.exception()  # mark as retrieved; the cancellation is what gets raised
        raise
    if run.cancelled():
        raise RunCancelledError
    return run.result()


def _abandon(turn: Turn, run: asyncio.Task[TurnResult]) -> None:
    progress = turn.progress
    log.warning(
        "turn %s: %s ignored the cancellation and was abandoned",
        turn.turn_id,
        ", ".join(progress.open.names()) or "its model",
    )
    turn.abandoned_text = "".join(progress.partial_text)
    turn.emit = turn.emit.detach()
    for ended in progress.open.ends(turn.abandoned_text, "stopped"):
        turn.emit(ended)
    _abandoned.add(run)
    run.add_done_callback(_abandoned.discard)
