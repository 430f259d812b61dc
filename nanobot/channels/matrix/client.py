"""Logs in to a homeserver with matrix-nio, converts its errors, and reads its messages.

The SDK repeats no request by itself (`max_limit_exceeded`, `max_timeouts`): the supervisor and the manager do. It
returns errors of the homeserver, and raises those of the connection. Messages are read as the homeserver sends them,
all values checked (spec.matrix.org/v1.16/client-server-api, "Instant messaging" and its sections on replies, threads,
edits and mentions).
"""

import json
import logging
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from nio import (
    AsyncClient,
    AsyncClientConfig,
    DiscoveryInfoResponse,
    EncryptionError,
    ErrorResponse,
    LocalProtocolError,
)
from nio.crypto import ENCRYPTION_ENABLED

from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import Attachment, MediaKind
from nanobot.config.channels import MatrixConfig
from nanobot.net.http import proxy_for, ssl_context
from nanobot.utils.files import make_private_folder

logging.getLogger("nio.responses").setLevel(logging.CRITICAL)  # to it, each error of a homeserver is malformed

REQUEST_S = 30.0
_DEVICE = "nanobot"
_BAD_TOKEN = frozenset({"M_UNKNOWN_TOKEN", "M_MISSING_TOKEN", "M_USER_DEACTIVATED", "M_USER_LOCKED"})
_NO_SERVER = "{} is no Matrix homeserver. Set channels.matrix.homeserver to its base URL, such as https://matrix.org."
_FILES = {
    "m.image": MediaKind.IMAGE, "m.video": MediaKind.VIDEO, "m.audio": MediaKind.AUDIO, "m.file": MediaKind.FILE,
}  # fmt: skip
_VOICE = "org.matrix.msc3245.voice"
_FALLBACK = re.compile(r"> <@[^\n]*\n(?:>[^\n]*\n)*\n?")
"""Before a reply of an old client: the message that it answers."""


@dataclass(slots=True)
class MatrixState:
    bot: str = ""
    """User and homeserver."""
    device_id: str = ""
    """The device that a password has logged in; its keys read encrypted messages."""
    since: str = ""
    """Everything before this token is journaled. Empty before the first connection."""
    salt: str = field(default_factory=lambda: secrets.token_hex(8))
    """Makes the ids of our requests differ from those with another journal."""
    invites: dict[str, str] = field(default_factory=dict)
    """Who invited the bot, by room, where it waits until they are allowed."""
    unreadable: dict[str, None] = field(default_factory=dict)
    """Rooms that were told that the bot cannot decrypt a message."""


@asynccontextmanager
async def open_client(
    settings: MatrixConfig, state: MatrixState, folder: Path | None, password_token: list[str]
) -> AsyncIterator[AsyncClient]:
    """Log in, with the device of the state. Without a folder there is no encryption.

    `password_token`: the user id and the access token that the password gave, for as long as the process lives; set
    here. Raises ChannelSetupError for wrong credentials, SendError.
    """
    url, user = settings.homeserver.strip().rstrip("/"), settings.user_id.strip()
    if not url.startswith(("https://", "http://")):
        raise ChannelSetupError("channels.matrix.homeserver must begin with https://, such as https://matrix.org.")
    if not settings.access_token:
        require_settings("matrix", userId=user, password=settings.password)
    if folder is not None:
        make_private_folder(folder)
    store: dict[str, Any] = {}
    if ENCRYPTION_ENABLED:
        from nio.store import SqliteStore  # only there with the packages for encryption

        store = {"store": SqliteStore, "store_name": "keys.db"}  # one file, whose name is valid on every system
    client = AsyncClient(
        url,
        user,
        settings.device_id.strip() or state.device_id,
        store_path=str(folder or ""),
        config=AsyncClientConfig(
            max_limit_exceeded=0,
            max_timeouts=0,
            request_timeout=REQUEST_S,
            encryption_enabled=ENCRYPTION_ENABLED and settings.e2ee_enabled and folder is not None,
            **store,
        ),
        ssl=await ssl_context(url) if url.startswith("https:") else None,
        proxy=proxy_for(url, settings.proxy),
    )
    try:
        with as_send_errors():
            await _find_homeserver(client)
            if settings.access_token:
                await _use_token(client, settings)
            else:
                await _use_password(client, settings, password_token)
        state.device_id = client.device_id
        yield client
    finally:
        await client.close()
        if client.store is not None:
            client.store.database.close()


async def _find_homeserver(client: AsyncClient) -> None:
    """Follow the domain of user ids to its homeserver (client-server-api, "Server discovery")."""
    answer = await client.login_info()
    if _is_foreign(answer):
        found = await client.discovery_info()
        if isinstance(found, DiscoveryInfoResponse):
            client.homeserver = found.homeserver_url.rstrip("/")
            answer = await client.login_info()
    if _is_foreign(answer):
        raise ChannelSetupError(_NO_SERVER.format(client.homeserver))
    check(answer)


async def _use_token(client: AsyncClient, settings: MatrixConfig) -> None:
    client.access_token = settings.access_token.strip()
    answer = await client.whoami()
    if is_revoked(answer):
        raise revoked(settings)
    me = check(answer)
    device_id = me.device_id or client.device_id
    if not device_id:
        raise ChannelSetupError("channels.matrix.deviceId is not set, and the homeserver does not tell it.")
    client.restore_login(me.user_id, device_id, client.access_token)


async def _use_password(client: AsyncClient, settings: MatrixConfig, password_token: list[str]) -> None:
    if password_token:
        user_id, token = password_token
        client.restore_login(user_id, client.device_id, token)
        return
    answer = await client.login(settings.password, device_name=_DEVICE)
    if isinstance(answer, ErrorResponse) and answer.status_code == "M_FORBIDDEN":
        raise ChannelSetupError(
            f"The homeserver does not take channels.matrix.userId and channels.matrix.password ({answer.message}). "
            "Log in with them at a Matrix app; where the account has no password, set channels.matrix.accessToken."
        )
    me = check(answer)
    password_token[:] = [me.user_id, me.access_token]


def revoked(settings: MatrixConfig) -> ChannelSetupError:
    return ChannelSetupError(
        f"The homeserver does not take channels.matrix.accessToken of {settings.user_id or 'the account'}. Create "
        "another one, or set channels.matrix.password instead, then run `nanobot channels login matrix`."
    )


def is_revoked(answer: object) -> bool:
    return isinstance(answer, ErrorResponse) and answer.status_code in _BAD_TOKEN


def _is_foreign(answer: object) -> bool:
    """Whether something that is no homeserver answered."""
    return isinstance(answer, ErrorResponse) and not answer.status_code and answer.transport_response.status < 500


async def ask(request: Awaitable[Any]) -> Any:
    """Send a request of the SDK and return its answer. Raises SendError; safe to cancel."""
    with as_send_errors():
        return check(await request)


def check(answer: Any) -> Any:
    """Return an answer. Raises the SendError that an error of the homeserver stands for."""
    if not isinstance(answer, ErrorResponse):
        return answer
    response, code = answer.transport_response, answer.status_code or ""
    status = response.status if response is not None else 0
    said = " ".join((answer.message or "no reason given").split())[:300]
    text = f"Matrix: {said} ({code or status})"
    if status == 429 or code == "M_LIMIT_EXCEEDED":  # the pause is in the body; newer servers have it in a header
        header = Payload(response.headers if response is not None else {}).number("Retry-After")
        raise RateLimitedError(text, float(answer.retry_after_ms) / 1000 if answer.retry_after_ms else header or -1.0)
    if code in _BAD_TOKEN:  # the sync ends, too, which tells the owner
        raise NotConnectedError(text)
    if not code or not 400 <= status < 500:
        raise SendError(text)
    raise UndeliverableError(text)


@contextmanager
def as_send_errors() -> Iterator[None]:
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError(f"the Matrix homeserver cannot be reached: {error}") from error
    except (aiohttp.ClientError, OSError, RuntimeError, TimeoutError) as error:  # RuntimeError: closed meanwhile
        text = f"connection to the Matrix homeserver lost: {type(error).__name__} {error}"
        raise SendError(text, may_have_arrived=True) from error
    except (LocalProtocolError, EncryptionError) as error:  # a room, or keys of its members, are not known yet
        raise SendError(f"Matrix: {error}") from error


@dataclass(frozen=True, slots=True)
class Bot:
    id: str
    names: Sequence[str] = ()
    """What people call it: display name and the local part of the id."""
    is_everybody: bool = False
    """Whether `@room` addresses it."""


def read_message(event: Payload, bot: Bot) -> Incoming | None:
    """Read a message of a group. None for what is no new message of a person: edits, and notices of other bots."""
    content, sender, event_id = event.part("content"), event.text("sender"), event.text("event_id")
    kind = "m.image" if event.text("type") == "m.sticker" else content.text("msgtype")
    relation = content.part("m.relates_to")
    if event.text("type") not in ("m.room.message", "m.sticker") or not (sender and event_id and kind):
        return None
    if sender == bot.id or kind == "m.notice" or relation.text("rel_type") == "m.replace":
        return None
    file = _describe_file(content, kind) if kind in _FILES else None
    text = text_of(event)
    if file is not None and content.text("filename") in ("", text):
        text = ""  # the body is the file's name, not a caption
    return Incoming(
        sender,
        event.text("room_id"),
        re.sub(rf"^\s*@?(?:{_names(bot)})(?!\w)[:,]?\s*", "", text, count=1, flags=re.IGNORECASE),
        event_id,
        thread_id=relation.text("event_id") or None if relation.text("rel_type") == "m.thread" else None,
        is_private=False,
        is_mentioned=_is_addressed_to(content, text, bot),
        attachments=(file,) if file is not None else (),
        sent_at=event.time("origin_server_ts"),
    )


def quoted_id(event: Payload) -> str:
    """The id of the message that this one answers; empty if it answers none."""
    relation = event.part("content", "m.relates_to")
    if relation.text("rel_type") == "m.thread" and relation.get("is_falling_back") is True:
        return ""  # for clients without threads
    return relation.text("m.in_reply_to", "event_id")


def text_of(event: Payload) -> str:
    """The text of a message, without what it answers."""
    content = event.part("content")
    text = content.text("body")
    return _FALLBACK.sub("", text, count=1) if content.part("m.relates_to", "m.in_reply_to") else text


def _is_addressed_to(content: Payload, text: str, bot: Bot) -> bool:
    if "m.mentions" in content:
        users = content.part("m.mentions").get("user_ids")
        everybody = bot.is_everybody and content.part("m.mentions").get("room") is True
        return everybody or (isinstance(users, list) and bot.id in users)
    if f"matrix.to/#/{bot.id}" in content.text("formatted_body"):
        return True
    return re.search(rf"(?<!\w)@?(?:{_names(bot)})(?!\w)", text, re.IGNORECASE) is not None


def _names(bot: Bot) -> str:
    return "|".join(map(re.escape, (bot.id, *bot.names)))


def _describe_file(content: Payload, kind: str) -> Attachment | None:
    """A file; its source is its address, or JSON with address and key if it is encrypted."""
    encrypted = content.part("file")
    address = encrypted.text("url") or content.text("url")
    if not address.startswith("mxc://"):
        return None
    return Attachment(
        MediaKind.VOICE if _VOICE in content else _FILES[kind],
        name=content.text("filename") or content.text("body") or None,
        content_type=content.text("info", "mimetype") or None,
        size=int(content.number("info", "size")) or None,
        source=json.dumps(encrypted) if encrypted else address,
    )
