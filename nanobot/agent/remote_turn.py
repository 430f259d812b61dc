"""A turn in the running gateway, followed through its local socket or over HTTP: for the terminal and for programs."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from nanobot.agent import events
from nanobot.agent.events import Emitter, EventSink, OpenEvents, TurnEnded, TurnEvent, event_from_json
from nanobot.errors import NanobotError
from nanobot.net import gateway_socket
from nanobot.net.gateway_socket import Frame, GatewayError, GatewayGoneError, ask

RETRY_S = 1.0
RETRIES = 30
"""A gateway that does not answer that often has not just restarted."""
_STOP_S = 2.0
"""How long a turn that was stopped has to report its end."""
_ENDED = "The gateway ended during this turn. The text so far is kept; your next message or chat continues it."
_AGAIN = "The answer was started again."
_BROKEN_OFF = "The gateway ended during this call."


class RemoteTurn:
    """Passes the events of a turn to a sink, each text and each call once, however often its client connects."""

    def __init__(self, sink: EventSink, turn_id: str = "") -> None:
        self.sink = sink
        self.ended: TurnEnded | None = None
        self._reset(turn_id)

    def _reset(self, turn_id: str) -> None:
        self.turn_id = turn_id
        self._emit = Emitter(turn_id, self.sink)
        self._epoch = ""
        """The process that runs it."""
        self._seq = -1
        """Of the last event from there."""
        self._open = OpenEvents()
        self._calls: set[str] = set()
        self._text = ""
        """All texts of the answer that were passed on."""
        self._part = ""
        """Of these, the text that is open."""
        self._expected = ""
        """Text that was passed on and comes again."""
        self._known = ""
        """What came again of the text that comes now."""

    @property
    def seen(self) -> str:
        """What a client that comes back has seen, as `TURN.EPOCH.SEQ`."""
        return f"{self.turn_id}.{self._epoch}.{self._seq}"

    def receive(self, frame: Frame) -> bool:
        """Handle a frame of Feed.follow_turn; False if it is none."""
        match frame:
            case {"type": "turn", "turn_id": turn_id, "epoch": epoch}:
                self._begin(turn_id, epoch)
            case {"type": "turn_restored", "parts": parts}:
                self._restore(parts)
            case _ if (event := event_from_json(frame)) is not None:
                self._seq = event.seq
                self(event)
            case _:
                return False
        return True

    def _begin(self, turn_id: str, epoch: str) -> None:
        """The turn's events come now from this process. Those of another one may have broken off."""
        if self.turn_id != turn_id:
            self._reset(turn_id)
        if self._epoch not in ("", epoch):
            self._end_open_events()
            self._expected, self._text, self._seq = self._text, "", -1
        self._epoch = epoch

    def _restore(self, parts: Sequence[Mapping[str, Any]]) -> None:
        """Pass on what the turn has shown before and the sink has not."""
        for part in parts:
            match part:
                case {"type": "text", "text": text}:
                    self._known = self._known if part.get("continues") else ""
                    self._say(text)
                case {"type": "tool", "call_id": str(call_id), "name": name, "arguments": arguments}:
                    if call_id not in self._calls:
                        self._start_step()
                        self(events.ToolStarted(call_id=call_id, name=name, arguments=arguments))
                    if call_id in self._open and "ok" in part:
                        fields = {field: part[field] for field in ("ok", "content", "seconds")}
                        self(events.ToolEnded(call_id=call_id, name=name, display=part.get("display"), **fields))
                case {"type": "approval", "question": question} if "answer" not in part and question not in self._open:
                    asked = event_from_json({**part, "type": events.ApprovalAsked.type})
                    assert asked is not None  # noqa: S101 the type exists
                    self(asked)

    def __call__(self, event: TurnEvent) -> None:
        """Pass an event on."""
        match event:
            case events.TextDelta(text=text):
                self._say(text)
                return
            case events.TextStarted(continues=continues):
                self._known = self._known if continues else ""
                self._part = ""
                if self._expected:  # passed on with the first text that is new
                    return
            case events.TextEnded() if "text" not in self._open:
                return
            case events.ReasoningDelta() | events.ReasoningEnded() if "reasoning" not in self._open:
                return
            case events.TextEnded():
                event = replace(event, text=self._part)
            case events.ToolStarted(call_id=call_id):
                self._calls.add(call_id)
            case TurnEnded():
                self._end_open_events()
                self.ended = event
        self._open.apply(event)
        self._emit(event)

    def _say(self, text: str) -> None:
        """Pass on text of the answer, without the beginning that the sink has. Another beginning is a new answer."""
        pairs = enumerate(zip(text, self._expected, strict=False))
        length = next((at for at, (one, other) in pairs if one != other), min(len(text), len(self._expected)))
        again = text[:length]
        self._expected = self._expected[length:]
        self._text += again
        self._known += again
        new = text[length:]
        if not new:
            return
        if self._expected:
            self._expected, self._known, new = "", "", self._known + new
            self(events.Notice(text=_AGAIN))
        if "text" not in self._open:
            self._start_step()
            self(events.TextStarted(continues=bool(self._known) or None))
        self._text += new
        self._part += new
        self._emit(events.TextDelta(text=new))

    def _start_step(self) -> None:
        """Of what a snapshot has: it has no steps."""
        if "step" not in self._open:
            self(events.StepStarted(step=0))

    def _end_open_events(self) -> None:
        """Of a process that was killed, or of a snapshot."""
        for event in self._open.ends(self._part, _BROKEN_OFF):
            self(event)


async def follow_turn(
    turn: RemoteTurn,
    connect: Callable[[], AsyncGenerator[Frame, None]],
    stop: Callable[[], Awaitable[bool]],
    on_frame: Callable[[Frame], object] = lambda frame: None,
    *,
    retry_s: float = RETRY_S,
    retries: int = RETRIES,
) -> TurnEnded | None:
    """Pass on the events of a turn until it ends; None if there is nothing to follow.

    `connect` sends a request and yields the frames of Feed.follow_turn. When they end too early, or it raises
    GatewayGoneError after the first one, the gateway is waited for. Cancelling stops the turn. Frames that are no
    events of the turn go to `on_frame`. Raises GatewayGoneError if nothing was sent, GatewayError if the gateway
    refuses or does not come back.
    """
    failures, is_sent, turn.ended = 0, False, None

    async def read() -> bool:
        """Return whether the turn is over."""
        nonlocal failures, is_sent
        async with aclosing(connect()) as frames:
            async for frame in frames:
                is_sent, failures = True, 0
                if not turn.receive(frame):
                    on_frame(frame)
                if turn.ended is not None or frame["type"] == "nothing":
                    return True
        return False

    try:
        while True:
            try:
                if await read():
                    return turn.ended
            except GatewayGoneError:
                if not is_sent:
                    raise
            failures += 1
            if failures > retries:
                raise GatewayError(_ENDED)
            await asyncio.sleep(retry_s)
    except asyncio.CancelledError:
        with suppress(TimeoutError, NanobotError):
            async with asyncio.timeout(_STOP_S):
                if await stop():
                    await read()
        raise


async def socket_frames(state: Path, request: Frame, turn: RemoteTurn) -> AsyncGenerator[Frame, None]:
    """Send a request for a turn through the local socket and yield its frames.

    Raises GatewayGoneError, GatewayError.
    """
    async with gateway_socket.connect(state) as connection:
        if connection is None:
            raise GatewayGoneError
        connection.send({**request, "seen": turn.seen})
        yield {"type": "sent"}
        while (frame := await connection.receive()) is not None:
            yield frame


async def stop_turn(state: Path, session: str, turn_id: str | None = None) -> bool:
    """Stop the running turn of a session; with an id only that one. Return False if it does not run."""
    return bool((await ask(state, {"do": "stop turn", "session": session, "turn": turn_id}))["stopped"])
