"""The WeChat channel: private chats with the bot of a personal account.

WeChat keeps messages until they are polled for with the next cursor, which happens once they are journaled. It gives
the bot a token with each message of a person; with the newest one the bot may send some messages, for a day. Whatever
it may not send waits in the journal until the person writes again. The CDN keeps files encrypted: AES-128-ECB, padded
as PKCS #7 says. The login is a QR code that the owner scans; they may have to type a number that the phone shows.

Source: github.com/Tencent/openclaw-weixin, docs/protocol.md, src/api and src/cdn. Errors come as `ret` or `errcode` in
an answer of 200.
"""

import asyncio
import base64
import hashlib
import logging
import re
import secrets
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from math import inf
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode, urlsplit

from cryptography.hazmat.primitives.ciphers import Cipher, modes
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.padding import PKCS7

from nanobot import __version__
from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import AskPerson, LoginStep, ShowStep, SignedIn
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.cursors import StateFile
from nanobot.channels.errors import (
    ChannelSetupError,
    ErrorCodes,
    NotConnectedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing
from nanobot.channels.rest import Answer, NoAnswerError, RestClient, download
from nanobot.config.channels import WeixinConfig
from nanobot.errors import NanobotError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import WEIXIN
from nanobot.utils.bounded_dict import put_bounded

log = logging.getLogger(__name__)

_VERSION = (2, 4, 6)
"""Of Tencent's plugin, whose requests these are."""
_CONNECT_S, _ANSWER_S = 10.0, 15.0
_RESTRICTED, _BAD_ARGUMENT, _LOGGED_OUT = -2, -3, -14
_LOG_IN_AGAIN = (
    "WeChat has logged the bot of channels.weixin.token out ({text}). "
    "Log in again: nanobot channels login weixin --force"
)
_IMAGE, _VIDEO, _FILE = 1, 2, 3
"""Kinds of uploads."""
_HEX_KEY = re.compile(r"[0-9a-fA-F]{32}")
_USABLE_S = timedelta(days=1).total_seconds()
"""How long after a person's message the bot may write to them (Tencent/openclaw-weixin, issue 204)."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 60.0, 3600.0
"""Pauses after a refusal: WeChat does not say why it refuses, nor when it no longer does (issues 81 and 225)."""
_TICKET_S = timedelta(hours=12).total_seconds()
_LONGEST_POLL_S = 60.0
"""More would be taken for silence (`stall_s`)."""
_POLL_SLACK_S, _STOP_S, _IDLE_S = 5.0, 2.0, 0.2
_KINDS = {**dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"), _IMAGE), ".mp4": _VIDEO}
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
PAUSE_S = 1.0
"""Between two questions for the state of a login."""
_MOST_CODES = 3
_STATE_S, _LONGEST_S = 35.0, 480.0


class RestrictedError(SendError):
    """WeChat takes no more messages for now: too many, too fast, or too long after the person's last one."""


class WeixinApi(RestClient):
    """The requests of one bot; without a token only those of the login."""

    codes = ErrorCodes(
        "WeChat", {_BAD_ARGUMENT: "it does not take the message: {text}"}, setup={_LOGGED_OUT: _LOG_IN_AGAIN}
    )
    code_keys = ("errcode", "ret")

    def __init__(self, section: WeixinConfig, token: str = "", base_url: str = "") -> None:
        super().__init__(base_url or section.base_url)
        self.cdn_base = section.cdn_base_url.rstrip("/")
        self._bot_token = token
        self._route_tag = (section.route_tag or "").strip()

    async def fetch_token(self) -> tuple[str, float]:
        return self._bot_token, inf

    def authorize(self, token: str) -> dict[str, str]:
        major, minor, patch = _VERSION
        headers = {
            "iLink-App-Id": "bot",
            "iLink-App-ClientVersion": str(major << 16 | minor << 8 | patch),
            "AuthorizationType": "ilink_bot_token",
            "X-WECHAT-UIN": base64.b64encode(str(secrets.randbits(32)).encode()).decode(),
        }
        tag = {"SKRouteTag": self._route_tag} if self._route_tag else {}
        return headers | tag | (super().authorize(token) if token else {})

    def error_of(self, answer: Answer) -> Exception:
        if answer.code == _RESTRICTED:
            return RestrictedError(f"WeChat takes no message for now ({answer})")
        return super().error_of(answer)

    async def ask(
        self, path: str, body: Mapping[str, Any] | None, *, timeout_s: float = _ANSWER_S, waits: bool = False
    ) -> Payload:
        """Send a request and return the answer: empty if it `waits` for something that does not happen in time."""
        request: dict[str, Any] = {"timeout": (_CONNECT_S, timeout_s, timeout_s, timeout_s)}
        if body is not None:
            about = {"channel_version": ".".join(map(str, _VERSION)), "bot_agent": f"nanobot/{__version__} (python)"}
            request["json"] = {**body, "base_info": about}
        try:
            return await self.call("GET" if body is None else "POST", f"/ilink/bot/{path}", **request)
        except NoAnswerError:
            if not waits:
                raise
        return Payload()

    async def upload(self, to: str, kind: int, data: bytes) -> tuple[dict[str, Any], int]:
        """Encrypt and upload a file for a person. Return how a message refers to it, and its size there."""
        key, file_key = secrets.token_bytes(16), secrets.token_hex(16)
        encrypted = await asyncio.to_thread(encrypt, data, key)
        answer = await self.ask(
            "getuploadurl",
            {
                "filekey": file_key,
                "media_type": kind,
                "to_user_id": to,
                "rawsize": len(data),
                "rawfilemd5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
                "filesize": len(encrypted),
                "no_need_thumb": True,
                "aeskey": key.hex(),
            },
        )
        url = answer.text("upload_full_url")
        if not is_trusted(url, self.cdn_base):
            query = {"encrypted_query_param": answer.text("upload_param"), "filekey": file_key}
            url = f"{self.cdn_base}/upload?{urlencode(query)}"
        headers = {"Content-Type": "application/octet-stream"}
        taken = await self.exchange("POST", url, content=encrypted, headers=headers)
        parameter = taken.headers.get("x-encrypted-param", "")
        if taken.status != HTTPStatus.OK or not parameter:
            said = taken.headers.get("x-error-message") or f"HTTP {taken.status}"
            raise (UndeliverableError if taken.status >= 400 else SendError)(f"WeChat does not take the file ({said})")
        key_text = base64.b64encode(key.hex().encode()).decode()
        return {"encrypt_query_param": parameter, "aes_key": key_text, "encrypt_type": 1}, len(encrypted)


def is_trusted(url: str, configured: str) -> bool:
    """Whether requests may go to an address of an answer: WeChat's own, with TLS, or the configured server's."""
    try:
        parts, own = urlsplit(url), urlsplit(configured)
    except ValueError:
        return False
    is_wechats = parts.scheme == "https" and (parts.hostname or "").endswith(".weixin.qq.com")
    return is_wechats or (parts.scheme, parts.netloc) == (own.scheme, own.netloc)


def file_source(media: Payload, key: str, cdn_base: str) -> str:
    """The key and the address of a received file; empty if the message tells no address that can be trusted."""
    url, parameter = media.text("full_url"), media.text("encrypt_query_param")
    if not (url and is_trusted(url, cdn_base)):
        url = f"{cdn_base.rstrip('/')}/download?{urlencode({'encrypted_query_param': parameter})}" if parameter else ""
    return f"{read_key(key or media.text('aes_key'))} {url}" if url else ""


def read_key(text: str) -> str:
    """The 32 hexadecimal digits of a key: they alone, they in base64, or 16 bytes in base64. The text if it is none."""
    if _HEX_KEY.fullmatch(text):
        return text
    try:
        decoded = base64.b64decode(text, validate=True)
    except ValueError:
        return text
    digits = decoded.decode("latin-1")
    return decoded.hex() if len(decoded) == 16 else digits if _HEX_KEY.fullmatch(digits) else text


async def download_file(source: str) -> AsyncIterator[bytes]:
    """Download a file and decrypt it, if there is a key. Raises MediaError, SendError."""
    key, _, url = source.partition(" ")
    if key and not _HEX_KEY.fullmatch(key):
        raise MediaError("WeChat sent a key that is none")
    chunks = download("WeChat", url)
    async for chunk in decrypt(chunks, bytes.fromhex(key)) if key else chunks:
        yield chunk


def encrypt(data: bytes, key: bytes) -> bytes:
    padder, encryptor = PKCS7(AES.block_size).padder(), Cipher(AES(key), modes.ECB()).encryptor()  # noqa: S305
    return encryptor.update(padder.update(data) + padder.finalize()) + encryptor.finalize()


async def decrypt(chunks: AsyncIterator[bytes], key: bytes) -> AsyncIterator[bytes]:
    """Decrypt a file. Raises MediaError at its end, if it is not complete or the key is another file's."""
    decryptor, unpadder = Cipher(AES(key), modes.ECB()).decryptor(), PKCS7(AES.block_size).unpadder()  # noqa: S305
    async for chunk in chunks:
        yield unpadder.update(decryptor.update(chunk))
    try:
        rest = unpadder.update(decryptor.finalize()) + unpadder.finalize()
    except ValueError as error:
        raise MediaError("the file is not complete, or WeChat sent another file's key") from error
    yield rest


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
        async with self._api, self.state_file.keep_saved(self._state):
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
            earlier = await StateFile(self._earlier_path).load(EarlierLogin())
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
            self.state_file.urgent.set()
        else:
            await asyncio.sleep(_IDLE_S)  # in case WeChat does not wait
        if wait_ms := answer.number("longpolling_timeout_ms"):
            self._wait_s = min(wait_ms / 1000, _LONGEST_POLL_S)

    async def _process(self, message: Payload) -> None:
        incoming = read_message(message, self._texts, self.config.cdn_base_url)
        if incoming is None:
            return
        token, known = message.text("context_token"), self._state.contexts.get(incoming.chat_id)
        since = incoming.sent_at.timestamp() if incoming.sent_at is not None else self._now
        if token and (known is None or (token != known.token and since >= known.since)):  # else a newer one is in use
            self._state.contexts.pop(incoming.chat_id, None)
            put_bounded(self._state.contexts, incoming.chat_id, Context(token, since))
            self._renewed.set()
            self._renewed.clear()
        await self.receive(incoming)
        if incoming.message_id is not None and incoming.text:
            put_bounded(self._texts, incoming.message_id, incoming.text)

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
        data, kind = await read_outgoing(file), _KINDS.get(file.suffix, _FILE)
        media, size = await self._api.upload(to.chat_id, kind, data)
        if kind == _IMAGE:
            item = {"type": 2, "image_item": {"media": media, "mid_size": size}}
        elif kind == _VIDEO:
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


async def scan_code(section: WeixinConfig, show: ShowStep, ask: AskPerson) -> SignedIn:
    """Log in. Raises NanobotError; safe to cancel."""
    default = str(WeixinConfig.model_fields["base_url"].default)
    is_wechats = is_trusted(section.base_url, default)  # an earlier login may have set the server of a region
    base_url = default if is_wechats else section.base_url
    until = time.monotonic() + _LONGEST_S
    for _ in range(_MOST_CODES):
        async with WeixinApi(section, base_url=base_url) as api:
            if (signed_in := await _scan_one(section, api, show, ask, until)) is not None:
                return signed_in
    raise NanobotError(f"{_MOST_CODES} QR codes have expired. Try again later.")


async def _scan_one(
    section: WeixinConfig, api: WeixinApi, show: ShowStep, ask: AskPerson, until: float
) -> SignedIn | None:
    """Show a QR code, and wait until the login is complete. None if the code has expired."""
    base_url, known = api.base, [token] if (token := section.token.strip()) else []
    code = await api.ask("get_bot_qrcode?bot_type=3", {"local_token_list": known})
    url = code.text("qrcode_img_content")
    if not (code.text("qrcode") and url):
        raise SendError("WeChat sent no QR code")
    show(
        LoginStep(
            "Scan this in WeChat (微信, 扫一扫). If it is hard to scan, open its link in WeChat:", qr=url, link=url
        )
    )
    number, was_scanned = "", False
    while time.monotonic() < until:
        query = {"qrcode": code.text("qrcode")} | ({"verify_code": number} if number else {})
        try:
            answer = await api.ask(f"get_qrcode_status?{urlencode(query)}", None, timeout_s=_STATE_S, waits=True)
        except NotConnectedError:
            raise
        except SendError:  # a gateway on the way gave up waiting
            answer = Payload()
        match answer.get("status"):
            case "scaned":
                number = ""
                if not was_scanned:
                    was_scanned = True
                    show(LoginStep("Scanned. Confirm it on your phone."))
            case "need_verifycode":
                number = await ask(
                    "That is another number. The one on your phone" if number else "The number on your phone"
                )
            case "expired" | "verify_code_blocked":
                return None
            case "scaned_but_redirect":
                host = f"{urlsplit(base_url).scheme}://{answer.text('redirect_host')}"
                api.base = host if is_trusted(host, base_url) else api.base
            case "binded_redirect":
                return SignedIn({"token": section.token, "base_url": section.base_url})
            case "confirmed":
                if not (token := answer.text("bot_token")):
                    raise NanobotError("WeChat confirmed the login without a token. Try again.")
                confirmed = answer.text("baseurl")
                confirmed = confirmed if is_trusted(confirmed, base_url) else api.base
                return SignedIn({"token": token, "base_url": confirmed}, answer.text("ilink_user_id"))
        await asyncio.sleep(PAUSE_S)
    raise NanobotError(f"Nobody confirmed the login within {_LONGEST_S / 60:.0f} minutes.")
