"""The WeCom channel: the user's own smart robot (developer.work.weixin.qq.com/document/path/101463).

WeCom repeats nothing: a message waits in memory until it is journaled, and what was written while the gateway was not
connected never comes. A streamed answer replies to the newest message of its chat; everything else is sent unprompted.
"""

import base64
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    SendError,
    UndeliverableError,
)
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.rest import download
from nanobot.channels.wecom.connection import Connection, connect_robot, id_of
from nanobot.channels.wecom.incoming import decrypt, event_of, read_message, read_press
from nanobot.config.channels import WeComConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import WECOM
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_MESSAGE, _EVENT = "aibot_msg_callback", "aibot_event_callback"
_REPLY_S = 24 * 3600.0
_LONGEST_STREAM_S = 9 * 60.0
"""WeCom ends a stream after ten minutes."""
_PART = 512 * 1024
_MB = 1024 * 1024
_LARGEST = {"image": 10 * _MB, "video": 10 * _MB}
"""Larger ones are sent as plain files (path/101463, uploads)."""
_SUFFIXES = {".png": "image", ".jpg": "image", ".jpeg": "image", ".gif": "image", ".mp4": "video"}
_LONGEST_TITLE, _LONGEST_LABEL, _LONGEST_KEY, _MOST_BUTTONS = 26, 10, 1024, 6
"""Of cards, in characters, but keys in bytes (path/101032)."""
_PRESSED = "pressed"
_MOST_REMEMBERED = 1000


@dataclass(slots=True)
class _Stream:
    """A streamed answer."""

    req_id: str
    since: float
    is_complete: bool = False


class WeComChannel(ChatChannel):
    """Private and group chats of one smart robot."""

    name = "wecom"
    dialect = WECOM
    can_edit = True
    stall_s = 50.0
    beat_s: float = 20.0
    """How often WeCom is sent a heartbeat, which it answers."""
    delta_interval_s: ClassVar[float] = 3.0
    """Each update counts as one of the 30 messages a minute that WeCom takes for a chat."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, WeComConfig) else WeComConfig.model_validate(config)
        self._current: Connection | None = None
        self._replaced: ChannelSetupError | None = None
        self._newest: dict[str, tuple[str, float]] = {}
        """The id of the newest callback by chat, and when it came."""
        self._answers: dict[str, _Stream] = {}
        self._cards: dict[str, tuple[str, Mapping[str, str]]] = {}
        """The title, and the labels by value, of cards with buttons."""
        self._introduced: dict[str, None] = {}
        """Nonces of messages whose text is sent, before the card with their buttons."""

    async def start(self) -> None:
        """Receive messages until the connection breaks. Never connects again once another program has taken over."""
        if self._replaced is not None:
            raise self._replaced
        async with connect_robot(self._settings, beat_s=self.beat_s, touch=self.status.touch) as connection:
            self._current = connection
            self.mark_up()
            try:
                while (frame := await connection.next_frame()) is not None:
                    await self._process(frame)
                raise NotConnectedError("the connection to WeCom is lost")
            finally:
                self._current = None

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Test the credentials. Raises ChannelSetupError; SendError if WeCom is unreachable."""
        async with connect_robot(self._settings, beat_s=self.beat_s, touch=self.status.touch):
            show(
                LoginStep(
                    "The credentials work. Find the robot by its name in WeCom, under Smart Robots (智能机器人).\n"
                    "If a gateway was connected as this robot, WeCom has closed its connection: restart it."
                )
            )
        return True

    # receiving

    async def _process(self, frame: Payload) -> None:
        command, body = frame.get("cmd"), frame.get("body")
        if command == _MESSAGE and (incoming := read_message(body)) is not None:
            put_bounded(self._newest, incoming.chat_id, (id_of(frame), self._now), _MOST_REMEMBERED)
            await self.receive_until_journaled(incoming)
        if command != _EVENT:
            return
        kind, event = event_of(body)
        if kind == "disconnected_event":
            self._replaced = ChannelSetupError(
                "Another program has connected as this robot, and WeCom allows one connection. Stop the other program, "
                "then restart the gateway."
            )
            raise self._replaced
        if kind == "enter_chat" and self._settings.welcome_message:
            welcome = {"msgtype": "text", "text": {"content": self._settings.welcome_message}}
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

    async def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file, at a URL that is valid for five minutes, and decrypt it."""
        key, _, url = attachment.source.partition(" ")
        async for chunk in decrypt(download("WeCom", url), key):
            yield chunk

    # sending

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
                put_bounded(self._introduced, options.nonce, None, _MOST_REMEMBERED)
            title = "👇"
        task = secrets.token_hex(12)
        await self._push(to, "template_card", _card(task, title, buttons))
        put_bounded(self._cards, task, (title, buttons), _MOST_REMEMBERED)
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
        """Upload and send a file. A URL is sent as text."""
        if file.path is None:
            return await self.post(to, split_message(file.url or file.name, self.dialect)[0], options)
        kind = _SUFFIXES.get(file.path.suffix.lower(), "file")
        kind = kind if file.size <= _LARGEST.get(kind, file.size) else "file"
        data = await read_outgoing(file.path, largest=self.largest_file)
        parts = [data[start : start + _PART] for start in range(0, len(data), _PART)]
        begun = await self._connection.request(
            "aibot_upload_media_init",
            {
                "type": kind,
                "filename": file.name,
                "total_size": len(data),
                "total_chunks": len(parts),
                "md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
            },
        )
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
            put_bounded(self._answers, stream_id, _Stream(req_id, self._now), _MOST_REMEMBERED)
        await self._stream(stream_id, self._answers[stream_id], chunk, is_complete=False)
        return stream_id

    async def _stream(self, stream_id: str, stream: _Stream, chunk: Chunk, *, is_complete: bool) -> None:
        content = {"id": stream_id, "finish": is_complete, "content": chunk.text}
        await self._connection.request("aibot_respond_msg", {"msgtype": "stream", "stream": content}, stream.req_id)
        stream.is_complete = is_complete

    async def _push(self, to: Address, kind: str, content: Mapping[str, Any]) -> str:
        """Send a message that is no reply. WeCom gives it no id."""
        await self._connection.request("aibot_send_msg", {"chatid": to.chat_id, "msgtype": kind, kind: content})
        return secrets.token_hex(8)

    @property
    def _now(self) -> float:
        return self.services.clock.monotonic()

    @property
    def _connection(self) -> Connection:
        if self._current is None:
            raise NotConnectedError("WeCom is not connected")
        return self._current


def _card(task: str, title: str, buttons: Mapping[str, str]) -> dict[str, Any]:
    """A card; `buttons` are labels by value."""
    shown = [{"text": label[:_LONGEST_LABEL], "style": 1, "key": value} for value, label in buttons.items()]
    return {"card_type": "button_interaction", "main_title": {"title": title}, "button_list": shown, "task_id": task}
