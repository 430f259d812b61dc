"""Records the events of all turns as their traces, without delaying the turns.

Entries of concurrent turns are written together, in a thread. A storage failure loses traces and is logged.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path

from nanobot.agent.engine.spec import RunSpec
from nanobot.agent.events import Notice, ReasoningDelta, ReasoningEnded, TextDelta, ToolDelta, TurnEnded, TurnEvent
from nanobot.agent.trace.store import Facts, TraceStore
from nanobot.bus.events import InboundMessage
from nanobot.utils.clock import Clock, timestamp

log = logging.getLogger(__name__)

WRITE_INTERVAL_S = 1.0
"""How long entries are collected; a kill loses at most this much of a trace."""
MAX_NOTICES = 40
_NOT_RECORDED = (TextDelta, ReasoningDelta, ReasoningEnded, ToolDelta)


class TurnTrace:
    """The event sink of one turn. Never blocks or raises. After `close`, or the turn's last event, it ignores more."""

    def __init__(
        self, message: InboundMessage, clock: Clock, put: Callable[[Facts], None], workspace: str = ""
    ) -> None:
        """`put` gets each entry of the trace."""
        self._clock = clock
        self._put = put
        self._began = clock.monotonic()
        self._notices = 0
        self._closed = False
        self._started = {
            "type": "turn_started", "at": timestamp(clock), "workspace": workspace, "origin": message.origin.value,
            "message": message.content,
        }  # fmt: skip
        put(self._started)

    def __call__(self, event: TurnEvent) -> None:
        if self._closed or isinstance(event, _NOT_RECORDED):
            return
        if isinstance(event, Notice):
            self._notices += 1
            if self._notices > MAX_NOTICES:
                return
        self._add(event.to_json())
        self._closed = isinstance(event, TurnEnded)

    def set_message(self, text: str) -> None:
        """Replace the message by what hooks made of it, if it is not written yet."""
        self._started["message"] = text

    def record_request(self, spec: RunSpec) -> None:
        """Record what the model is sent besides the session's rows."""
        self._add(
            {
                "type": "prompt",
                "model": spec.model.name,
                "provider": spec.model.provider_name,
                "history": len(spec.history),
                "until": spec.history[-1].get("timestamp") if spec.history else None,
                "system": spec.system,
                "tools": spec.tools.get_definitions(),
                "limits": asdict(spec.model.limits),
            }
        )

    def close(self) -> None:
        """Ignore further events."""
        self._closed = True

    def _add(self, entry: Facts) -> None:
        entry["t"] = round(self._clock.monotonic() - self._began, 4)
        self._put(entry)


class TraceRecorder:
    """The traces of one bot. `close` it after its turns have ended."""

    def __init__(self, store: TraceStore, clock: Clock, workspace: Path) -> None:
        self._store = store
        self._clock = clock
        self._workspace = str(workspace)
        self._pending: dict[tuple[str, str], list[Facts]] = {}
        """By session and turn."""
        self._writing: asyncio.Task[None] | None = None
        self._is_closed = False
        self._flush = asyncio.Event()

    def open_turn(self, turn_id: str, message: InboundMessage) -> TurnTrace:
        """Return the event sink for a turn."""
        return TurnTrace(message, self._clock, partial(self._add, (message.session_key, turn_id)), self._workspace)

    async def flush(self) -> None:
        """Write what is pending, so that it can be read."""
        self._flush.set()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        self._flush.clear()

    async def close(self) -> None:
        """Write what is pending, and ignore further entries."""
        self._is_closed = True
        await self.flush()

    def _add(self, turn: tuple[str, str], entry: Facts) -> None:
        if self._is_closed:
            return
        self._pending.setdefault(turn, []).append(entry)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write(), name="traces")

    async def _write(self) -> None:
        """Write until nothing is pending."""
        while self._pending:
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITE_INTERVAL_S):
                    await self._flush.wait()
            pending, self._pending = self._pending, {}
            try:
                await asyncio.to_thread(self._store.write, pending)
                if not self._is_closed:
                    await asyncio.to_thread(self._store.sweep_if_due)
            except Exception:  # a trace must not end a turn
                log.exception("traces were lost")
        self._writing = None
