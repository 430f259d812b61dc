"""discord.py as we use it: its client with our settings, our errors for its failures, and its events as `Incoming`."""

import asyncio
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import yarl

from nanobot.bus.events import MenuEntry
from nanobot.channels.errors import (
    ChannelSetupError,
    NotConnectedError,
    RateLimitedError,
    SendError,
    UndeliverableError,
    require_settings,
)
from nanobot.channels.incoming import Incoming
from nanobot.channels.media import Attachment, MediaKind
from nanobot.config.channels import DiscordConfig
from nanobot.net.http import proxy_for
from nanobot.utils.storage_error import os_reason

logging.getLogger("discord.client").setLevel(logging.CRITICAL)  # a traceback for each failed attempt to reconnect

_GOODBYE_S = 1.0
"""How long Discord may take to confirm the end of a connection; the SDK would wait half a minute for a dead one."""
_LONGEST_PAUSE_S = 30.0
"""Longest rate limit that the SDK waits out; the sender waits for a longer one."""
_LONGEST_HINT = 100
_PORTAL = "https://discord.com/developers/applications"
_SWITCHES = {
    "message_content": ("MESSAGE CONTENT INTENT", ("gateway_message_content", "gateway_message_content_limited")),
    "members": ("SERVER MEMBERS INTENT", ("gateway_guild_members", "gateway_guild_members_limited")),
    "presences": ("PRESENCE INTENT", ("gateway_presence", "gateway_presence_limited")),
}
"""Intents that must be enabled in the portal: name of the switch, and flags of an application that has it on."""
_BAD_TOKEN = (
    f"Discord does not know this token. Create a new one at {_PORTAL} (Bot, Reset Token), put it into "
    "channels.discord.token, then start the gateway again."
)
_CLOSED_FOR_GOOD = {
    4004: _BAD_TOKEN,
    4011: "The bot is in more than 2,500 servers, which one connection cannot serve. Take it out of some.",
    4012: "Discord no longer supports the gateway version of this discord.py. Run `pip install -U discord.py`.",
    4013: "channels.discord.intents is a number that Discord does not know. Remove it, or set 37377.",
}
"""Close codes after which a retry is useless."""
_EMOJI = re.compile(r"<a?(:\w+:)\d+>")
_USER_TYPES = frozenset({discord.MessageType.default, discord.MessageType.reply})


class Client(discord.Client):
    """The SDK's client with our settings. Raises ChannelSetupError if the proxy cannot be used."""

    def __init__(self, section: DiscordConfig, *, guilds_s: float = 0.5) -> None:
        """`guilds_s`: after this long without a further server announced, all are assumed to be known."""
        proxy = proxy_for("https://discord.com", section.proxy)
        if proxy is not None and not proxy.startswith(("http://", "https://")):
            kind = proxy.partition("://")[0]  # what follows may hold a password
            raise ChannelSetupError(f"channels.discord.proxy must look like http://host:port, not {kind}://.")
        intents = discord.Intents.none()
        intents.value = section.intents
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._keep_socket)
        super().__init__(
            intents=intents,
            proxy=proxy,
            max_messages=None,
            max_ratelimit_timeout=_LONGEST_PAUSE_S,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=guilds_s,
            allowed_mentions=discord.AllowedMentions.none(),
            enable_debug_events=True,  # for on_socket_raw_receive, the only event of a heartbeat's answer
            http_trace=trace,
        )
        self._socket: aiohttp.ClientResponse | None = None
        if section.gateway_url != DiscordConfig().gateway_url:
            self._use_gateway(yarl.URL(section.gateway_url))

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Run the handlers of an event, unless the client is closed: then the SDK would fail to."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    async def close(self) -> None:
        """Close the connection, also one that is dead, or that the SDK has not finished opening."""
        closing = asyncio.create_task(super().close())
        await asyncio.wait([closing], timeout=_GOODBYE_S)
        if self._socket is not None:
            self._socket.close()
        await closing

    async def _keep_socket(
        self, _: aiohttp.ClientSession, __: SimpleNamespace, request: aiohttp.TraceRequestEndParams
    ) -> None:
        if request.response.status == HTTPStatus.SWITCHING_PROTOCOLS:
            self._socket = request.response

    def _use_gateway(self, gateway: yarl.URL) -> None:
        """Connect to a gateway of one's own, for which the SDK has no option."""
        connect = self.http.ws_connect

        async def connect_to_gateway(url: str, *, compress: int = 0) -> aiohttp.ClientWebSocketResponse:
            return await connect(str(gateway.with_query(yarl.URL(url).query)), compress=compress)

        self.http.ws_connect = connect_to_gateway  # type: ignore[method-assign]


async def log_in(client: Client, section: DiscordConfig) -> None:
    """Log in. Raises ChannelSetupError for a missing or wrong token; SendError."""
    (token,) = require_settings("discord", token=section.token)
    try:
        with as_send_errors():
            await client.login(token.removeprefix("Bot "))
    except discord.LoginFailure as error:
        raise ChannelSetupError(_BAD_TOKEN) from error


def connection_error(error: Exception, client: Client) -> Exception:
    """What ended a connection: a ChannelSetupError if the owner has to act."""
    if isinstance(error, discord.PrivilegedIntentsRequired):
        return intents_error(client, is_refused=True) or error
    if isinstance(error, discord.ConnectionClosed) and error.code in _CLOSED_FOR_GOOD:
        return ChannelSetupError(_CLOSED_FOR_GOOD[error.code])
    return error


def intents_error(client: Client, *, is_refused: bool = False) -> ChannelSetupError | None:
    """What the owner has to switch on in the portal; None if all is on, as far as the application's flags tell."""
    wanted = [row for name, row in _SWITCHES.items() if getattr(client.intents, name)]
    off = [switch for switch, names in wanted if not any(getattr(client.application_flags, name) for name in names)]
    if not (off or is_refused):
        return None
    switches = " and ".join(off or [switch for switch, _ in wanted] or ["the privileged intents"])
    return ChannelSetupError(
        f"Discord does not let the bot read this much: switch on {switches} at {_PORTAL} (your application, Bot, "
        "Privileged Gateway Intents), or take it out of channels.discord.intents."
    )


@contextmanager
def as_send_errors() -> Iterator[None]:
    """Convert the exceptions of a request to SendErrors.

    Codes: https://discord.com/developers/docs/topics/opcodes-and-status-codes
    """
    try:
        yield
    except discord.RateLimited as error:
        raise RateLimitedError("Discord: too many requests", error.retry_after) from error
    except discord.HTTPException as error:
        text = f"Discord: {error.text or error} ({error.status}, code {error.code})"
        if error.status == 429:
            raise RateLimitedError(text, _LONGEST_PAUSE_S) from error
        if error.status >= 500:
            raise SendError(text) from error
        if error.status == 401:  # the gateway connection ends, too, which tells the owner
            raise NotConnectedError(text) from error
        raise UndeliverableError(text) from error
    except aiohttp.ClientConnectorError as error:
        raise NotConnectedError(f"Discord cannot be reached: {os_reason(error.os_error)}") from error
    except (aiohttp.ClientError, OSError, RuntimeError) as error:  # RuntimeError: closed between two tries of the SDK
        text = f"connection to Discord lost: {type(error).__name__} {error}"
        raise SendError(text, may_have_arrived=True) from error


def menu_of(entries: Sequence[MenuEntry]) -> list[dict[str, Any]]:
    """The slash commands as Discord takes them (interactions/application-commands#application-command-object)."""
    return [
        {
            "name": entry.name,
            "description": entry.text[:_LONGEST_HINT],
            "contexts": [0, 1],  # servers and private chats
            "integration_types": [0],
            "options": [{"type": 3, "name": "words", "description": f"/{entry.name} {entry.words}"[:_LONGEST_HINT]}]
            if entry.words
            else [],
        }
        for entry in entries
    ]


def is_from_a_person(message: discord.Message) -> bool:
    """Whether a person wrote it. Bots are not answered: two of them would never stop."""
    return message.type in _USER_TYPES and not message.author.bot and message.webhook_id is None


def guild_id_of(message: discord.Message) -> int | None:
    """The server of a message, also if the SDK does not know it; None in a private chat."""
    return message.guild.id if message.guild is not None else getattr(message.channel, "guild_id", None)


def read_message(message: discord.Message, channel: object, me: discord.ClientUser) -> Incoming:
    """Read a message of this channel. May raise anything."""
    files = [*message.attachments, *(file for snapshot in message.message_snapshots for file in snapshot.attachments)]
    return replace(
        _incoming_from(message.author, message.channel.id, channel, guild_id_of(message)),
        text=_text_of(message, me),
        message_id=str(message.id),
        is_mentioned=_is_addressed_to(message, me),
        attachments=tuple(map(_describe_file, files)),
        quotes_others=bool(message.message_snapshots),
        sent_at=message.created_at,
    )


def read_interaction(interaction: discord.Interaction) -> Incoming | None:
    """Read a slash command as its text, and a button press as the button's value; None for any other interaction."""
    data: Mapping[str, Any] = interaction.data or {}
    text = ""
    if interaction.type is discord.InteractionType.component:
        text = str(data.get("custom_id") or "")
    elif interaction.type is discord.InteractionType.application_command and data.get("type", 1) == 1:
        words = [str(option["value"]) for option in data.get("options", ()) if "value" in option]
        text = " ".join([f"/{data.get('name')}", *words])
    if not text or interaction.channel_id is None:
        return None
    incoming = _incoming_from(interaction.user, interaction.channel_id, interaction.channel, interaction.guild_id)
    return replace(incoming, text=text, message_id=str(interaction.id), is_mentioned=True)


def _incoming_from(sender: discord.abc.User, channel_id: int, channel: object, guild_id: int | None) -> Incoming:
    """A message of this sender in this channel, still empty. A thread is one of its parent's, with its own session."""
    incoming = Incoming(
        str(sender.id),
        str(channel_id),
        is_private=guild_id is None,
        parent_ids=(str(guild_id),) if guild_id is not None else (),
        sender_name=sender.display_name,
        sender_handle=sender.name,
    )
    if isinstance(channel, discord.Thread):
        thread_id, parents = str(channel_id), (str(channel_id), str(channel.guild.id))
        return replace(
            incoming, chat_id=str(channel.parent_id), thread_id=thread_id, is_private=False, parent_ids=parents
        )
    return incoming


def _is_addressed_to(message: discord.Message, me: discord.ClientUser) -> bool:
    """Whether it mentions the bot or its role, or replies to the bot. @everyone does not count."""
    own_role = message.guild.self_role if message.guild is not None else None
    replied_to = message.reference.resolved if message.reference is not None else None
    return (
        any(user.id == me.id for user in message.mentions)
        or (own_role is not None and own_role in message.role_mentions)
        or (isinstance(replied_to, discord.Message) and replied_to.author.id == me.id)
    )


def _text_of(message: discord.Message, me: discord.ClientUser) -> str:
    """The text as people see it: names instead of ids, without a mention of the bot at its start."""
    own_role = message.guild.self_role if message.guild is not None else None
    own = rf"<@!?{me.id}>" if own_role is None else rf"<@!?{me.id}>|{own_role.mention}"
    message.content = re.sub(rf"\A(?:\s*(?:{own})[ ,:]*)+", "", message.content)
    parts = [message.clean_content.strip()]
    parts += [f"[forwarded]\n{snapshot.content}" for snapshot in message.message_snapshots if snapshot.content]
    parts += [f"[sticker: {sticker.name}]" for sticker in message.stickers]
    if message.poll is not None:
        answers = "; ".join(answer.text for answer in message.poll.answers)
        parts.append(f"[poll: {message.poll.question}: {answers}]")
    return _EMOJI.sub(r"\1", "\n".join(part for part in parts if part))


def _describe_file(file: discord.Attachment) -> Attachment:
    kind = MediaKind.VOICE if file.is_voice_message() else MediaKind.of_type(file.content_type)
    return Attachment(kind, str(file.id), file.filename, file.content_type, file.size, source=file.url)
