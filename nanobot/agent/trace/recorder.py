"""Writes the traces of all turns to disk without delaying the turns.

Records of concurrent turns are written together, in a thread. A storage failure loses traces and is logged.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path

from nanobot.agent.trace.store import TraceStore
from nanobot.agent.trace.turn_trace import TraceRecord, TurnTrace
from nanobot.bus.events import InboundMessage
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)

BATCH_DELAY_S = 0.05
"""Delay in which records are batched; a kill loses at most this much of a trace."""


class TraceRecorder:
    """The traces of one bot. `close` it after its turns have ended."""

    def __init__(self, store: TraceStore, clock: Clock, workspace: Path) -> None:
        self._store = store
        self._clock = clock
        self._workspace = str(workspace)
        self._pending: list[TraceRecord] = []
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def open_turn(self, turn_id: str, message: InboundMessage) -> TurnTrace:
        """Return the event sink for a turn. Nothing is written before the first event."""
        return TurnTrace(turn_id, message, self._clock, self._add, workspace=self._workspace)

    async def close(self) -> None:
        """Write what is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._pending:
            await asyncio.to_thread(self._write, self._take_pending(), sweep=False)

    def _add(self, record: TraceRecord) -> None:
        self._pending.append(record)
        self._schedule_write()

    def _schedule_write(self) -> None:
        if self._timer is None and self._writing is None:
            with suppress(RuntimeError):  # without an event loop, `close` writes it
                self._timer = asyncio.get_running_loop().call_later(BATCH_DELAY_S, self._write_now)

    def _write_now(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, self._take_pending())
        self._writing.add_done_callback(self._on_written)

    def _on_written(self, _: "asyncio.Future[None]") -> None:
        self._writing = None
        if self._pending:
            self._schedule_write()

    def _take_pending(self) -> list[TraceRecord]:
        records, self._pending = self._pending, []
        return records

    def _write(self, records: list[TraceRecord], *, sweep: bool = True) -> None:
        try:
            self._store.write(records)
            if sweep:
                self._store.sweep_if_due()
        except Exception:  # runs in a background thread; a trace must not end a turn
            log.exception("traces were lost")
