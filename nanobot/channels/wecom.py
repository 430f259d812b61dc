"""WeCom: private and group chats of a smart robot, over its long connection.

Source: developer.work.weixin.qq.com/document/path/101463 (connection), 100719 (messages), 101027 (events), 101032
(cards). WeCom repeats nothing: a message waits in memory until it is journaled, and what was written while the gateway
was not connected never comes. A streamed answer replies to the newest message of its chat; everything else is sent
unprompted.
"""

import asyncio
import base64
import hashlib
import logging
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from websockets.asyncio.client import ClientConnection

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCodes,
    NotConnectedError,
    RefusedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import download
from nanobot.channels.sockets import RequestSocket, open_socket, read_messages
from nanobot.config.channels import WeComConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import WECOM
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_STREAM_OVER = 846608
"""The stream is complete: WeCom itself completes it after ten minutes."""
_CODES = ErrorCodes(
    "WeCom",
    {
        40003: "there is no such person or group",
        846607: "they have not written to the bot yet. It can answer once they do",
        _STREAM_OVER: "the streamed answer was not complete after ten minutes",
        846609: "the streamed answer is gone",
    },
    setup=dict.fromkeys(
        (853000, 853001),
        "WeCom does not take channels.wecom.botId and channels.wecom.secret ({text}). Copy both again: Workbench "
        "(工作台), Smart Robot (智能机器人), your robot, API mode with a long connection.",
    ),
    limited=(45009, 45033),
    pause_s=2,  # WeCom takes 30 messages a minute and chat, and does not say when it takes the next one
)
_REPLACED = (
    "Another program has connected as this robot, and WeCom allows one connection. Stop the other program, then "
    "restart the gateway."
)
_ANSWER_S = 15.0
_REPLY_S = 24 * 3600.0
_LONGEST_STREAM_S = 9 * 60.0
"""WeCom ends a stream after ten minutes."""
_PART = 512 * 1024
_LARGEST_SHOWN = 10 * 1024 * 1024
"""Larger pictures and videos are sent as plain files."""
_SUFFIXES = {".png": "image", ".jpg": "image", ".jpeg": "image", ".gif": "image", ".mp4": "video"}
_FILES = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "file": MediaKind.FILE}
_LONGEST_TITLE, _LONGEST_LABEL, _LONGEST_KEY, _MOST_BUTTONS = 26, 10, 1024, 6
"""Of cards, in characters, but keys in bytes."""
_PRESSED = "pressed"
_MENTION = re.compile(r"@\S+\s*")
_BLOCK, _LONGEST_PADDING = 16, 32


class Connection(RequestSocket):
    """A connection of one robot. Every frame has a `req_id`; an answer has that of its request."""

    platform = "WeCom"

    def __init__(self, socket: ClientConnection | None = None) -> None:
        super().__init__(socket)
        self._replying = asyncio.Lock()

    def answered_by(self, frame: Payload) -> str | None:
        return None if "cmd" in frame else id_of(frame)

    async def request(self, command: str, body: Mapping[str, Any], req_id: str = "") -> Payload:
        """Send a request and return the body of the answer. `req_id`: of the callback that it replies to, which may
        have one reply at a time.

        Raises SendError; ChannelSetupError for wrong credentials; safe to cancel.
        """
        async with self._replying if req_id else nullcontext():
            req_id = req_id or secrets.token_hex(12)
            answer = await self.ask(req_id, frame_of(command, body, req_id), _ANSWER_S)
        if code := answer.get("errcode"):
            raise _CODES.error(code, answer.line("errmsg")[:300] or "no reason given")
        return answer.part("body")


def frame_of(command: str, body: Mapping[str, Any], req_id: str) -> dict[str, Any]:
    return {"cmd": command, "headers": {"req_id": req_id}, "body": body}


def id_of(frame: Payload) -> str:
    return frame.text("headers", "req_id")


@dataclass(slots=True)
class _Stream:
    req_id: str
    since: float
    is_complete: bool = False
    unconfirmed_end: str = ""
    """The text that it was completed with, if WeCom did not confirm that."""


class WeComChannel(ChatChannel):
    name = "wecom"
    dialect = WECOM
    can_edit = True
    stall_s = 50.0
    beat_s: float = 20.0
    """How often WeCom is sent a heartbeat, which it answers."""
    delta_interval_s: ClassVar[float] = 3.0
    """Each update counts as one of the 30 messages a minute that WeCom takes for a chat."""
    config: WeComConfig

    def __init__(self, config: WeComConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._connection = Connection()
        self._replaced = False
        """Whether another program has connected as this robot."""
        self._newest: dict[str, tuple[str, float]] = {}
        """The id of the newest callback by chat, and when it came."""
        self._answers: dict[str, _Stream] = {}
        self._cards: dict[str, tuple[str, Mapping[str, str]]] = {}
        """The title, and the labels by value, of cards with buttons."""
        self._introduced: dict[str, None] = {}
        """Nonces of messages whose text is sent, before the card with their buttons."""

    async def start(self) -> None:
        """Receive messages until the connection breaks. Never connects again once another program has taken over."""
        if self._replaced:
            raise ChannelSetupError(_REPLACED)
        async with self._connect() as self._connection:
            self.mark_up()
            while (frame := await self._connection.next_frame()) is not None:
                await self._process(frame)
            raise NotConnectedError("the connection to WeCom is lost")

    async def check_login(self) -> str:
        async with self._connect():
            return (
                "The credentials work. Find the robot by its name in WeCom, under Smart Robots (智能机器人).\n"
                "If a gateway was connected as this robot, WeCom has closed its connection: restart it."
            )

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[Connection]:
        """Connect and subscribe. WeCom closes an older connection of the same bot."""
        bot_id, secret = require_settings("wecom", botId=self.config.bot_id, secret=self.config.secret)
        async with open_socket("WeCom", self.config.ws_url, ping_interval=None) as socket:
            connection = Connection(socket)

            async def beat() -> None:
                await connection.tell(frame_of("ping", {}, secrets.token_hex(12)))

            async with connection.reading(read_messages(socket, self.status.touch, self.beat_s, beat)):
                await connection.request("aibot_subscribe", {"bot_id": bot_id, "secret": secret})
                yield connection

    async def _process(self, frame: Payload) -> None:
        command, body = frame.get("cmd"), frame.part("body")
        if command == "aibot_msg_callback" and (incoming := read_message(body)) is not None:
            put_bounded(self._newest, incoming.chat_id, (id_of(frame), self._now))
            await self.receive_until_journaled(incoming)
        if command != "aibot_event_callback":
            return
        kind, event = event_of(body)
        if kind == "disconnected_event":
            self._replaced = True
            raise ChannelSetupError(_REPLACED)
        if kind == "enter_chat" and self.config.welcome_message:
            welcome = {"msgtype": "text", "text": {"content": self.config.welcome_message}}
            await self._answer(frame, "aibot_respond_welcome_msg", welcome)
        elif kind == "template_card_event" and (said := event.text("event_key")) not in ("", _PRESSED):
            if (press := read_press(body, said)) is not None:
                await self.receive_until_journaled(press)
            task = event.text("task_id")
            title, labels = self._cards.get(task, ("", {}))
            if title:
                card = _card(task, title, {_PRESSED: f"✓ {labels.get(said, said)}"})
                update = {"response_type": "update_template_card", "template_card": card}
                await self._answer(frame, "aibot_respond_update_msg", update)

    async def _answer(self, frame: Payload, command: str, body: Mapping[str, Any]) -> None:
        """Answer an event, if WeCom still takes it: within five seconds."""
        try:
            await self._connection.request(command, body, id_of(frame))
        except SendError as error:
            log.debug("wecom: an event is not answered: %s", error)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file, at a URL that is valid for five minutes, and decrypt it."""
        key, _, url = attachment.source.partition(" ")
        return decrypt(download("WeCom", url), key)

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Send a message; a stream, if its text will grow; a card behind it, if it has buttons."""
        if options.growing:
            return await self._start_stream(to, chunk, options.nonce or secrets.token_hex(8))
        buttons = {button.value or button.label: button.label for button in options.buttons[:_MOST_BUTTONS]}
        if not buttons or any(len(value.encode()) > _LONGEST_KEY for value in buttons):
            return await self._push(to, "markdown", {"content": chunk.text})
        title = chunk.content.text
        if len(title) > _LONGEST_TITLE or "\n" in title:
            if options.nonce not in self._introduced:
                await self._push(to, "markdown", {"content": chunk.text})
            if options.nonce is not None:
                put_bounded(self._introduced, options.nonce, None)
            title = "👇"
        task = secrets.token_hex(12)
        await self._push(to, "template_card", _card(task, title, buttons))
        put_bounded(self._cards, task, (title, buttons))
        return task

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a stream; complete it before WeCom would."""
        stream = self._answers.get(platform_id)
        if stream is None or stream.is_complete:
            raise UndeliverableError("the streamed answer is complete")  # the reply is sent as another message
        await self._stream(platform_id, stream, chunk, is_complete=self._now - stream.since > _LONGEST_STREAM_S)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        stream = self._answers.get(platform_id)
        if stream is not None and not stream.is_complete:
            await self._stream(platform_id, stream, chunk, is_complete=True)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        kind = _SUFFIXES.get(file.suffix, "file") if file.size <= _LARGEST_SHOWN else "file"
        data = await read_outgoing(file)
        parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
        about = {"type": kind, "filename": file.name, "total_size": len(data), "total_chunks": len(parts)}
        about["md5"] = hashlib.md5(data, usedforsecurity=False).hexdigest()
        begun = await self._connection.request("aibot_upload_media_init", about)
        upload = {"upload_id": begun.get("upload_id")}
        for number, part in enumerate(parts):
            body = {**upload, "chunk_index": number, "base64_data": base64.b64encode(part).decode()}
            await self._connection.request("aibot_upload_media_chunk", body)
        uploaded = await self._connection.request("aibot_upload_media_finish", upload)
        return await self._push(to, kind, {"media_id": uploaded.get("media_id")})

    def is_deduped(self, nonce: str, since: float) -> bool:
        """Whether it is a stream that this process has begun: WeCom replaces its text."""
        return nonce in self._answers

    async def _start_stream(self, to: Address, chunk: Chunk, stream_id: str) -> str:
        req_id, came = self._newest.get(to.chat_id, ("", 0.0))
        if not req_id or self._now - came > _REPLY_S:
            raise UndeliverableError("there is no message here that a streamed answer can reply to")
        if stream_id not in self._answers:
            put_bounded(self._answers, stream_id, _Stream(req_id, self._now))
        await self._stream(stream_id, self._answers[stream_id], chunk, is_complete=False)
        return stream_id

    async def _stream(self, stream_id: str, stream: _Stream, chunk: Chunk, *, is_complete: bool) -> None:
        content = {"id": stream_id, "finish": is_complete, "content": chunk.text}
        try:
            await self._connection.request("aibot_respond_msg", {"msgtype": "stream", "stream": content}, stream.req_id)
        except RefusedError as error:
            if error.code != _STREAM_OVER or not is_complete or stream.unconfirmed_end != chunk.text:
                raise
        except SendError as error:
            if is_complete and error.may_have_arrived:
                stream.unconfirmed_end = chunk.text
            raise
        stream.is_complete = is_complete

    async def _push(self, to: Address, kind: str, content: Mapping[str, Any]) -> str:
        """Send a message that is no reply. WeCom gives it no id."""
        await self._connection.request("aibot_send_msg", {"chatid": to.chat_id, "msgtype": kind, kind: content})
        return secrets.token_hex(8)

    @property
    def _now(self) -> float:
        return self.services.clock.monotonic()


def _card(task: str, title: str, buttons: Mapping[str, str]) -> dict[str, Any]:
    shown = [{"text": label[:_LONGEST_LABEL], "style": 1, "key": value} for value, label in buttons.items()]
    return {"card_type": "button_interaction", "main_title": {"title": title}, "button_list": shown, "task_id": task}


def read_message(body: object) -> Incoming | None:
    """Read a message. None for one that does not say who wrote it where."""
    message = Payload.of(body)
    text, files = _read_content(message)
    quoted, quoted_files = _read_content(message.part("quote"))
    if message.get("chattype") == "group" and text.startswith("@"):
        text = _MENTION.sub("", text, count=1)
    if quoted:
        text = f"{quoted_lines(quoted)}\n{text}"
    return _incoming(message, text, (*files, *quoted_files), quotes_others=bool(quoted or quoted_files))


def read_press(body: object, said: str) -> Incoming | None:
    """Read a pressed button as a message that says this."""
    return _incoming(Payload.of(body), said)


def event_of(body: object) -> tuple[str, Payload]:
    """The type of an event, and what is told of it."""
    event = Payload.of(body).part("event")
    return event.text("eventtype"), event.part(event.text("eventtype"))


def _incoming(
    message: Payload, text: str, files: tuple[Attachment, ...] = (), *, quotes_others: bool = False
) -> Incoming | None:
    sender, message_id = message.text("from", "userid"), message.text("msgid")
    is_group = message.get("chattype") == "group"
    chat = message.text("chatid") if is_group else sender
    if not (sender and chat and message_id):
        return None
    return Incoming(
        sender,
        chat,
        text,
        message_id,
        is_private=not is_group,
        is_mentioned=True,
        attachments=files,
        quotes_others=quotes_others,
        sent_at=message.time("create_time", ticks_per_s=1),
    )


def _read_content(message: Payload) -> tuple[str, tuple[Attachment, ...]]:
    """The text and files of a message, or of the message that it quotes."""
    words, files = [], []
    for part in message.parts("mixed", "msg_item") or [message]:
        kind = part.text("msgtype")
        content = part.part(kind)
        words.append(content.text("content").strip())  # of a text or, as WeCom heard it, of a voice message
        if kind in _FILES and (url := content.text("url")):
            name, source = content.text("filename") or None, f"{content.text('aeskey')} {url}"
            files.append(Attachment(_FILES[kind], name=name, source=source))
    return "\n".join(filter(None, words)), tuple(files)


async def decrypt(chunks: AsyncIterator[bytes], key_text: str) -> AsyncIterator[bytes]:
    """Decrypt a file: AES-256-CBC, the initial vector is the start of the key, padded up to blocks of 32 bytes.

    Raises MediaError.
    """
    try:
        key = base64.b64decode(key_text + "=" * (-len(key_text) % 4))
        decryptor = Cipher(algorithms.AES256(key), modes.CBC(key[:_BLOCK])).decryptor()
    except ValueError as error:
        raise MediaError("WeCom sent a key that is none") from error
    held = b""
    async for chunk in chunks:
        held += decryptor.update(chunk)
        yield held[:-_LONGEST_PADDING]
        held = held[-_LONGEST_PADDING:]
    try:
        held += decryptor.finalize()
    except ValueError as error:
        raise MediaError("the file is not complete") from error
    padding = held[-1] if held else 0
    if not 0 < padding <= _LONGEST_PADDING or held[-padding:] != bytes([padding]) * padding:
        raise MediaError("the file cannot be decrypted with the key that WeCom sent")
    yield held[:-padding]
