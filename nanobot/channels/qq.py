"""QQ: private and group chats of an official bot, over QQ's gateway (bot.q.qq.com/wiki/develop/api-v2).

QQ resumes a session after a short while: it sends the events behind the last one that was journaled. A bot may reply to
a message a few times, for some time; the numbers of these replies are saved before they are sent, because QQ takes each
number once.
"""

import asyncio
import base64
import json
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
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
from nanobot.channels.media import Attachment, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import RestClient, download
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import QQConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import PLAIN, QQ
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_API = "https://api.bot.qq.com"
_CONSOLE = "q.qq.com"
_REPEATED = 40054005
"""The message of this `msg_id` and `msg_seq` was sent already."""
_TOO_LATE = (304026, 304027, 304028, 304103, 40034005, 40034024, 40034025, 40034026, 40034027, 40034128)
"""The message that it replies to is too old, or has as many replies as QQ allows."""
_NO_MARKDOWN = (50056, 304036, 40034011, 40034127)
_NO_LINKS = (304003, 40054010)
_IN_REVIEW = (304023, 304024)
"""The message was accepted, and is looked at before it appears."""
_FINAL = {
    304025: "it does not allow the text",
    40034006: "it does not allow the text",
    40034101: "the bot is not in that group",
    40034105: "the bot may only reply there, and has no message left to reply to. It can answer once they write again",
    40054002: "the bot is muted there",
    40054003: "the bot is not in that group",
    40054004: "that person has not added the bot",
    40054007: "the message is too long",
    40054013: "that person does not want messages from the bot. It can answer once they write again",
    40054016: f"the bot is offline. Publish it at {_CONSOLE}",
    40054018: "the message is too long",
    **dict.fromkeys((_REPEATED, *_TOO_LATE, *_NO_MARKDOWN, *_NO_LINKS), "{text}"),
}
_NOT_LISTED = (
    "QQ refuses requests from this machine's address ({text}). Add the address to the IP allow list at "
    f"{_CONSOLE}, your bot, Development Settings (开发设置, IP白名单)."
)

_EVENTS, _BEAT, _IDENTIFY, _RESUME, _RECONNECT, _INVALID = 0, 1, 2, 6, 7, 9
"""`op` of frames (dev-prepare/interface-framework/event-emit)."""
_PRIVATE_AND_GROUPS = 1 << 25
_EXPIRED = 4009
_NEW_SESSION = (4006, 4007, *range(4900, 4914))
_REFUSALS = {
    4013: "QQ does not know the events that nanobot asks for. Update nanobot.",
    4014: f"The bot may not receive private and group messages. Apply for them at {_CONSOLE}, your bot.",
    4914: f"QQ took the bot offline. Publish it at {_CONSOLE}; channels.qq.appId names it.",
    4915: f"QQ has banned the bot of channels.qq.appId. {_CONSOLE} says why.",
}
"""Why QQ closes a connection for good, by close code (dev-prepare/error-trace/websocket)."""
_RECONNECT_S = 0.2
_BEAT_S = 20.0
"""Longest time between two heartbeats; QQ itself wants one every 40 s or so."""

_MOST_REPLIES = 5
_PRIVATE_S, _GROUP_S = 3600.0, 300.0
"""How long replies to a message are possible (server-inter/message/send-receive/send)."""
_KEPT_REPLIES = 2
"""Replies that progress leaves for the answer."""
_LONGEST_TEXT = 5000
_LINK = re.compile(r"(?:https?://)?(?:[\w-]+\.)+[a-zA-Z]{2,}\b")
_IMAGE, _VIDEO, _FILE = 1, 2, 4
_FILE_TYPES = {".png": _IMAGE, ".jpg": _IMAGE, ".jpeg": _IMAGE, ".mp4": _VIDEO}
"""By suffix (server-inter/message/send-receive/rich-media); everything else is a plain file."""
_KINDS = {"image": MediaKind.IMAGE, "video": MediaKind.VIDEO, "voice": MediaKind.VOICE, "audio": MediaKind.AUDIO}
_QUOTING = 103
"""`message_type` of a message that quotes the first of its `msg_elements`."""


class QQApi(RestClient):
    codes = ErrorCodes(
        "QQ",
        _FINAL,
        setup=dict.fromkeys((11298, 40023002), _NOT_LISTED),
        limited=(22009, 100001, 40034100, 50002),
        accepted=_IN_REVIEW,
    )
    code_keys = ("err_code", "code")
    token_header = ("Authorization", "QQBot ")
    token_margin_s = 50.0  # a new token is given in the last minute of the old one

    def __init__(self, section: QQConfig) -> None:
        super().__init__(section.api_base or _API)
        self._section = section

    async def fetch_token(self) -> tuple[str, float]:
        app_id, secret = require_settings("qq", appId=self._section.app_id, secret=self._section.secret)
        answer = await self.exchange("POST", "/app/getAppAccessToken", json={"appId": app_id, "clientSecret": secret})
        if not (token := answer.body.text("access_token")):
            raise ChannelSetupError(
                f"QQ does not take channels.qq.appId and channels.qq.secret ({answer}). Copy both again from "
                f"{_CONSOLE}, your bot, Development Settings (开发设置)."
            )
        return token, answer.body.number("expires_in")


@dataclass(slots=True)
class ReplyWindow:
    chat: str
    since: float
    """When it arrived, by `time.time`."""
    used: int = 0
    """How many replies were sent; they are numbered from 1."""
    has_typing: bool = False


@dataclass(slots=True)
class QQState:
    bot: str = ""
    session: str = ""
    last_event: int = 0
    groups: dict[str, None] = field(default_factory=dict)
    """Chats that are groups: their ids do not tell."""
    windows: dict[str, ReplyWindow] = field(default_factory=dict)
    """By the id of the person's message, oldest first."""
    replies: dict[str, tuple[str, int]] = field(default_factory=dict)
    """What each nonce was sent with: the message that it replies to, and its number; ("", 0) if it was no reply."""


class QQChannel(ChatChannel):
    name = "qq"
    largest_file = 5 * 1024 * 1024
    stall_s = 50.0
    config: QQConfig

    def __init__(self, config: QQConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self.dialect = QQ if config.msg_format == "markdown" else PLAIN
        self._api = QQApi(config)
        self._state = QQState()

    async def start(self) -> None:
        async with self._api:
            await self._api.token()
            if self._state.bot != (bot := self.config.app_id.strip()):
                self._state = await self.load_state(QQState(bot))
            async with self.state_file.keep_saved(self._state):
                while True:
                    await self._serve()
                    await asyncio.sleep(_RECONNECT_S)

    async def check_login(self) -> str:
        async with self._api:
            bot = await self._api.call("GET", "/users/@me")
            await self._api.call("GET", "/gateway/bot")
        return (
            f"The credentials work. Your bot is {bot.line('username') or self.config.app_id}.\n"
            f"{_CONSOLE}, your bot, has the QR code with which you add it in QQ.\n"
            "Until it is published, only the people and groups of its sandbox (沙箱配置) can use it."
        )

    async def _serve(self) -> None:
        """Receive messages until QQ announces the end of the connection."""
        url = (await self._api.call("GET", "/gateway/bot")).text("url")
        async with open_socket("QQ", url, ping_interval=None) as socket:
            try:
                await self._receive_frames(socket)
            except ConnectionClosed as closed:
                code = closed.rcvd.code if closed.rcvd is not None else 0
                if code in _REFUSALS:
                    raise ChannelSetupError(f"{_REFUSALS[code]} ({code})") from None
                if code in _NEW_SESSION:
                    self._state.session = ""
                if code != _EXPIRED:
                    raise NotConnectedError(f"QQ closed the connection ({code or 'cut'})") from None

    async def _receive_frames(self, socket: ClientConnection) -> None:
        async def send(kind: int, data: object) -> None:
            await socket.send(json.dumps({"op": kind, "d": data}))

        async def beat() -> None:
            await send(_BEAT, state.last_event or None)

        state, hello = self._state, Payload.parse(await socket.recv())
        token = f"QQBot {await self._api.token()}"
        if state.session:
            await send(_RESUME, {"token": token, "session_id": state.session, "seq": state.last_event})
        else:
            identity = {"token": token, "intents": _PRIVATE_AND_GROUPS, "shard": [0, 1], "properties": {}}
            await send(_IDENTIFY, identity)
        beat_s = min(_BEAT_S, hello.number("d", "heartbeat_interval") / 1000 or _BEAT_S)
        async for text in read_messages(socket, self.status.touch, beat_s, beat):
            frame = Payload.parse(text)
            kind = frame.get("op")
            if kind == _BEAT:
                await beat()
            elif kind == _RECONNECT:
                return
            elif kind == _INVALID:
                if frame.get("d") is not True:
                    state.session = ""
                raise NotConnectedError("QQ ended the session")
            elif kind == _EVENTS:
                await self._process(frame)

    async def _process(self, frame: Payload) -> None:
        """Process an event. Raises StorageError if it could not be journaled: after a resume it comes again."""
        kind, number = frame.get("t"), frame.get("s")
        if kind == "READY":
            self._state.session, self._state.last_event = frame.text("d", "session_id"), 0
        if kind in ("READY", "RESUMED"):
            self.mark_up()
        if (incoming := read_event(kind, frame.get("d"))) is not None:
            chat, message_id = incoming.chat_id, str(incoming.message_id)
            if not incoming.is_private:
                put_bounded(self._state.groups, chat, None)
            if message_id not in self._state.windows:  # it may come again
                put_bounded(self._state.windows, message_id, ReplyWindow(chat, time.time()))
            if await self.receive(incoming) and self.config.ack_message:
                note = OutboundMessage(self.name, chat, self.config.ack_message, kind=OutboundKind.PROGRESS)
                await self.bus.publish_outbound(note)
        if isinstance(number, int):
            self._state.last_event = number
        self.state_file.urgent.set()

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        url = attachment.source  # QQ may leave out its scheme
        return download("QQ", f"{urlsplit(self._api.base).scheme}:{url}" if url.startswith("//") else url)

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a text: as Markdown, if the config wants it and QQ allows it; with dead links, if QQ refuses them."""
        text = chunk.text
        while True:
            is_plain = self.dialect is PLAIN
            body = {"msg_type": 0, "content": text} if is_plain else {"msg_type": 2, "markdown": {"content": text}}
            try:
                return await self._send(to, body, options)
            except RefusedError as error:
                dead_links = _LINK.sub(lambda match: match[0].replace(".", "\uff0e"), text)
                if error.code in _NO_MARKDOWN and not is_plain:
                    log.warning("qq: answers are sent without Markdown. %s", error)
                    self.dialect = PLAIN
                    text = split_message(chunk.content, PLAIN, _LONGEST_TEXT)[0].text
                elif error.code in _NO_LINKS and text != dead_links:
                    log.warning(
                        "qq: a message is sent with dead links. To allow links: %s, your bot. %s", _CONSOLE, error
                    )
                    text = dead_links
                else:
                    raise

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        data = base64.b64encode(await read_outgoing(file)).decode()
        kind = _FILE_TYPES.get(file.suffix, _FILE)
        return await self._send_file(to, {"file_type": kind, "file_name": file.name, "file_data": data}, options)

    async def post_url(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a URL. QQ shows a picture itself."""
        if file.kind is not MediaKind.IMAGE:
            return await super().post_url(to, file, options)
        return await self._send_file(to, {"file_type": _IMAGE, "url": file.url}, options)

    async def _send_file(self, to: Address, file: Mapping[str, Any], options: SendOptions) -> str:
        uploaded = await self._call(to, "files", {"srv_send_msg": False, **file})
        media = {"file_info": uploaded.get("file_info")}
        return await self._send(to, {"msg_type": 7, "content": " ", "media": media}, options)

    async def show_typing(self, to: Address) -> None:
        """Show for a minute that the bot types: in private chats, once a message, because it uses up a reply."""
        windows = self._open_windows(to.chat_id)
        if not windows or to.chat_id in self._state.groups or self._state.windows[windows[-1]].has_typing:
            return
        self._state.windows[windows[-1]].has_typing = True
        body = {"msg_type": 6, "input_notify": {"input_type": 1, "input_second": 60}}
        await self._call(to, "messages", body | await self._take_reply(windows[-1], secrets.token_hex(8)))

    def is_deduped(self, nonce: str, since: float) -> bool:
        """Whether a second post is a reply with the number of the first, or there was no first."""
        return nonce not in self._state.replies or self._is_open(self._state.replies[nonce][0])

    async def _send(self, to: Address, body: Mapping[str, Any], options: SendOptions) -> str:
        """Send a message: as a reply, if there is one left, else unprompted."""
        state, nonce = self._state, options.nonce or secrets.token_hex(8)
        is_retry = nonce in state.replies and self._is_open(state.replies[nonce][0])
        while True:
            windows = self._open_windows(to.chat_id)
            left = sum(_MOST_REPLIES - state.windows[one].used for one in windows)
            if options.quiet and (left <= _KEPT_REPLIES or to.chat_id in state.groups):
                raise UndeliverableError("the replies that QQ allows are kept for the answer")
            answered = state.replies[nonce][0] if is_retry else next(iter(windows), "")
            reply = await self._take_reply(answered, nonce)
            try:
                return (await self._call(to, "messages", {**body, **reply})).text("id")
            except RefusedError as error:
                if not answered or error.code not in (_REPEATED, *_TOO_LATE):
                    raise
                if error.code == _REPEATED and is_retry:
                    return f"{answered}-{reply['msg_seq']}"
                if error.code != _REPEATED:  # else the number is that of another message, which was not saved
                    state.windows[answered].since = 0.0
                if is_retry:
                    raise SendError(str(error), may_have_arrived=True) from error
                del state.replies[nonce]

    def _open_windows(self, chat: str) -> list[str]:
        """The messages in this chat that can be replied to, oldest first."""
        windows = [one for one, window in self._state.windows.items() if window.chat == chat and self._is_open(one)]
        return [one for one in windows if self._state.windows[one].used < _MOST_REPLIES]

    def _is_open(self, message_id: str) -> bool:
        """Whether QQ still takes replies to this message, or recognises them."""
        window = self._state.windows.get(message_id)
        lasts_s = _GROUP_S if window is not None and window.chat in self._state.groups else _PRIVATE_S
        return window is not None and 0 <= time.time() - window.since < lasts_s

    async def _take_reply(self, answered: str, nonce: str) -> dict[str, Any]:
        """What to add to a message so that it is a reply to this one; its number is saved."""
        state = self._state
        if nonce not in state.replies or state.replies[nonce][0] != answered:
            number = 0
            if answered:
                number = state.windows[answered].used = state.windows[answered].used + 1
            put_bounded(state.replies, nonce, (answered, number))
            await self.state_file.save(state)
        return {"msg_id": answered, "msg_seq": state.replies[nonce][1]} if answered else {}

    async def _call(self, to: Address, what: str, body: Mapping[str, Any]) -> Payload:
        kind = "groups" if to.chat_id in self._state.groups else "users"
        return await self._api.call("POST", f"/v2/{kind}/{to.chat_id}/{what}", json=body)


def read_event(kind: object, data: object) -> Incoming | None:
    """Read a message (server-inter/message/send-receive/event). None for others, and without a sender or a chat."""
    message = Payload.of(data)
    message_id, is_private = message.text("id"), kind == "C2C_MESSAGE_CREATE"
    if is_private:
        chat = sender = message.text("author", "user_openid")
    elif kind == "GROUP_AT_MESSAGE_CREATE":
        chat, sender = message.text("group_openid"), message.text("author", "member_openid")
    else:
        return None
    if not (chat and sender and message_id):
        return None
    text, files = _read_content(message)
    elements = message.parts("msg_elements") if message.get("message_type") == _QUOTING else []
    quoted, quoted_files = _read_content(elements[0] if elements else Payload())
    return Incoming(
        sender,
        chat,
        f"{quoted_lines(quoted)}\n{text}" if quoted else text,
        message_id,
        is_private=is_private,
        is_mentioned=True,
        sender_name=message.line("author", "username"),
        attachments=files + quoted_files,
        quotes_others=bool(quoted or quoted_files),
        sent_at=message.iso_time("timestamp"),
    )


def _read_content(message: Payload) -> tuple[str, tuple[Attachment, ...]]:
    words, files = [message.text("content").strip()], []
    for part in message.parts("attachments"):
        kind = _KINDS.get(part.text("content_type").partition("/")[0], MediaKind.FILE)
        url = part.text("url")
        if kind is MediaKind.VOICE:
            if spoken := part.text("asr_refer_text"):  # what QQ heard; the recording says no more
                words.append(spoken)
                continue
            url = part.text("voice_wav_url") or url  # the other one is in SILK
        if url:
            files.append(Attachment(kind, name=part.text("filename") or None, source=url))
    return "\n".join(filter(None, words)), tuple(files)
