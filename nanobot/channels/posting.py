"""What platforms have in common where messages are posted, and perhaps edited: splitting, streaming, files, signs.

A platform says how one piece is posted and how one is edited; what happens when is here, once. A growing answer is
shown by making its pieces anew from all that is there so far: a message that has changed is edited, a piece that has no
message yet is posted. So what stands there at the end is the reply, whatever came between.
"""

import asyncio
import logging
import secrets
import time
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from nanobot.bus.events import Address, Button, Growth, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import MAY_REPEAT, BaseChannel
from nanobot.channels.errors import NotConnectedError, SendError, UndeliverableError
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import Outgoing, outgoing
from nanobot.channels.text.dialects import PLAIN, Dialect
from nanobot.channels.text.growing import so_far
from nanobot.channels.text.pieces import Piece, pieces
from nanobot.utils.newest import put_newest

log = logging.getLogger(__name__)

TYPING_S = 4.0
"""How often a platform is told again that the bot is at work."""
LONGEST_TYPING_S = 600.0
_MOST_STREAMS = 256
"""Growing answers that are remembered; turns that a crash elsewhere cut off leave theirs behind."""


@dataclass(frozen=True, slots=True)
class Posting:
    """How one piece is posted."""

    reply_to: str | None = None
    buttons: tuple[Button, ...] = ()
    nonce: str | None = None
    """The same for the same piece, also after a crash: a platform that knows such a thing takes it once."""
    quiet: bool = False
    """Whether it should make no sound: a sign of progress, not the reply."""


@dataclass(slots=True)
class _Stream:
    """A part of an answer that grows: what is said, and which messages show it."""

    turn_id: str
    text: str = ""
    ids: list[str] = field(default_factory=list)
    shown: list[Piece | None] = field(default_factory=list)
    """What each of them says; None where an earlier life of ours wrote it."""
    reply_to: str | None = None
    whole: bool = False
    """Whether this part is at its end. What comes then is another part, or the reply itself."""
    pending: str = ""
    """The nonce of a message that is being posted, or was when a crash or a broken line came: there may be one more."""
    since: float = 0.0
    """When that was tried first, by the journal's clock."""
    doubtful: bool = False
    """Whether there may be one more that cannot be found again."""

    @property
    def growth(self) -> Growth:
        """As the journal keeps it."""
        return Growth(tuple(self.ids), self.pending, self.since, self.doubtful)


class PostingChannel(BaseChannel):
    """A channel on such a platform."""

    dialect: ClassVar[Dialect] = PLAIN
    largest_file: ClassVar[int] = 20 * 1024 * 1024
    """In bytes; larger ones the platform refuses."""
    takes_once_s: ClassVar[float] = 0.0
    """How long the platform drops what comes again with the same nonce; 0 where it knows no such thing."""
    can_edit: ClassVar[bool] = False
    can_react: ClassVar[bool] = False

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._streams: dict[str, _Stream] = {}
        self._typing: dict[Address, asyncio.Task[None]] = {}

    @abstractmethod
    async def post(self, to: Address, piece: Piece, how: Posting) -> str:
        """Post one piece; its id there. Raises SendError; safe to cancel."""

    async def edit(self, to: Address, platform_id: str, piece: Piece) -> None:
        """Make a posted message say this. Raises SendError, UndeliverableError where it is gone; safe to cancel."""
        raise UndeliverableError(f"{self.name} cannot edit messages such as {platform_id}")

    async def post_file(self, to: Address, file: Outgoing, how: Posting) -> str:
        """Post one file; the id of its message there. Raises SendError; safe to cancel."""
        raise UndeliverableError(f"{self.name} cannot send files")

    async def show_typing(self, to: Address) -> None:
        """Say that the bot is at work; what it says wears off after some seconds. Raises SendError."""

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Put a sign on somebody's message. Raises SendError."""

    def largest_to(self, to: Address) -> int:
        """In bytes, for platforms that say it chat by chat."""
        return self.largest_file

    @property
    def supports_streaming(self) -> bool:
        """Whether answers are shown as they grow: where messages can be edited, unless the config says no."""
        return self.can_edit and getattr(self.config, "streaming", True) is not False

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Post a message, in as many pieces as it takes, and its files. A second try goes on where the first ended."""
        to = Address(message.channel, message.chat_id, message.thread_id)
        text = message.content + (MAY_REPEAT if self._may_be_seen_twice(message) else "")
        parts: list[Piece | Outgoing] = [*pieces(text, self.dialect)] if text.strip() else []
        for named in message.media:
            try:
                parts.append(await outgoing(named, largest=self.largest_to(to)))
            except MediaError as error:
                parts += pieces(f"({error})", self.dialect)
        for number, part in enumerate(parts):
            if number < len(message.sent_ids):
                continue
            how = Posting(
                reply_to=message.reply_to if number == 0 else None,
                buttons=message.buttons if number == len(parts) - 1 else (),
                nonce=f"{message.journal_id}-{number}" if message.journal_id is not None else None,
                quiet=message.kind in (OutboundKind.PROGRESS, OutboundKind.TOOL_HINT, OutboundKind.REASONING),
            )
            sent = self.post_file(to, part, how) if isinstance(part, Outgoing) else self.post(to, part, how)
            message.sent_ids = (*message.sent_ids, await sent)
            if number < len(parts) - 1:
                await self.bus.sending(message)  # a crash now must not send this piece again
        return message.sent_ids

    def _may_be_seen_twice(self, message: OutboundMessage) -> bool:
        """Whether the person may have it already: not while the platform drops what comes with the same nonce."""
        if not message.may_repeat or message.journal_id is None:
            return message.may_repeat
        return not self._takes_once(message.held_at)

    def _takes_once(self, since: float) -> bool:
        """Whether the platform still drops what comes again with a nonce of that time, by a clock that outlives us."""
        return 0 <= time.time() - since < self.takes_once_s

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        """Show a message of any kind; its ids there."""
        to = Address(message.channel, message.chat_id, message.thread_id)
        match message.kind:
            case OutboundKind.STREAM_DELTA:
                await self._grow(to, message)
                return ()
            case OutboundKind.STREAM_END:
                await self._end_part(to, message)
                return ()
            case OutboundKind.RECEIPT:
                await self._acknowledge(to, message)
                return ()
            case OutboundKind.REPLY:
                self._stop_typing(to)
                return await self._reply(to, message)
            case OutboundKind.TOOL_HINT:
                return await self.send(replace(message, content=f"`{message.content.replace('`', '')}`"))
            case _:
                return await self.send(message)

    def accepted(self, to: Address) -> None:
        """Who is let in sees that the bot is at work."""
        self._start_typing(to)

    async def stop(self) -> None:
        """Nothing more is shown."""
        for task in self._typing.values():
            task.cancel()
        self._typing.clear()

    async def _grow(self, to: Address, message: OutboundMessage) -> None:
        stream = self._stream_of(message)  # one that a crash left too: the reply has all that it said
        if stream is None or stream.whole:
            stream = self._keep_stream(_Stream(message.turn_id or "", reply_to=message.reply_to))
        stream.text += message.content
        await self._show(to, stream, so_far(stream.text))

    async def _end_part(self, to: Address, message: OutboundMessage) -> None:
        stream = self._streams.get(message.turn_id or "")
        if stream is not None and not stream.whole:
            stream.text, stream.whole = message.content or stream.text, True
            await self._show(to, stream, stream.text)

    async def _reply(self, to: Address, message: OutboundMessage) -> tuple[str, ...]:
        """Where the reply stands already, as it grew, it is made to say exactly this; else it is sent.

        One that grew before a crash too: so nobody reads it twice. What fails is there for the next try.
        """
        stream = self._stream_of(message)
        if stream is None:
            return await self.send(message)
        if stream.pending and not self._takes_once(stream.since):
            stream.pending, stream.doubtful = "", True
        message.may_repeat = stream.doubtful or (message.may_repeat and not (stream.ids or stream.pending))
        if stream.doubtful:
            message.held_at = 0.0  # the nonce of the message does not help against what grew
        if (stream.ids or stream.pending) and stream.text.strip() in message.content:
            try:
                await self._show(to, stream, message.content + (MAY_REPEAT if message.may_repeat else ""))
            except UndeliverableError as error:  # somebody deleted it
                log.debug("%s: a growing answer is gone (%s); it is sent anew", self.name, error)
            else:
                files = replace(message, content="", sent_ids=()) if message.media else None
                sent = (*stream.ids, *(await self.send(files) if files is not None else ()))
                del self._streams[stream.turn_id]
                return sent
        del self._streams[stream.turn_id]
        await self.bus.showing(stream.turn_id, Growth())
        return await self.send(message)

    async def _show(self, to: Address, stream: _Stream, text: str) -> None:
        """Make the messages of a growing answer say what there is of it."""
        if not text.strip():
            return
        for number, piece in enumerate(pieces(text, self.dialect)):
            if number >= len(stream.ids):
                await self._post_growing(to, stream, piece)
            elif stream.shown[number] != piece:
                await self.edit(to, stream.ids[number], piece)
                stream.shown[number] = piece

    async def _post_growing(self, to: Address, stream: _Stream, piece: Piece) -> None:
        """One message more. Where the one of a try before is there already, it is made to say this."""
        is_again = bool(stream.pending)
        if not is_again:
            stream.pending, stream.since = secrets.token_hex(8), time.time()
            await self.bus.showing(stream.turn_id, stream.growth)
        how = Posting(reply_to=None if stream.ids else stream.reply_to, nonce=stream.pending)  # it is heard once
        try:
            posted = await self.post(to, piece, how)
            if is_again and self._takes_once(stream.since):
                await self.edit(to, posted, piece)
            elif is_again:
                stream.doubtful = True
        except SendError as error:
            if not (is_again or error.may_have_it):
                stream.pending = ""
            raise
        stream.pending = ""
        stream.ids.append(posted)
        stream.shown.append(piece)
        await self.bus.showing(stream.turn_id, stream.growth)

    async def _acknowledge(self, to: Address, message: OutboundMessage) -> None:
        """A message waits its turn: a sign on it where there are signs, else a word."""
        emoji = str(getattr(self.config, "react_emoji", "") or "")
        if self.can_react and message.reply_to is not None and emoji:
            await self.react(to, message.reply_to, emoji)
        else:
            await self.send(message)

    def _stream_of(self, message: OutboundMessage) -> _Stream | None:
        """The growing answer of its turn, also one that a crash left."""
        turn_id = message.turn_id or ""
        if turn_id in self._streams:
            return self._streams[turn_id]
        if (left := self.bus.shown(turn_id)) is None:
            return None
        stream = _Stream(turn_id, ids=[*left.ids], shown=[None] * len(left.ids))
        stream.pending, stream.since, stream.doubtful = left.pending, left.since, left.doubtful
        return self._keep_stream(stream)

    def _keep_stream(self, stream: _Stream) -> _Stream:
        put_newest(self._streams, stream.turn_id, stream, _MOST_STREAMS)
        return stream

    def _start_typing(self, to: Address) -> None:
        if type(self).show_typing is PostingChannel.show_typing or to in self._typing:
            return
        task = self._typing[to] = asyncio.create_task(self._keep_typing(to), name=f"{self.name} typing")
        task.add_done_callback(lambda done: self._typing.pop(to, None) if self._typing.get(to) is done else None)

    def _stop_typing(self, to: Address) -> None:
        if (task := self._typing.pop(to, None)) is not None:
            task.cancel()

    async def _keep_typing(self, to: Address) -> None:
        try:
            async with asyncio.timeout(LONGEST_TYPING_S):
                while True:
                    await self.show_typing(to)
                    await asyncio.sleep(TYPING_S)
        except (SendError, NotConnectedError, TimeoutError):
            return  # it is a courtesy
        except Exception:  # the wall of a connection: nothing waits for this
            log.debug("%s: typing was not shown", self.name, exc_info=True)
