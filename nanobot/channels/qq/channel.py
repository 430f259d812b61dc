"""The QQ channel: the user's own bot over QQ's gateway (bot.q.qq.com/wiki/develop/api-v2).

QQ resumes a session after a short while: it sends the events behind the last one that was journaled. A bot may reply to
a message a few times, for some time; the numbers of these replies are saved before they are sent, because QQ takes each
number once.
"""

import asyncio
import base64
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from nanobot.bus.events import Address, OutboundKind, OutboundMessage
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, RefusedError, SendError, UndeliverableError
from nanobot.channels.login import LoginStep, ShowStep
from nanobot.channels.media import Attachment
from nanobot.channels.media_kinds import MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.payload import Payload
from nanobot.channels.qq.api import CONSOLE, NO_LINKS, NO_MARKDOWN, REPEATED, TOO_LATE, QQApi
from nanobot.channels.qq.incoming import read_event
from nanobot.channels.sockets import open_socket, read_messages
from nanobot.config.channels import QQConfig
from nanobot.markdown import Chunk, split_message
from nanobot.markdown.dialects import PLAIN, QQ
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_EVENTS, _BEAT, _IDENTIFY, _RESUME, _RECONNECT, _INVALID = 0, 1, 2, 6, 7, 9
"""`op` of frames (dev-prepare/interface-framework/event-emit)."""
_PRIVATE_AND_GROUPS = 1 << 25
_EXPIRED = 4009
_NEW_SESSION = (4006, 4007, *range(4900, 4914))
_REFUSALS = {
    4013: "QQ does not know the events that nanobot asks for. Update nanobot.",
    4014: f"The bot may not receive private and group messages. Apply for them at {CONSOLE}, your bot.",
    4914: f"QQ took the bot offline. Publish it at {CONSOLE}; channels.qq.appId names it.",
    4915: f"QQ has banned the bot of channels.qq.appId. {CONSOLE} says why.",
}
"""Why QQ closes a connection for good, by close code (dev-prepare/error-trace/websocket)."""
_RECONNECT_S = 0.2
_MOST_REPLIES = 5
_PRIVATE_S, _GROUP_S = 3600.0, 300.0
"""How long replies to a message are possible (server-inter/message/send-receive/send)."""
_KEPT_REPLIES = 2
"""Replies that progress leaves for the answer."""
_TYPING = "typing"
_MOST_REMEMBERED = 500
_LONGEST_TEXT = 5000
_LINK = re.compile(r"(?:https?://)?(?:[\w-]+\.)+[a-zA-Z]{2,}\b")
_FILE_TYPES = {".png": 1, ".jpg": 1, ".jpeg": 1, ".mp4": 2}
"""By suffix (server-inter/message/send-receive/rich-media); everything else is a plain file."""
_FILE = 4


@dataclass(slots=True)
class ReplyWindow:
    """The replies to one message of a person."""

    chat: str
    since: float
    """When it arrived, by `time.time`."""
    nonces: list[str] = field(default_factory=list)
    """What its replies were used for. The place is the reply's number."""
    is_closed: bool = False
    """Whether QQ takes no more of them."""


@dataclass(slots=True)
class QQState:
    """What is saved of one bot."""

    bot: str = ""
    session: str = ""
    last_event: int = 0
    groups: dict[str, None] = field(default_factory=dict)
    """Chats that are groups: their ids do not tell."""
    windows: dict[str, ReplyWindow] = field(default_factory=dict)
    """By the id of the person's message, oldest first."""
    unprompted: dict[str, None] = field(default_factory=dict)
    """Nonces of messages that were not sent as a reply, so that QQ does not recognise a second one."""


class QQChannel(ChatChannel):
    """Private and group chats of one bot."""

    name = "qq"
    largest_file = 5 * 1024 * 1024
    stall_s = 50.0
    beat_s: float = 20.0
    """Longest time between two heartbeats; QQ itself wants one every 40 s or so."""

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, QQConfig) else QQConfig.model_validate(config)
        self.dialect = QQ if self._settings.msg_format == "markdown" else PLAIN
        self._api = QQApi(self._settings)
        self._state = QQState()

    async def start(self) -> None:
        """Log in, and receive messages until the connection breaks."""
        async with self._api:
            await self._api.token()
            if self._state.bot != (bot := self._settings.app_id.strip()):
                self._state = await self.load_state(QQState(bot))
            while True:
                await self._serve()
                await asyncio.sleep(_RECONNECT_S)

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Show which bot it is. Raises ChannelSetupError; SendError if QQ is unreachable."""
        async with self._api:
            bot = await self._api.call("GET", "/users/@me")
            await self._api.call("GET", "/gateway/bot")
        show(
            LoginStep(
                f"The credentials work. Your bot is {bot.line('username') or self._settings.app_id}.\n"
                f"{CONSOLE}, your bot, has the QR code with which you add it in QQ.\n"
                "Until it is published, only the people and groups of its sandbox (沙箱配置) can use it."
            )
        )
        return True

    # receiving

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
        beat_s = min(self.beat_s, hello.number("d", "heartbeat_interval") / 1000 or self.beat_s)
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
                put_bounded(self._state.groups, chat, None, _MOST_REMEMBERED)
            if message_id not in self._state.windows:  # it may come again
                put_bounded(self._state.windows, message_id, ReplyWindow(chat, time.time()), _MOST_REMEMBERED)
            if await self.receive(incoming) and self._settings.ack_message:
                note = OutboundMessage(self.name, chat, self._settings.ack_message, kind=OutboundKind.PROGRESS)
                await self.bus.publish_outbound(note)
        if isinstance(number, int):
            self._state.last_event = number
        await self.save_state(self._state)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return self._api.download(attachment.source)

    # sending

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
                if error.code in NO_MARKDOWN and not is_plain:
                    log.warning("qq: answers are sent without Markdown. %s", error)
                    self.dialect = PLAIN
                    text = split_message(chunk.content, PLAIN, _LONGEST_TEXT)[0].text
                elif error.code in NO_LINKS and text != dead_links:
                    log.warning(
                        "qq: a message is sent with dead links. To allow links: %s, your bot. %s", CONSOLE, error
                    )
                    text = dead_links
                else:
                    raise

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file. For the URL of a picture QQ shows the picture itself."""
        upload: dict[str, Any] = {"srv_send_msg": False}
        if file.path is None:
            if file.kind is not MediaKind.IMAGE:
                return await self.post(to, split_message(file.url or file.name, self.dialect)[0], options)
            upload |= {"file_type": 1, "url": file.url}
        else:
            data = await read_outgoing(file.path, largest=self.largest_file)
            kind = _FILE_TYPES.get(file.path.suffix.lower(), _FILE)
            upload |= {"file_type": kind, "file_name": file.name, "file_data": base64.b64encode(data).decode()}
        uploaded = await self._call(to, "files", upload)
        media = {"file_info": uploaded.get("file_info")}
        return await self._send(to, {"msg_type": 7, "content": " ", "media": media}, options)

    async def show_typing(self, to: Address) -> None:
        """Show for a minute that the bot types: in private chats, once a message, because it uses up a reply."""
        windows = self._open_windows(to.chat_id)
        if windows and to.chat_id not in self._state.groups and _TYPING not in self._state.windows[windows[-1]].nonces:
            body = {"msg_type": 6, "input_notify": {"input_type": 1, "input_second": 60}}
            await self._call(to, "messages", body | await self._use_reply(windows[-1], _TYPING))

    def is_deduped(self, nonce: str, since: float) -> bool:
        """Whether a second post is a reply with the number of the first, or there was no first."""
        posted = {one for window in self._state.windows.values() for one in window.nonces} | {*self._state.unprompted}
        return nonce not in posted or self._window_of(nonce) is not None

    async def _send(self, to: Address, body: Mapping[str, Any], options: SendOptions) -> str:
        """Send a message: as a reply, if there is one left, else unprompted."""
        nonce = options.nonce or ""
        while True:
            windows = self._open_windows(to.chat_id)
            left = sum(_MOST_REPLIES - len(self._state.windows[one].nonces) for one in windows)
            if options.quiet and (left <= _KEPT_REPLIES or to.chat_id in self._state.groups):
                raise UndeliverableError("the replies that QQ allows are kept for the answer")
            used = self._window_of(nonce)
            window = used or next(iter(windows), None)
            reply = await self._use_reply(window, nonce)
            try:
                answer = await self._call(to, "messages", {**body, **reply})
            except RefusedError as error:
                if window is None or error.code not in (REPEATED, *TOO_LATE):
                    raise
                if error.code == REPEATED and used is not None:
                    return f"{window}-{reply['msg_seq']}"
                if error.code == REPEATED:  # the number is that of another message, which was not saved
                    self._state.windows[window].nonces[reply["msg_seq"] - 1] = ""
                    continue
                self._state.windows[window].is_closed = True
                if used is not None:
                    raise SendError(str(error), may_have_arrived=True) from error
            else:
                return answer.text("id")

    def _open_windows(self, chat: str) -> list[str]:
        """The messages in this chat that can be replied to, oldest first."""
        return [
            message_id
            for message_id, window in self._state.windows.items()
            if window.chat == chat and self._is_open(window) and len(window.nonces) < _MOST_REPLIES
        ]

    def _window_of(self, nonce: str) -> str | None:
        """The message to which this was sent as a reply already, if QQ still recognises it."""
        windows = self._state.windows.items()
        return next(
            (one for one, window in windows if nonce and nonce in window.nonces and self._is_open(window)), None
        )

    def _is_open(self, window: ReplyWindow) -> bool:
        lasts_s = _GROUP_S if window.chat in self._state.groups else _PRIVATE_S
        return not window.is_closed and 0 <= time.time() - window.since < lasts_s

    async def _use_reply(self, window: str | None, nonce: str) -> dict[str, Any]:
        """What to add to a message that is sent as a reply; save its number."""
        if window is None:
            if nonce:
                put_bounded(self._state.unprompted, nonce, None, _MOST_REMEMBERED)
                await self.save_state(self._state)
            return {}
        nonces = self._state.windows[window].nonces
        if not nonce or nonce not in nonces:
            nonces.append(nonce)
            await self.save_state(self._state)
        return {"msg_id": window, "msg_seq": nonces.index(nonce) + 1 if nonce else len(nonces)}

    async def _call(self, to: Address, what: str, body: Mapping[str, Any]) -> Payload:
        kind = "groups" if to.chat_id in self._state.groups else "users"
        return await self._api.call("POST", f"/v2/{kind}/{to.chat_id}/{what}", json=body)
