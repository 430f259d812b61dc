"""The feed: the events of all turns in this process, for the page, the API and the local socket.

A reader takes a snapshot, which carries its position in the feed, and continues from there without a gap. The feed is
bounded: a reader that fell too far behind takes a new snapshot.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from nanobot.agent import events
from nanobot.agent.engine.transcript import is_answer, is_continuation, is_interrupted, outcome_of, outcome_text
from nanobot.agent.events import EventSink, TurnEvent
from nanobot.bus.events import InboundMessage, OutboundMessage
from nanobot.errors import NanobotError
from nanobot.messages.types import ChatMessage, Origin, text_of
from nanobot.providers.base import parse_arguments
from nanobot.session.types import Session

_MAX_ENDED = 100
_MAX_ITEMS = 20_000
_MAX_SIZE = 8_000_000
"""Characters of text in all items."""


class FeedClosedError(NanobotError):
    """The process ends: there will be no more events."""


class FeedPositionError(NanobotError):
    """The feed does not reach back to this position, or it belongs to another process. Take a new snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(TurnEvent):
    """The agent took a message. Only in the feed, before all other events of the turn."""

    type: ClassVar[str] = "turn_started"
    text: str
    message_id: str | None
    sender_id: str
    origin: str
    media: list[str]
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePosted(TurnEvent):
    """A message to a session of the feed's own channels that answers none of its messages, such as a job's report."""

    type: ClassVar[str] = "message_posted"
    text: str
    media: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed(TurnEvent):
    """Something changed that readers may have on screen: `sessions`, `inbox`, `jobs`, `memory`, `config`."""

    type: ClassVar[str] = "changed"
    topic: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesJoined(TurnEvent):
    """Lines that waited in a terminal have joined its turn."""

    type: ClassVar[str] = "lines_joined"
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRestored(TurnEvent):
    """What a turn has shown before a crash, as the parts of its view. Only in the feed."""

    type: ClassVar[str] = "turn_restored"
    parts: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class FeedItem:
    """An event, its position, and the session and channel of its turn (empty for Changed)."""

    position: int
    session: str
    channel: str
    event: TurnEvent


class _Changes:
    """The next change, for those who wait for it."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def wait(self) -> None:
        await self._next.wait()

    def wake(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


@dataclass(slots=True)
class TurnView:
    """What a running turn has shown so far. The page has the same reducer: webui/static/app/turn_view.js."""

    started: TurnStarted
    session: str
    channel: str
    seq: int = -1
    parts: list[dict[str, Any]] = field(default_factory=list)
    """In order: `text`, `reasoning`, `tool`, `notice` and `approval` parts."""
    ended: events.TurnEnded | None = None
    position: int = -1
    """In the feed, of its start; -1 if it is no longer there."""
    version: int = 0
    """Counts the changes."""
    _readers: _Changes = field(default_factory=_Changes)

    async def wait(self, version: int) -> None:
        """Wait until it has changed since this version."""
        while version == self.version:
            await self._readers.wait()

    def changed(self) -> None:
        """Wake the readers."""
        self.version += 1
        self._readers.wake()

    def apply(self, event: TurnEvent) -> None:
        """Apply the next event."""
        self.seq = event.seq
        kind = event.type.partition("_")[0]
        match event:
            case events.TextStarted(continues=True):
                self.parts.append({"type": "text", "text": [], "continues": True})
            case events.TextStarted() | events.ReasoningStarted():
                self.parts.append({"type": kind, "text": []})
            case events.TextDelta(text=text) | events.ReasoningDelta(text=text):
                self._last(kind)["text"].append(text)
            case events.TextEnded(text=text) | events.ReasoningEnded(text=text):
                self._last(kind)["text"] = [text]
            case events.ToolStarted(call_id=call_id, name=name, arguments=arguments):
                self.parts.append({"type": "tool", "call_id": call_id, "name": name, "arguments": arguments})
            case events.ToolDelta(call_id=call_id, text=text):
                self._last("tool", call_id=call_id)["progress"] = text
            case events.ToolEnded(call_id=call_id):
                result = {"ok": event.ok, "content": event.content, "seconds": event.seconds, "display": event.display}
                self._last("tool", call_id=call_id).update(result)
            case events.Notice():
                self.parts.append({"type": "notice", "text": event.text, "kind": event.kind})
            case events.ApprovalAsked():
                self.parts.append({**event.to_json(), "type": "approval"})
            case events.ApprovalAnswered(question=question, answer=answer):
                self._last("approval", question=question)["answer"] = answer
            case events.TurnEnded():
                self.ended = event
            case _:
                pass
        self.changed()

    def to_json(self) -> dict[str, Any]:
        """The view as `{turn_id, session, channel, seq, started, parts}`."""
        return {
            "turn_id": self.started.turn_id,
            "session": self.session,
            "channel": self.channel,
            "seq": self.seq,
            "started": self.started.to_json(),
            "parts": _parts_to_json(self.parts),
        }

    def _last(self, kind: str, **fields: str) -> dict[str, Any]:
        """The newest part of this kind with these fields; a new one if there is none."""
        part: dict[str, Any]
        for part in reversed(self.parts):
            if part["type"] == kind and all(part.get(name) == value for name, value in fields.items()):
                return part
        new: dict[str, Any] = {"type": kind, **fields} if fields else {"type": kind, "text": []}
        self.parts.append(new)
        return new


class Feed:
    """The newest events of all turns, and a view of each running turn."""

    def __init__(self) -> None:
        self.epoch = secrets.token_hex(4)
        """Names this process: positions of another one mean nothing here."""
        self._items: list[FeedItem] = []
        self._next = 0
        self._size = 0
        self._views: dict[str, TurnView] = {}
        self._ended: dict[str, TurnView] = {}
        """Of programs and terminals, which may come back for the rest of an answer."""
        self._readers = _Changes()
        self._is_closed = False

    @property
    def position(self) -> int:
        """The position of the newest item; -1 before the first."""
        return self._next - 1

    @property
    def cursor(self) -> str:
        """The position for clients, which may come back to another process."""
        return self.cursor_at(self.position)

    def cursor_at(self, position: int) -> str:
        """A position for clients."""
        return f"{self.epoch}.{position}"

    def views(self, session: str | None = None) -> Iterator[TurnView]:
        """The running and waiting turns, of one session or of all, oldest first."""
        return (view for view in [*self._views.values()] if session in (None, view.session))

    def view(self, turn_id: str) -> TurnView | None:
        """The view of a turn that runs or waits, or of a client's that ended just now."""
        return self._views.get(turn_id) or self._ended.get(turn_id)

    async def wait_view(self, turn_id: str, is_open: Callable[[], bool]) -> TurnView | None:
        """Wait for the view of a turn whose message `is_open`: it may wait behind others, or be recovered after a
        crash. None if the turn is over. Raises FeedClosedError.
        """
        while (view := self.view(turn_id)) is None and is_open():
            if self._is_closed:
                raise FeedClosedError("nanobot stops")
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._readers.wait()
        return view or self.view(turn_id)

    def restore(self, turn_id: str, parts: Iterable[dict[str, Any]]) -> None:
        """Show what a resumed turn had shown before the crash."""
        if (view := self._views.get(turn_id)) is not None:
            restored = [*parts]
            view.parts += restored
            view.changed()
            self._publish(view.session, view.channel, TurnRestored(turn_id=turn_id, parts=_parts_to_json(restored)))

    def open_turn(self, turn_id: str, message: InboundMessage) -> EventSink:
        """Publish that a turn starts. Return the sink for its events."""
        session, channel = message.session_key, message.channel
        started = TurnStarted(
            turn_id=turn_id,
            text=message.content,
            message_id=message.message_id,
            sender_id=message.sender_id,
            origin=message.origin,
            media=message.media,
            at=datetime.now().astimezone().isoformat(timespec="milliseconds"),
        )
        view = self._views[turn_id] = TurnView(started, session, channel, position=self._next)
        self._publish(session, channel, started)

        def sink(event: TurnEvent) -> None:
            view.apply(event)
            if isinstance(event, events.TurnEnded):
                self._views.pop(turn_id, None)
                if message.origin in (Origin.API, Origin.CLI):
                    self._ended[turn_id] = view
                    if len(self._ended) > _MAX_ENDED:
                        del self._ended[next(iter(self._ended))]
            self._publish(session, channel, event)

        return sink

    def changed(self, topic: str) -> None:
        """Tell readers that something changed."""
        self._publish("", "", Changed(topic=topic))

    def post(self, message: OutboundMessage) -> int:
        """Publish a message that was sent to a session. Return its position."""
        event = MessagePosted(turn_id=message.turn_id or "", text=message.content, media=message.media)
        self._publish(f"{message.channel}:{message.chat_id}", message.channel, event)
        return self.position

    def items_after(self, position: int) -> list[FeedItem]:
        """The items after this position. Raises FeedPositionError."""
        start = position + 1 - (self._next - len(self._items))
        if not 0 <= start <= len(self._items):
            raise FeedPositionError("These events are no longer kept. Load the session again.")
        return self._items[start:]

    async def follow(
        self, after: str = "", *, ping_s: float | None = None, batch_s: float = 0.0
    ) -> AsyncGenerator[list[FeedItem] | None, None]:
        """Yield the items after a cursor, or from now on, until the process ends.

        None tells a reader that items are missing, because the cursor is of another process or too old: it takes a
        snapshot, and is given what comes after `cursor`. An empty list follows after `ping_s` without an item. Items of
        `batch_s` come together.
        """
        epoch, _, number = after.partition(".")
        position = self.position
        if epoch == self.epoch and number.lstrip("-").isdigit():
            position = int(number)
        elif after:
            yield None
        while not (self._is_closed and position == self.position):
            if position == self.position:
                try:
                    async with asyncio.timeout(ping_s):
                        await self._readers.wait()
                except TimeoutError:
                    yield []
                continue
            if batch_s:
                await asyncio.sleep(batch_s)
            try:
                items = self.items_after(position)
            except FeedPositionError:
                position = self.position
                yield None
            else:
                position = items[-1].position
                yield items

    async def follow_turn(
        self, view: TurnView, seen: str = "", *, ping_s: float | None = None
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield a turn as JSON for a client: `turn`, which names this process, then its events until it ends.

        A client that comes back has `seen` events: `TURN.EPOCH.SEQ` of the last one. What the turn has shown before a
        crash, or before the oldest event that is kept, comes first, as TurnRestored. In a silence there is a `ping`
        every `ping_s`.
        """
        turn_id = view.started.turn_id
        before, _, number = seen.rpartition(".")
        seq = int(number) if before == f"{turn_id}.{self.epoch}" and number.isdigit() else -1
        is_new = seq < 0
        position = view.position - 1
        yield {"type": "turn", "turn_id": turn_id, "epoch": self.epoch}
        try:
            self.items_after(position)
        except FeedPositionError:
            position, seq = self.position, view.seq
            yield TurnRestored(turn_id=turn_id, parts=_parts_to_json(view.parts)).to_json()
            if view.ended is not None:
                yield view.ended.to_json()
                return
        async for items in self.follow(self.cursor_at(position), ping_s=ping_s):
            if items is None:
                raise FeedClosedError("The client was too slow.")  # it comes back
            for item in items:
                event = item.event
                if event.turn_id == turn_id and (
                    event.seq > seq or isinstance(event, LinesJoined) or (is_new and isinstance(event, TurnRestored))
                ):
                    yield event.to_json()
                    if isinstance(event, events.TurnEnded):
                        return
            if not items:
                yield {"type": "ping"}

    def join_lines(self, turn_id: str, count: int) -> None:
        """Publish that lines of a terminal have joined a turn."""
        if (view := self._views.get(turn_id)) is not None:
            self._publish(view.session, view.channel, LinesJoined(turn_id=turn_id, count=count))

    def close(self) -> None:
        """End the readers once they have read everything."""
        self._is_closed = True
        self._readers.wake()

    def _publish(self, session: str, channel: str, event: TurnEvent) -> None:
        self._items.append(FeedItem(self._next, session, channel, event))
        self._next += 1
        self._size += _size_of(event)
        if len(self._items) > _MAX_ITEMS or self._size > _MAX_SIZE:
            del self._items[: (len(self._items) + 1) // 2]
            self._size = sum(_size_of(item.event) for item in self._items)
        self._readers.wake()


def _parts_to_json(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**part, "text": "".join(part["text"])} if "text" in part else {**part} for part in parts]


def _size_of(event: TurnEvent) -> int:
    return len(getattr(event, "text", "")) + len(getattr(event, "content", ""))


def parts_of_turn(rows: Iterable[ChatMessage], turn_id: str) -> list[dict[str, Any]]:
    """The texts and tool calls of a turn as parts of its view, from the rows of its session."""
    parts: list[dict[str, Any]] = []
    tools: dict[str, dict[str, Any]] = {}
    continues = False
    for row in rows:
        if row.get("turn_id") != turn_id:
            continue
        if row["role"] == "user":
            continues = is_continuation(row)
        elif row["role"] == "tool" and (call_of := tools.get(row.get("tool_call_id", ""))) is not None:
            call_of.update({"ok": "failure" not in row, "content": text_of(row["content"]), "seconds": 0.0})
        elif row["role"] == "assistant":
            if (text := text_of(row["content"])) and "reply" not in row and not row.get("sent_back"):
                parts.append({"type": "text", "text": [text], **({"continues": True} if continues else {})})
            for call in row.get("tool_calls", ()):
                arguments, _ = parse_arguments(call["function"]["arguments"])
                tool = {"type": "tool", "call_id": call["id"], "name": call["function"]["name"], "arguments": arguments}
                tools[call["id"]] = tool
                parts.append(tool)
            continues = is_interrupted(row)
    return parts


def stored_view(session: Session, turn_id: str, origin: Origin) -> TurnView | None:
    """What a turn has shown that is over and no longer in the feed, from the rows of its session, without its usage.
    None if it never began.
    """
    rows = [row for row in session.messages if row.get("turn_id") == turn_id]
    if not rows:
        return None
    started = TurnStarted(
        turn_id=turn_id,
        text=text_of(rows[0]["content"]),
        message_id=turn_id,
        sender_id=str(rows[0].get("sender_id", "")),
        origin=origin,
        media=list(rows[0].get("media", ())),
        at=str(rows[0].get("timestamp", "")),
    )
    view = TurnView(started, session.key, session.key.partition(":")[0], parts=parts_of_turn(rows, turn_id))
    text = outcome_text(rows) if is_answer(rows[-1]) else ""
    outcome, error = outcome_of(rows[-1]), rows[-1].get("error")
    view.ended = events.TurnEnded(turn_id=turn_id, outcome=outcome, text=text, error=error)
    return view
