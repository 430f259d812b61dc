"""The WeChat channel: private chats with the bot of a personal account (github.com/Tencent/openclaw-weixin).

WeChat keeps messages until they are polled for with the next cursor, which happens once they are journaled. It gives
the bot a token with each message of a person; with the newest one the bot may send some messages, for a day. Whatever
it may not send waits in the journal until the person writes again.
"""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import keep_saved, load_state
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.weixin.api import (
    FILE,
    IMAGE,
    VIDEO,
    RestrictedError,
    WeixinApi,
    download_file,
    file_source,
    is_trusted,
)
from nanobot.config.channels import WeixinConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import WEIXIN
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_USABLE_S = timedelta(days=1).total_seconds()
"""How long after a person's message the bot may write to them (Tencent/openclaw-weixin, issue 204)."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
"""Pauses after a refusal: WeChat does not say why it refuses, nor when it no longer does (issues 81 and 225)."""
_TICKET_S = timedelta(hours=12).total_seconds()
_LONGEST_POLL_S = 60.0
"""More would be taken for silence (`stall_s`)."""
_POLL_SLACK_S, _STOP_S, _IDLE_S = 5.0, 2.0, 0.2
_KINDS = {**dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"), IMAGE), ".mp4": VIDEO}
"""Of uploads, by suffix; everything else is a file."""
_FROM_BOT = 2
_TEXT, _VOICE = 1, 3
_ITEMS = {
    _VOICE: ("voice_item", MediaKind.VOICE),
    2: ("image_item", MediaKind.IMAGE),
    4: ("file_item", MediaKind.FILE),
    5: ("video_item", MediaKind.VIDEO),
}
"""By type of an item (src/api/types.ts)."""
_FORGOTTEN = "(a message that nanobot no longer has)"
_LATE = "(This had to wait until you wrote: WeChat took no more messages of mine.)"
_LAST = "(WeChat takes no more messages of mine until you write again.)"


@dataclass(slots=True)
class Context:
    """What the bot needs to write to a person: the token of their newest message."""

    token: str
    since: float
    """When that message was sent, in seconds since 1970."""
    sent: int = 0
    progress: int = 0
    """How many of these messages were no answers."""
    pause_s: float = 0.0
    resume_at: float = 0.0
    """Until when nothing is sent, because WeChat refused."""


@dataclass(slots=True)
class WeixinState:
    bot: str = ""
    """A hash of its token."""
    cursor: str = ""
    contexts: dict[str, Context] = field(default_factory=dict)
    """By person."""
    prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    """Of the ids that the bot gives to messages."""


@dataclass(slots=True)
class EarlierLogin:
    """The `account.json` of earlier releases. It is read where the config has no token, and never written."""

    token: str = ""
    base_url: str = ""
    get_updates_buf: str = ""
    context_tokens: dict[str, Any] = field(default_factory=dict)


class WeixinChannel(ChatChannel):
    name = "weixin"
    dialect = WEIXIN
    pace_s: ClassVar[float] = 1.0
    """Pause after each message: WeChat refuses everything for a while after a burst."""

    config: WeixinConfig

    def __init__(self, config: WeixinConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._wait_s = min(config.poll_timeout, _LONGEST_POLL_S)
        """How long WeChat lets a poll wait."""
        self._api = WeixinApi(config)
        self._state = WeixinState()
        self._renewed = asyncio.Event()
        """Set for a moment when somebody has written."""
        self._arrived = asyncio.Event()
        """Set when messages have arrived, to save their tokens."""
        self._held: dict[str, str] = {}
        """People with messages that wait for them to write, and the token that did not suffice."""
        self._tickets: dict[str, tuple[str, float]] = {}
        """For the typing indicator, by person, and when they were given."""
        self._next_at = 0.0
        """When the next message may be sent, by the event loop's clock."""
        self._texts: dict[str, str] = {}
        """What the newest messages say, by id."""

    async def start(self) -> None:
        await self._log_in()
        async with self._api, keep_saved(self.state_path, self._state, self._arrived):
            await self._announce()
            self.mark_up()
            while True:
                await self._receive_messages()

    async def stop(self) -> None:
        await super().stop()
        with suppress(ChannelSetupError, SendError):
            await self._api.ask("msg/notifystop", {}, timeout_s=_STOP_S)

    async def check_login(self) -> str:
        await self._log_in()
        await self._announce()
        return ""

    async def _log_in(self) -> None:
        """Take the token of the config, or of an earlier release; and what is saved of this login."""
        settings = self.config
        token, base_url, earlier = settings.token.strip(), settings.base_url, EarlierLogin()
        if not token:
            earlier = await asyncio.to_thread(load_state, self._earlier_path, EarlierLogin)
            (token,) = require_settings("weixin", token=earlier.token)
            base_url = earlier.base_url if is_trusted(earlier.base_url, base_url) else base_url
        login = hashlib.sha256(token.encode()).hexdigest()[:16]
        if self._state.bot != login:
            tokens = {person: context for person, context in earlier.context_tokens.items() if isinstance(context, str)}
            contexts = {person: Context(context, self._now) for person, context in tokens.items() if context}
            self._state = await self.load_state(WeixinState(login, earlier.get_updates_buf, contexts))
        self._api = WeixinApi(settings, token, base_url)

    async def _announce(self) -> None:
        """Tell WeChat that the bot is there. Raises ChannelSetupError, NotConnectedError."""
        try:
            await self._api.ask("msg/notifystart", {})
        except NotConnectedError:
            raise
        except SendError as error:
            log.debug("weixin: %s", error)

    # receiving

    async def _receive_messages(self) -> None:
        """Process what comes next. Raises StorageError if it could not be journaled: it comes again."""
        about = {"get_updates_buf": self._state.cursor}
        answer = await self._api.ask("getupdates", about, timeout_s=self._wait_s + _POLL_SLACK_S, waits=True)
        if answer:
            self.status.touch()
        messages = answer.parts("msgs")
        for message in messages:
            await self._process(message)
        self._state.cursor = answer.text("get_updates_buf") or self._state.cursor
        if messages:
            self._arrived.set()
        else:
            await asyncio.sleep(_IDLE_S)  # in case WeChat does not wait
        if wait_ms := answer.number("longpolling_timeout_ms"):
            self._wait_s = min(wait_ms / 1000, _LONGEST_POLL_S)

    async def _process(self, message: Payload) -> None:
        incoming = read_message(message, self._texts, self.config.cdn_base_url)
        if incoming is None:
            return
        self._renew(incoming, message.text("context_token"))
        await self.receive(incoming)
        if incoming.message_id is not None and incoming.text:
            put_bounded(self._texts, incoming.message_id, incoming.text)

    def _renew(self, incoming: Incoming, token: str) -> None:
        """Use the token of this message, unless that of a newer one is in use."""
        since = incoming.sent_at.timestamp() if incoming.sent_at is not None else self._now
        known = self._state.contexts.get(incoming.chat_id)
        if token and (known is None or (token != known.token and since >= known.since)):
            self._state.contexts.pop(incoming.chat_id, None)
            put_bounded(self._state.contexts, incoming.chat_id, Context(token, since))
            self._renewed.set()
            self._renewed.clear()

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        return download_file(attachment.source)

    # sending

    async def reachable(self, chat_id: str) -> None:
        """Wait until WeChat may take a message to this person."""
        while True:
            await self.status.connected.wait()
            context = self._state.contexts.get(chat_id)
            if context is None or not self._is_open(context):
                if chat_id not in self._held:
                    log.warning("weixin: a message to %s waits until they write to the bot again", chat_id)
                    self._held[chat_id] = context.token if context is not None else ""
                pause_s = None
            elif (pause_s := context.resume_at - self._now) <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._renewed.wait()

    def _is_open(self, context: Context) -> bool:
        """Whether WeChat takes another message, as far as is known."""
        return context.sent < self.config.context_message_budget and self._now - context.since < _USABLE_S

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Send a text. A line says if it waited for the person to write, or if it is the last until they do."""
        context = self._context_for(to, options)
        is_late = self._held.get(to.chat_id, context.token) != context.token
        is_last = context.sent + 1 == self.config.context_message_budget
        text = "\n\n".join([*([_LATE] if is_late else ()), chunk.text, *([_LAST] if is_last else ())])
        message_id = await self._send(to, {"type": 1, "text_item": {"text": text}}, options)
        put_bounded(self._texts, message_id, chunk.content.text)
        return message_id

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        self._context_for(to, options)
        data, kind = await read_outgoing(file), _KINDS.get(file.suffix, FILE)
        media, size = await self._api.upload(to.chat_id, kind, data)
        if kind == IMAGE:
            item = {"type": 2, "image_item": {"media": media, "mid_size": size}}
        elif kind == VIDEO:
            item = {"type": 5, "video_item": {"media": media, "video_size": size}}
        else:
            item = {"type": 4, "file_item": {"media": media, "file_name": file.name, "len": str(len(data))}}
        return await self._send(to, item, options)

    async def show_typing(self, to: Address) -> None:
        if (context := self._state.contexts.get(to.chat_id)) is None:
            return
        ticket, given = self._tickets.pop(to.chat_id, ("", 0.0))
        if not ticket or self._now - given > _TICKET_S:
            about = {"ilink_user_id": to.chat_id, "context_token": context.token}
            ticket = (await self._api.ask("getconfig", about)).text("typing_ticket")
            given = self._now
        await self._api.ask("sendtyping", {"ilink_user_id": to.chat_id, "typing_ticket": ticket, "status": 1})
        put_bounded(self._tickets, to.chat_id, (ticket, given))

    def _context_for(self, to: Address, options: SendOptions) -> Context:
        """What a message is sent with. Raises NotConnectedError if it has to wait, UndeliverableError for progress."""
        context = self._state.contexts.get(to.chat_id)
        if context is None or not self._is_open(context) or context.resume_at > self._now:
            raise NotConnectedError(f"{to.chat_id} has to write to the bot first")
        if options.quiet:
            settings = self.config
            wanted = settings.reply_progress_messages or settings.send_progress or settings.send_tool_hints
            is_last = context.sent + 1 >= settings.context_message_budget
            if not wanted or is_last or context.progress >= settings.reply_progress_max_messages:
                raise UndeliverableError("the messages that WeChat takes are kept for the answer")
        return context

    async def _send(self, to: Address, item: Mapping[str, Any], options: SendOptions) -> str:
        """Send an item as a message of its own. Return its id."""
        context = self._context_for(to, options)
        client_id = f"nanobot-{self._state.prefix}-{options.nonce or secrets.token_hex(8)}"
        message = {
            "from_user_id": "",
            "to_user_id": to.chat_id,
            "client_id": client_id,
            "message_type": 2,
            "message_state": 2,
            "item_list": [item],
        }
        now = asyncio.get_running_loop().time()
        send_at = max(now, self._next_at)
        self._next_at = send_at + self.pace_s
        await asyncio.sleep(send_at - now)
        try:
            answer = await self._send_with(context, message)
        except RestrictedError as error:
            context.pause_s = min(max(2 * context.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            context.resume_at = self._now + context.pause_s
            log.warning("weixin: trying again in %g s, or once %s writes. %s", context.pause_s, to.chat_id, error)
            raise NotConnectedError(str(error)) from error
        except SendError as error:
            context.sent += error.may_have_arrived
            raise
        context.sent += 1
        context.progress += options.quiet
        context.pause_s = 0.0
        self._held.pop(to.chat_id, None)
        return id_of(answer.get("message_id")) or client_id

    async def _send_with(self, context: Context, message: Mapping[str, Any]) -> Payload:
        """Send a message; once more if it was refused and WeChat gives a fresh token."""
        try:
            return await self._api.ask("sendmessage", {"msg": {**message, "context_token": context.token}})
        except RestrictedError:
            about = {"ilink_user_id": message["to_user_id"], "context_token": context.token}
            fresh = (await self._api.ask("getconfig", about)).text("context_token")
            if fresh in ("", context.token):
                raise
        context.token = fresh
        return await self._api.ask("sendmessage", {"msg": {**message, "context_token": fresh}})

    @property
    def _now(self) -> float:
        return self.status.clock.now().timestamp()

    @property
    def _earlier_path(self) -> Path | None:
        if self.config.state_dir:
            return Path(self.config.state_dir).expanduser() / "account.json"
        path = self.state_path  # state/channels/weixin/weixin.json of the data folder
        return path.parents[3] / "weixin" / "account.json" if path is not None else None


def read_message(data: object, texts: Mapping[str, str], cdn_base: str) -> Incoming | None:
    """Read a person's message (src/api/types.ts). None for others, and for one that does not say who wrote it.

    `texts`: what earlier messages say, by id; newer apps quote by id alone.
    """
    message = Payload.of(data)
    sender, items = message.text("from_user_id"), message.parts("item_list")
    if not sender or message.get("message_type") == _FROM_BOT or message.get("group_id"):
        return None
    ids = (message.get("message_id"), *(item.get("msg_id") for item in items))
    message_id = next(filter(None, map(id_of, ids)), "")
    text, files = _read_items(items, cdn_base)
    reference = next(filter(None, (item.part("ref_msg") for item in items)), Payload())
    if reference:
        quoted_item = reference.part("message_item")
        quoted, quoted_files = _read_items([quoted_item], cdn_base)
        quoted_id = id_of(reference.get("svr_id")) or id_of(quoted_item.get("msg_id"))
        inline = " | ".join(filter(None, (reference.text("title").strip(), quoted)))
        quoted = inline or texts.get(quoted_id, "") or ("" if quoted_files else _FORGOTTEN)
        text, files = f"{quoted_lines(quoted)}\n{text}", files + quoted_files
    return Incoming(
        sender,
        sender,
        text,
        message_id or None,
        attachments=files,
        quotes_others=bool(reference),
        sent_at=message.time("create_time_ms"),
    )


def _read_items(items: list[Payload], cdn_base: str) -> tuple[str, tuple[Attachment, ...]]:
    words, files = [], []
    for item in items:
        kind, heard = item.get("type"), item.text("voice_item", "text").strip()
        if kind == _TEXT:
            words.append(item.text("text_item", "text").strip())
        elif kind == _VOICE and heard:
            words.append(heard)  # what WeChat heard; the recording, in SILK, says no more
        elif kind in _ITEMS:
            name, media_kind = _ITEMS[kind]
            content = item.part(name)
            if source := file_source(content.part("media"), content.text("aeskey"), cdn_base):
                files.append(Attachment(media_kind, name=content.text("file_name") or None, source=source))
    return "\n".join(filter(None, words)), tuple(files)


def id_of(value: object) -> str:
    """A message's id, which is a number or a text; empty if there is none."""
    return str(value).strip() if isinstance(value, str | int) and value else ""
