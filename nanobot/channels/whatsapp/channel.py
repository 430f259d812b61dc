"""The WhatsApp channel: a linked account, reached through the bridge.

The bridge keeps each message until it is acknowledged, so one that could not be journaled is not lost. Our messages
have ids that follow from their nonces: the bridge and the recipient's phone drop a second one with the same id.
"""

import asyncio
import hashlib
import logging
import mimetypes
import re
import secrets
from collections.abc import AsyncIterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.base import LoginStep, ShowStep
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.errors import ChannelSetupError, NotConnectedError, UndeliverableError, require_settings
from nanobot.channels.incoming import Incoming, Payload, quoted_lines
from nanobot.channels.media import Attachment, MediaError, MediaKind
from nanobot.channels.outgoing import Outgoing, read_outgoing, stream_outgoing
from nanobot.channels.status import ChannelState
from nanobot.channels.whatsapp.bridge import Connection, connect_bridge, find_node, install_bridge, run_bridge
from nanobot.config.channels import WhatsAppConfig
from nanobot.config.paths import expand, get_data_dir
from nanobot.errors import NanobotError
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import WHATSAPP
from nanobot.net.http import is_loopback
from nanobot.pairing.senders import Sender
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.files import make_private_folder

log = logging.getLogger(__name__)

_LOGIN_S = 300.0
_MOST_FAILURES = 5
"""How often in a row the bridge is started again soon; then every five minutes."""
_EDITABLE_S = 14 * 60.0
"""Phones ignore edits after 15 minutes."""
_MOST_EDITS = 20
_LINK = "Run `nanobot channels login whatsapp`."
_LOST = 2
"""After so many states that are not connected, the first of which is the bridge's own, WhatsApp is out of reach."""
_UNREACHED = "web.whatsapp.com cannot be reached yet, and a proxy is not supported. Still trying."
_SCAN = "On your phone: WhatsApp, Linked devices, Link a device."
_LOGGED_OUT = 401
_ENDS = {
    _LOGGED_OUT: f"WhatsApp has logged this device out. {_LINK}",
    403: "WhatsApp has banned this account (403). Open WhatsApp on the phone to ask for a review, then restart the "
    "gateway.",
    405: "WhatsApp does not take this version of the bridge any more (405). Update nanobot, then restart the gateway.",
    440: "Another program uses this linked device (440). Stop it, then restart the gateway.",
}
"""Why the bridge ends for good, by WhatsApp's code."""
_KINDS = {"image": MediaKind.IMAGE, "sticker": MediaKind.IMAGE, "video": MediaKind.VIDEO, "audio": MediaKind.AUDIO}
_GROUP, _LID = "@g.us", "@lid"


class WhatsAppChannel(ChatChannel):
    name = "whatsapp"
    dialect = WHATSAPP
    largest_file = 64 * 1024 * 1024
    can_edit = True
    can_react = True
    dedupe_s: ClassVar[float] = 3600.0
    stall_s = 45.0
    beat_s: float = 15.0
    pause_s: float = 1.0
    """Between two messages in a chat: accounts that send faster get banned."""
    delta_interval_s: ClassVar[float] = 2.0

    config: WhatsAppConfig

    def __init__(self, config: WhatsAppConfig, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._connection = Connection()
        self._ended: ChannelSetupError | None = None
        self._failures = 0
        self._is_ours = False
        """Whether the bridge knows more than those of earlier releases."""
        self._me: frozenset[str] = frozenset()
        """The ids of the linked account."""
        self._authors: dict[str, str] = {}
        """Who wrote the newest messages, by message id."""
        self._posted: dict[str, tuple[float, int]] = {}
        """When our newest messages were posted, and how often they were edited."""
        self._next_slot: dict[str, float] = {}

    async def start(self) -> None:
        """Receive messages until the bridge ends. Never starts it again once WhatsApp has ended the session."""
        if self._ended is not None:
            raise self._ended
        if self._is_managed and not (self._auth / "creds.json").is_file():
            raise ChannelSetupError(f"WhatsApp is not linked yet. {_LINK}")
        async with self._open_bridge() as self._connection:
            async for frame in self._connection.events():
                await self._process(frame)

    async def run_login(self, show: ShowStep, *, force: bool = False) -> bool:
        """Link an account: show a QR code, or the code for `phone`, until it is connected."""
        async with self._open_bridge() as connection:
            try:
                async with asyncio.timeout(_LOGIN_S):
                    is_linked = await self._link(connection, show, force=force)
            except TimeoutError:
                raise NanobotError(f"No account was linked within {_LOGIN_S / 60:.0f} minutes.") from None
        # else the account was linked once, and the bridge has forgotten it by now
        return is_linked or await self.run_login(show, force=True)

    async def _link(self, connection: Connection, show: ShowStep, *, force: bool) -> bool:
        """Return whether the account is linked. With `force`, raise ChannelSetupError instead of returning False."""
        phone = Sender.of(self.config.phone.strip()).id.lstrip("+")
        has_code = is_reached = False
        lost = 0
        async for frame in connection.events():
            match frame.get("type"):
                case "status" if frame.get("status") == "connected":
                    account = address_of(frame.text("me")) or "this account"
                    show(LoginStep(f"Linked as {Sender.of(account).id}."))
                    return True
                case "status":
                    has_code = False
                    lost += 1
                    if lost == _LOST and not is_reached:
                        show(LoginStep(_UNREACHED))
                case "qr" if not phone:
                    is_reached = True
                    show(LoginStep(f"{_SCAN} Scan this:", qr=frame.text("qr")))
                case "qr" if not has_code:
                    has_code = is_reached = True
                    await connection.tell({"type": "pair", "phone": phone})
                case "code":
                    show(LoginStep(f"{_SCAN} Link with phone number instead. Enter:", code=frame.text("code")))
                case "logged_out" if frame.get("code") == _LOGGED_OUT and not force:
                    return False
                case "logged_out":
                    raise _end_of(frame)
        return False

    @asynccontextmanager
    async def _open_bridge(self) -> AsyncIterator[Connection]:
        url, token, is_managed = self.config.bridge_url, self.config.bridge_token.strip(), self._is_managed
        try:
            async with AsyncExitStack() as stack:
                if is_managed:
                    node, token = await find_node(), token or secrets.token_urlsafe(24)
                    variables = {"BRIDGE_TOKEN": token, "BRIDGE_PORT": str(urlsplit(url).port or 80)}
                    variables |= {"BRIDGE_STATE": str(self._state), "AUTH_DIR": str(self._auth)}
                    await stack.enter_async_context(run_bridge(node, await self._install(), variables))
                require_settings("whatsapp", bridgeToken=token)
                connecting = connect_bridge(url, token, beat_s=self.beat_s, touch=self.status.touch)
                yield await stack.enter_async_context(connecting)
        except NotConnectedError as error:
            self._failures += is_managed
            if self._failures > _MOST_FAILURES:
                raise ChannelSetupError(
                    f"The WhatsApp bridge fails again and again: {error}. `nanobot gateway -v` shows what it says. "
                    "Trying again every five minutes."
                ) from error
            raise

    async def _install(self) -> Path:
        """Install the bridge; that takes longer than the channel may be silent."""
        installing = asyncio.create_task(install_bridge(self._state))
        try:
            while not installing.done():
                self.status.touch()
                await asyncio.wait([installing], timeout=self.beat_s)
            return await installing
        finally:
            installing.cancel()

    # receiving

    async def _process(self, frame: Payload) -> None:
        match frame.get("type"):
            case "message":
                await self._take(frame)
            case "status":
                self._set_status(frame)
            case "qr":
                raise ChannelSetupError(f"WhatsApp is not linked yet. {_LINK}")
            case "logged_out":
                end = _end_of(frame)
                self._ended = end if frame.get("code") != _LOGGED_OUT else None
                raise end
            case "error":
                log.warning("whatsapp: the bridge reports: %s", frame.line("error")[:300])

    def _set_status(self, frame: Payload) -> None:
        self._is_ours = self._is_ours or frame.get("version") is not None
        addresses = filter(None, (address_of(frame.text(name)) for name in ("me", "lid")))
        self._me = frozenset(Sender.of(address).id for address in addresses) or self._me
        if frame.get("status") == "connected":
            self._failures = 0
            self.mark_up()
            return
        if self.is_running:
            log.warning("whatsapp: the bridge is not connected to WhatsApp; it tries again until it is")
        self.status.set_state(ChannelState.DOWN, "the bridge is not connected to WhatsApp")

    async def _take(self, frame: Payload) -> None:
        """Journal a message, then acknowledge it."""
        incoming = read_message(frame, self._me, self.config.lid_mappings)
        is_accepted = False
        if incoming is not None and self._is_for_bot(incoming, is_from_me=frame.get("fromMe") is True):
            put_bounded(self._authors, incoming.message_id or "", frame.text("sender"))
            is_accepted = await self.receive_until_journaled(incoming)
        if self._is_ours:
            await self._connection.tell({"type": "ack", "id": frame.get("id")})
            if is_accepted and self.config.send_read_receipts:
                chat = {"to": frame.get("chat"), "sender": frame.get("sender")}
                await self._connection.tell({"type": "read", "ids": [frame.get("id")], **chat})

    def _is_for_bot(self, incoming: Incoming, *, is_from_me: bool) -> bool:
        """False for notes to oneself, unless that is how the owner talks to the bot.

        Then the account is a person's own, and strangers who write to it mean that person: they get no pairing code.
        """
        configured = self.config.self_chat
        is_own = configured if configured is not None else any(map(self.is_allowed, self._me))
        if is_from_me or not is_own or not incoming.is_private:
            return is_own or not is_from_me
        return any(map(self.is_allowed, (incoming.sender_id, *incoming.alternate_ids)))

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        path = Path(attachment.source)
        folders = (self._state, get_data_dir() / "media")
        if not any(path.is_relative_to(folder) for folder in folders) or ".." in path.parts:
            raise MediaError("the bridge could not download it")
        return stream_outgoing(path)

    # sending

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        quoted = {"quoted": options.reply_to} if options.reply_to and self.config.reply_to_message else {}
        return await self._send(to, options, {"type": "send", "text": chunk.text, **quoted})

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message, unless it was edited often; then `finish` does."""
        if self._posted_at(platform_id)[1] < _MOST_EDITS:
            await self._edit(to, platform_id, chunk)

    async def finish(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Show the last text of a message that was edited often."""
        if self._posted_at(platform_id)[1] >= _MOST_EDITS:
            await self._edit(to, platform_id, chunk)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Send a file: a copy of it, as the bridge would follow a link that replaced the file."""
        data = await read_outgoing(file)
        folder = await asyncio.to_thread(make_private_folder, self._state / "outbox")
        copy = folder / f"{secrets.token_hex(8)}{file.suffix}"
        sound = file.kind in (MediaKind.VOICE, MediaKind.AUDIO) and file.suffix in (".ogg", ".opus")
        mimetype = "audio/ogg; codecs=opus" if sound else mimetypes.guess_type(file.name)[0]
        frame = {"filePath": str(copy), "mimetype": mimetype or "application/octet-stream", "fileName": file.name}
        try:
            await asyncio.to_thread(copy.write_bytes, data)
            return await self._send(to, options, {"type": "send_media", "ptt": sound, **frame})
        finally:
            await asyncio.to_thread(copy.unlink, missing_ok=True)

    async def show_typing(self, to: Address) -> None:
        if self._is_ours:
            await self._connection.tell({"type": "typing", "to": _chat_of(to), "on": True})

    async def react(self, to: Address, message_id: str, emoji: str) -> str:
        """Add a reaction; an empty one takes it back."""
        if self._is_ours:
            reaction = {"sender": self._authors.get(message_id, ""), "emoji": emoji}
            await self._connection.tell({"type": "react", "to": _chat_of(to), "id": message_id, **reaction})
        return emoji

    async def take_back(self, to: Address, message_id: str, reaction: str) -> None:
        await self.react(to, message_id, "")

    async def find(self, name: str) -> str | None:
        """The chat of a phone number, a LID or a group."""
        return address_of(name)

    async def chat_with(self, sender_id: str) -> str | None:
        return address_of(sender_id)

    async def _send(self, to: Address, options: SendOptions, frame: dict[str, Any]) -> str:
        chat = _chat_of(to)
        now = self.services.clock.monotonic()
        slot = max(now, self._next_slot.get(chat, 0.0))
        put_bounded(self._next_slot, chat, slot + self.pause_s)
        await asyncio.sleep(slot - now)
        nonce = options.nonce or secrets.token_hex(16)
        message_id = f"3EB0{hashlib.sha256(nonce.encode()).hexdigest()[:18].upper()}"  # as WhatsApp Web makes them
        put_bounded(self._posted, message_id, (self.services.clock.monotonic(), 0))
        await self._connection.request({**frame, "id": message_id, "to": chat})
        return message_id

    async def _edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        posted_at, edits = self._posted_at(platform_id)
        await self._connection.request({"type": "edit", "id": platform_id, "to": _chat_of(to), "text": chunk.text})
        self._posted[platform_id] = (posted_at, edits + 1)

    def _posted_at(self, platform_id: str) -> tuple[float, int]:
        """When a message was posted, and how often it was edited. Raises UndeliverableError if it is too old."""
        posted_at, edits = self._posted.get(platform_id, (float("-inf"), 0))
        if self.services.clock.monotonic() - posted_at > _EDITABLE_S:
            raise UndeliverableError("WhatsApp takes no edits of this message any more")
        return posted_at, edits

    @property
    def _is_managed(self) -> bool:
        return self.config.bridge_managed and is_loopback(urlsplit(self.config.bridge_url).hostname or "")

    @property
    def _state(self) -> Path:
        return self.services.state or get_data_dir() / "state" / "channels" / self.name

    @property
    def _auth(self) -> Path:
        """The folder with the keys of the linked device, also where earlier releases had it."""
        former = get_data_dir() / "whatsapp-auth"
        if self.config.auth_dir:
            return expand(self.config.auth_dir)
        return former if former.is_dir() else self._state / "auth"


def _chat_of(to: Address) -> str:
    return address_of(to.chat_id) or to.chat_id


def _end_of(frame: Payload) -> ChannelSetupError:
    code = frame.get("code")
    return ChannelSetupError(_ENDS.get(code if isinstance(code, int) else 0, f"WhatsApp ended the session ({code})."))


# WhatsApp addresses a person by the phone number (`4915112345678@s.whatsapp.net`), by a LID that hides the number
# (`272700845121588@lid`), or by both; a group by `...@g.us`.


def address_of(person: str) -> str | None:
    """The address of a person, a LID or a group, however it is written; None if it is none."""
    sender = Sender.of(person.strip())
    kind, _, digits = sender.key.partition(":")
    if kind == "number":
        return f"{digits}@s.whatsapp.net"
    return sender.id if sender.id.endswith((_LID, _GROUP)) else None


def read_message(data: Mapping[str, object], me: AbstractSet[str], numbers: Mapping[str, str]) -> Incoming | None:
    """Read a message. None for one that does not say who wrote it where.

    `me` are the ids of the linked account, `numbers` phone numbers by LID.
    """
    message = Payload.of(data)
    author, message_id = message.text("sender"), message.text("id")
    chat = message.text("chat") or author
    lid = message.text("lid") or (author if author.endswith(_LID) else "")
    number = message.text("pn") or numbers.get(lid.removesuffix(_LID), "") or (author if author != lid else "")
    number = address_of(number) or ""
    ids = [Sender.of(one).id for one in (number, lid) if one]
    if not (chat and ids and message_id):
        return None
    is_group = message.get("isGroup") is True
    quote, quotes_others, quoted = "", message.get("forwarded") is True, message.part("quoted")
    if said := quoted.text("text").strip():
        quoted_author = Sender.of(quoted.text("sender")).id
        quote = quoted_lines(said, "you" if quoted_author in me else "a message")
        quotes_others = quotes_others or quoted_author not in {*ids, *me}
    text = message.text("content")
    for own in me:
        digits = re.escape(own.strip("+").removesuffix(_LID))
        text = re.sub(rf"^\s*@{digits}\b\s*|\s*@{digits}\s*$", "", text)
    return Incoming(
        ids[0],
        chat if is_group else number or chat,
        f"{quote}\n{text}".strip(),
        message_id,
        is_private=not is_group,
        is_mentioned=not is_group or message.get("wasMentioned") is True,
        alternate_ids=tuple(ids[1:]),
        sender_name=message.text("pushName"),
        attachments=_read_files(message.get("media")),
        quotes_others=quotes_others,
        sent_at=message.time("timestamp", ticks_per_s=1),
    )


def _read_files(media: object) -> tuple[Attachment, ...]:
    files = []
    for entry in media if isinstance(media, list) else []:
        # bridges of earlier releases send paths
        file = Payload.of(entry if isinstance(entry, Mapping) else {"path": entry})
        kind_name, content_type = file.text("kind"), file.text("mimetype")
        kind = _KINDS.get(kind_name) or (MediaKind.FILE if kind_name else MediaKind.of_type(content_type))
        kind = MediaKind.VOICE if file.get("ptt") is True else kind
        name = file.text("name") or None
        files.append(Attachment(kind, name=name, content_type=content_type or None, source=file.text("path")))
    return tuple(files)
