"""TraceWriter: takes the traces of all turns to the disk, beside the turns and never on their way.

What several turns hand on within a moment is written together, in a thread. A disk that refuses costs the traces and a
line in the log.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from nanobot.agent.trace.folder import TraceFolder
from nanobot.agent.trace.turn_trace import Piece, TurnTrace
from nanobot.bus.events import InboundMessage
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

TOGETHER_S = 0.05
"""For so long pieces wait for others; so much of a trace a kill may cost."""


class TraceWriter:
    """The traces of one bot. `close` it when its turns have ended."""

    def __init__(self, folder: TraceFolder, clock: Clock, workspace: Path) -> None:
        self._folder = folder
        self._clock = clock
        self._workspace = str(workspace)
        self._waiting: list[Piece] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def open_turn(self, turn_id: str, message: InboundMessage) -> TurnTrace:
        """A sink for the turn that begins. Costs nothing on the disk until something happens in it."""
        return TurnTrace(turn_id, message, self._clock, self._put, workspace=self._workspace)

    async def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._waiting:
            await asyncio.to_thread(self._write, self._take(), sweep=False)

    def _put(self, piece: Piece) -> None:
        self._waiting.append(piece)
        self._write_soon()

    def _write_soon(self) -> None:
        if self._timer is None and self._writing is None:
            with suppress(RuntimeError):  # without an event loop `close` writes it
                self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._write_now)

    def _write_now(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, self._take())
        self._writing.add_done_callback(self._wrote)

    def _wrote(self, _: "asyncio.Future[None]") -> None:
        self._writing = None
        if self._waiting:
            self._write_soon()

    def _take(self) -> list[Piece]:
        taken, self._waiting = self._waiting, []
        return taken

    def _write(self, pieces: list[Piece], *, sweep: bool = True) -> None:
        try:
            self._folder.write(pieces)
            if sweep:
                self._folder.sweep_if_due()
        except Exception:  # in a thread nobody waits for; no turn ends for its trace
            log.exception("traces were lost")
