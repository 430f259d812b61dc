"""Splitting, streaming, files and receipts for platforms where messages are posted and perhaps edited.

A platform implements how one chunk is posted and edited. A streamed answer is split again from its whole text at each
update: changed chunks are edited, new ones posted. So the platform shows exactly the reply at the end, whatever failed
in between.
"""

import asyncio
import logging
import secrets
import time
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from nanobot.bus.events import Address, Button, OutboundKind, OutboundMessage, StreamUpdate
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import MAY_REPEAT_NOTE, UNCONFIRMED_NOTE, BaseChannel, repeat_note
from nanobot.channels.errors import ChannelSetupError, RateLimitedError, SendError, UndeliverableError
from nanobot.channels.media import MediaError
from nanobot.channels.outgoing import Outgoing, prepare_outgoing
from nanobot.markdown import Chunk, Dialect, split_message
from nanobot.markdown.dialects import PLAIN
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_MAX_STREAMS = 256
"""Streamed answers kept in memory; interrupted turns never end theirs."""


@dataclass(frozen=True, slots=True)
class SendOptions:
    """How one chunk or file is posted."""

    reply_to: str | None = None
    buttons: tuple[Button, ...] = ()
    nonce: str | None = None
    """Idempotency key: the same for the same part, also after a crash."""
    quiet: bool = False
    """Whether to post without a notification sound: progress, not the reply."""
    growing: bool = False
    """Whether it is part of a streamed answer, so that it will be edited."""
    is_retry: bool = False
    """Whether an earlier attempt to post that part may have succeeded."""


@dataclass(slots=True)
class _StreamingMessage:
    """One part of a streamed answer, and the platform messages that show it."""

    turn_id: str
    text: str = ""
    ids: list[str] = field(default_factory=list)
    shown: list[Chunk | None] = field(default_factory=list)
    """The chunk each message shows; None if a previous process posted it."""
    reply_to: str | None = None
    is_complete: bool = False
    """Whether this part has ended. Another part or the reply follows."""
    pending: str = ""
    """The nonce of a post without a known result: in flight, or interrupted by a crash or a lost connection."""
    since: float = 0.0
    """When that post was first tried, by the journal's clock."""
    doubtful: bool = False
    """Whether a message may have been posted whose id is lost."""
    recovered: bool = False
    """Whether it comes from the journal of a previous process."""

    @property
    def note(self) -> str:
        return (MAY_REPEAT_NOTE if self.recovered else UNCONFIRMED_NOTE) if self.doubtful else ""

    @property
    def update(self) -> StreamUpdate:
        return StreamUpdate(tuple(self.ids), self.pending, self.since, self.doubtful)


class ChatChannel(BaseChannel):
    """A channel that posts chunks of text and files."""

    dialect: Dialect = PLAIN
    largest_file: ClassVar[int] = 20 * 1024 * 1024
    """Largest file the platform accepts, in bytes."""
    dedupe_s: ClassVar[float] = 0.0
    """How long the platform drops a second post with the same nonce; 0 if it has no such thing."""
    typing_s: ClassVar[float] = 4.0
    """How often the typing indicator is renewed."""
    can_edit: ClassVar[bool] = False
    can_react: ClassVar[bool] = False

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._streams: dict[str, _StreamingMessage] = {}
        self._typing: dict[Address, asyncio.Task[None]] = {}
        self._active_turns: dict[Address, set[str]] = {}
        """Keys of the messages whose turns run, by chat."""
        self._reactions: set[asyncio.Task[None]] = set()
        self._receipts: dict[str, tuple[str, str] | None] = {}
        """Platform id and reaction of messages that wait their turn, by key; None while it is being added."""

    @abstractmethod
    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post one chunk. Return its platform id. Raises SendError; safe to cancel."""

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a posted message. Raises SendError, UndeliverableError if it is gone; safe to cancel."""
        raise UndeliverableError(f"{self.name} cannot edit messages such as {platform_id}")

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Show that a streamed message is complete, with this chunk; maybe again. Raises SendError; safe to cancel."""

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post one file. Return its platform id. Raises SendError; safe to cancel."""
        raise UndeliverableError(f"{self.name} cannot send files")

    async def post_url(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post the URL of a file: as text, unless the platform shows it in another way. As `post_file`."""
        return await self.post(to, split_message(file.url or file.name, self.dialect)[0], options)

    async def show_typing(self, to: Address) -> None:
        """Show a typing indicator that expires after some seconds. Raises SendError."""

    async def react(self, to: Address, message_id: str, emoji: str) -> str | None:
        """Add a reaction to a message. Return what `take_back` needs, or None if it stays. Raises SendError."""
        return None

    async def take_back(self, to: Address, message_id: str, reaction: str) -> None:
        """Remove a reaction. Raises SendError."""

    def largest_to(self, to: Address) -> int:
        """Largest file for this chat, in bytes."""
        return self.largest_file

    @property
    def supports_streaming(self) -> bool:
        """Whether messages can be edited and the config does not disable streaming."""
        return self.can_edit and getattr(self.config, "streaming", True) is not False

    async def send(self, message: OutboundMessage) -> tuple[str, ...]:
        """Post a message in chunks, then its files. A retry continues after the last part that was sent."""
        part = f"{message.journal_id}-{len(message.sent_ids)}"
        is_safe = message.journal_id is not None and self.is_deduped(part, message.held_at)
        note = "" if is_safe else repeat_note(message)
        if message.parts is None:
            text = message.content + note
            message.parts = [*(split_message(text, self.dialect) if text.strip() else ()), *message.media]
        elif note:
            self._add_note(message, note)
        return await self._send_parts(message, message.parts)

    def _add_note(self, message: OutboundMessage, note: str) -> None:
        """Add the note below the unsent text, or before the next file. Sent parts keep their numbers."""
        sent, parts = len(message.sent_ids), message.parts or []
        alone = split_message(note, self.dialect)
        texts = [part.text for part in parts if isinstance(part, Chunk)]
        if any(alone[-1].text in text for text in texts):
            return
        unsent = split_message(message.content + note, self.dialect)[sent:] if sent < len(texts) else alone
        message.parts = [*parts[:sent], *unsent, *parts[max(sent, len(texts)) :]]

    async def _send_parts(self, message: OutboundMessage, parts: Sequence[Chunk | str]) -> tuple[str, ...]:
        """Post the unsent parts: chunks, and files by path or URL."""
        to = Address(message.channel, message.chat_id, message.thread_id)
        for number, source in enumerate(parts):
            if number < len(message.sent_ids):
                continue
            part: Chunk | Outgoing
            if isinstance(source, Chunk):
                part = source
            else:
                try:
                    part = await prepare_outgoing(source, largest=self.largest_to(to))
                except MediaError as error:  # a text says why
                    part = split_message(f"({error})", self.dialect)[0]
            options = SendOptions(
                reply_to=message.reply_to if number == 0 else None,
                buttons=message.buttons if number == len(parts) - 1 else (),
                nonce=f"{message.journal_id}-{number}" if message.journal_id is not None else None,
                quiet=message.kind in (OutboundKind.PROGRESS, OutboundKind.TOOL_HINT, OutboundKind.REASONING),
            )
            if isinstance(part, Chunk):
                posted = await self.post(to, part, options)
            else:
                posted = await (self.post_url if part.path is None else self.post_file)(to, part, options)
            message.sent_ids = (*message.sent_ids, posted)
            if number < len(parts) - 1:
                await self.bus.record_sending(message)  # a crash now must not send this part again
        return message.sent_ids

    def is_deduped(self, nonce: str, since: float) -> bool:
        """Whether the platform still drops a second post with this nonce, which was first tried at that time (wall
        clock, as after a restart).
        """
        return 0 <= time.time() - since < self.dedupe_s

    async def deliver(self, message: OutboundMessage) -> tuple[str, ...]:
        to = Address(message.channel, message.chat_id, message.thread_id)
        match message.kind:
            case OutboundKind.STREAM_DELTA:
                stream = self._find_stream(message)  # also a recovered one: the reply contains all of its text
                if stream is None or stream.is_complete:
                    stream = self._add_stream(_StreamingMessage(message.turn_id or "", reply_to=message.reply_to))
                stream.text += message.content
                if not self._is_unconfirmed(stream):  # else its end is shown, with a note
                    await self._show(to, stream, stream.text, growing=True)
                return ()
            case OutboundKind.STREAM_END:
                stream = self._streams.get(message.turn_id or "")
                if stream is not None and not stream.is_complete:
                    stream.text, stream.is_complete = message.content or stream.text, True
                    if self._is_unconfirmed(stream):
                        stream.pending, stream.doubtful = "", True
                    await self._show(to, stream, stream.text + stream.note)
                return ()
            case OutboundKind.RECEIPT:
                await self._acknowledge(to, message)
                return ()
            case OutboundKind.REPLY:
                return await self._reply(to, message)
            case OutboundKind.TOOL_HINT:
                return await self.send(replace(message, content=f"`{message.content.replace('`', '')}`"))
            case _:
                return await self.send(message)

    def turn_started(self, to: Address, key: str) -> None:
        """Show the typing indicator until no turn of this chat runs."""
        if type(self).show_typing is ChatChannel.show_typing:
            return
        self._active_turns.setdefault(to, set()).add(key)
        if to not in self._typing:
            self._typing[to] = asyncio.create_task(self._keep_typing(to), name=f"{self.name} typing")

    def turn_ended(self, to: Address, key: str) -> None:
        """Stop the typing indicator, unless another turn of this chat runs. Take the receipt back."""
        if (receipt := self._receipts.pop(key, None)) is not None:
            self._show_later(self.take_back(to, *receipt))
        running = self._active_turns.get(to, set())
        running.discard(key)
        if not running:
            self._active_turns.pop(to, None)
            if (task := self._typing.pop(to, None)) is not None:
                task.cancel()

    def turn_answered(self, to: Address, message_id: str) -> None:
        """Add the reaction of the config to the message, if it names one."""
        emoji = str(getattr(self.config, "done_emoji", "") or "")
        if self.can_react and emoji:
            self._show_later(self.react(to, message_id, emoji))

    def _show_later(self, work: Coroutine[Any, Any, object]) -> None:
        """Change a reaction, while nobody waits for it."""

        async def show() -> None:
            try:
                await work
            except Exception as error:  # an SDK may raise anything, and only the answer counts
                log.debug("%s: a reaction was not shown: %s", self.name, error)

        task = asyncio.create_task(show(), name=f"{self.name} reaction")
        self._reactions.add(task)
        task.add_done_callback(self._reactions.discard)

    async def stop(self) -> None:
        for task in (*self._typing.values(), *self._reactions):
            task.cancel()
        self._typing.clear()
        self._active_turns.clear()

    async def _reply(self, to: Address, message: OutboundMessage) -> tuple[str, ...]:
        """Edit the streamed answer into the reply, or send the reply if it was not streamed.

        Also after a crash, so that nobody reads it twice. Keeps its state if it raises, for a retry.
        """
        stream = self._find_stream(message)
        if stream is None:
            return await self.send(message)
        if self._is_unconfirmed(stream):
            stream.pending, stream.doubtful = "", True
        message.unconfirmed = message.unconfirmed or (stream.doubtful and not stream.recovered)
        message.may_repeat = stream.doubtful or (message.may_repeat and not (stream.ids or stream.pending))
        if stream.doubtful:
            message.held_at = 0.0  # the nonce of the reply does not match those of the streamed messages
        if (stream.ids or stream.pending) and stream.text.strip() in message.content:
            try:
                await self._show(to, stream, message.content + repeat_note(message))
            except UndeliverableError as error:  # somebody deleted it, or a process wrote it that has crashed
                log.debug("%s: a streamed answer is gone (%s); sending it again", self.name, error)
                if stream.recovered:
                    message.may_repeat, message.held_at = True, 0.0  # all of it may have been seen
            else:
                sent = (*stream.ids, *(await self._send_parts(message, message.media)))
                del self._streams[stream.turn_id]
                return sent
        del self._streams[stream.turn_id]
        message.sent_ids = ()  # drop the files behind the deleted answer
        if not message.may_repeat:
            await self.bus.record_shown(stream.turn_id, StreamUpdate())
            return await self.send(message)
        sent = await self.send(message)  # first: after a crash in between it must still be known that it repeats
        await self.bus.record_shown(stream.turn_id, StreamUpdate())
        return sent

    def _is_unconfirmed(self, stream: _StreamingMessage) -> bool:
        """Whether its last message may have been posted, and posting it again would show it twice."""
        return bool(stream.pending) and not self.is_deduped(stream.pending, stream.since)

    async def _show(self, to: Address, stream: _StreamingMessage, text: str, *, growing: bool = False) -> None:
        """Edit and post messages so that they show this text."""
        for number, chunk in enumerate(split_message(text, self.dialect, growing=growing)):
            if number >= len(stream.ids):
                await self._post_next(to, stream, chunk)
            elif stream.shown[number] != chunk:
                await self.edit(to, stream.ids[number], chunk)
                stream.shown[number] = chunk
        if not growing:
            for platform_id, shown in zip(stream.ids, stream.shown, strict=True):
                if shown is not None:
                    await self.finish(to, platform_id, shown)

    async def _post_next(self, to: Address, stream: _StreamingMessage, chunk: Chunk) -> None:
        """Post one more message. If an earlier attempt already posted it, edit that one."""
        is_retry = bool(stream.pending)
        if not is_retry:
            stream.pending, stream.since = secrets.token_hex(8), time.time()
            await self.bus.record_shown(stream.turn_id, stream.update)
        reply_to = None if stream.ids else stream.reply_to
        options = SendOptions(reply_to=reply_to, nonce=stream.pending, growing=True, is_retry=is_retry)
        try:
            posted = await self.post(to, chunk, options)
            if is_retry:
                await self.edit(to, posted, chunk)
        except (SendError, ChannelSetupError) as error:
            if not (is_retry or getattr(error, "may_have_arrived", False)):
                stream.pending = ""
            raise
        stream.pending = ""
        stream.ids.append(posted)
        stream.shown.append(chunk)
        await self.bus.record_shown(stream.turn_id, stream.update)

    async def _acknowledge(self, to: Address, message: OutboundMessage) -> None:
        """Show that a message waits its turn: a reaction if the platform has them, else a text."""
        emoji = str(getattr(self.config, "react_emoji", "") or "")
        if self.can_react and message.reply_to is not None and emoji:
            key = message.answers or ""
            put_bounded(self._receipts, key, None, _MAX_STREAMS)
            reaction = await self.react(to, message.reply_to, emoji)
            if reaction is not None and key in self._receipts:
                self._receipts[key] = (message.reply_to, reaction)
            elif reaction is not None:  # the turn has ended meanwhile
                await self.take_back(to, message.reply_to, reaction)
        else:
            await self.send(message)

    def _find_stream(self, message: OutboundMessage) -> _StreamingMessage | None:
        """Return the streamed answer of the message's turn, recovered from the journal after a crash."""
        turn_id = message.turn_id or ""
        if turn_id in self._streams:
            return self._streams[turn_id]
        if (update := self.bus.pop_shown(turn_id)) is None:
            return None
        stream = _StreamingMessage(turn_id, ids=[*update.ids], shown=[None] * len(update.ids), recovered=True)
        stream.pending, stream.since, stream.doubtful = update.pending, update.since, update.doubtful
        return self._add_stream(stream)

    def _add_stream(self, stream: _StreamingMessage) -> _StreamingMessage:
        put_bounded(self._streams, stream.turn_id, stream, _MAX_STREAMS)
        return stream

    async def _keep_typing(self, to: Address) -> None:
        while True:
            pause_s = self.typing_s
            try:
                await self.show_typing(to)
            except RateLimitedError as error:
                pause_s = max(self.typing_s, error.retry_after_s)
            except (SendError, TimeoutError):
                pass  # optional; the next one may work
            except Exception:  # an SDK may raise anything
                log.debug("%s: the typing indicator failed", self.name, exc_info=True)
            await asyncio.sleep(pause_s)
