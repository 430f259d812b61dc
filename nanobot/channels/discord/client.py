"""The connection to Discord: discord.py's client, with our event handlers and without its retries.

The SDK sends heartbeats and resumes sessions (https://discord.com/developers/docs/events/gateway). Any other failure
ends the connection, so that retries have one place: the supervisor for connections, the manager for messages.
"""

import asyncio
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import discord
import yarl
from discord.gateway import DiscordWebSocket, KeepAliveHandler

from nanobot.channels.discord.outbound import as_send_errors, raise_failures
from nanobot.channels.errors import ChannelSetupError, NotConnectedError

GUILDS_S = 0.5
"""After this long without a further server announced, all are assumed to be known."""
_GOODBYE_S = 1.0
_PORTAL = "https://discord.com/developers/applications"
_SWITCHES = {
    "message_content": ("MESSAGE CONTENT INTENT", ("gateway_message_content", "gateway_message_content_limited")),
    "members": ("SERVER MEMBERS INTENT", ("gateway_guild_members", "gateway_guild_members_limited")),
    "presences": ("PRESENCE INTENT", ("gateway_presence", "gateway_presence_limited")),
}
"""Intents that must be enabled in the portal: name of the switch, and flags of an application that has it on."""
BAD_TOKEN = (
    f"Discord does not know this token. Create a new one at {_PORTAL} (Bot, Reset Token), put it into "
    "channels.discord.token, then start the gateway again."
)
_CLOSED_FOR_GOOD = {
    4004: BAD_TOKEN,
    4011: "The bot is in more than 2,500 servers, which one connection cannot serve. Take it out of some.",
    4012: "Discord no longer supports the gateway version of this discord.py. Run `pip install -U discord.py`.",
    4013: "channels.discord.intents is a number that Discord does not know. Remove it, or set 37377.",
}
"""Close codes after which a retry is useless."""


class DiscordClient(discord.Client):
    """One connection. `handlers`, by the SDK's event names, are called synchronously, in the order of events."""

    def __init__(
        self,
        intents: int,
        handlers: Mapping[str, Callable[..., None]],
        *,
        proxy: str | None = None,
        guilds_s: float = GUILDS_S,
    ) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # voice is not used
        wanted = discord.Intents.none()
        wanted.value = intents
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(raise_failures)
        trace.on_request_end.append(self._track_socket)
        super().__init__(
            intents=wanted,
            proxy=proxy,
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=guilds_s,
            allowed_mentions=discord.AllowedMentions.none(),
            enable_debug_events=True,  # for "socket_raw_receive", the only event of a heartbeat's answer
            http_trace=trace,
        )
        self._event_handlers = handlers
        self._sockets: list[aiohttp.ClientResponse] = []

    @property
    def me(self) -> discord.ClientUser:
        """The bot itself. Raises NotConnectedError before it is known."""
        if self.user is None:
            raise NotConnectedError("Discord has not sent the bot's identity")
        return self.user

    def dispatch(self, event: str, /, *args: Any, **_: Any) -> None:
        """Call the handler of an event, unless the connection is closed."""
        handler = self._event_handlers.get(event)
        if handler is not None and not self.is_closed():
            handler(*args)

    async def before_identify_hook(self, *_: object, initial: bool = False) -> None:
        """End the connection if Discord has dropped the session: the SDK would start a new one unnoticed."""
        if not initial:
            raise ConnectionResetError("Discord ended the session")

    async def serve(self, token: str) -> None:
        """Serve until the connection ends. Raises ChannelSetupError if the owner has to act. Safe to cancel."""
        try:
            await self.start(token, reconnect=False)
        except discord.LoginFailure as error:
            raise ChannelSetupError(BAD_TOKEN) from error
        except discord.ConnectionClosed as error:
            if error.code == 4014:
                raise ChannelSetupError(self._intents_text()) from error
            if error.code in _CLOSED_FOR_GOOD:
                raise ChannelSetupError(_CLOSED_FOR_GOOD[error.code]) from error
            raise
        finally:
            await self._disconnect()

    async def fetch_application(self, token: str) -> discord.AppInfo:
        """Fetch the application of the token. Raises ChannelSetupError if the owner has to act, else SendError."""
        try:
            with as_send_errors():
                await self.login(token)
                application = self.application or await self.application_info()
        except discord.LoginFailure as error:
            raise ChannelSetupError(BAD_TOKEN) from error
        finally:
            await self._disconnect()
        if self._disabled_switches():
            raise ChannelSetupError(self._intents_text())
        return application

    async def _track_socket(
        self, _: aiohttp.ClientSession, __: SimpleNamespace, request: aiohttp.TraceRequestEndParams
    ) -> None:
        """Track gateway sockets: the SDK loses one that ends before its hello."""
        if request.response.status == 101:
            self._sockets = [request.response, *(socket for socket in self._sockets if not socket.closed)]

    async def _disconnect(self) -> None:
        """Close the connection, without a close frame if that takes too long, and end the SDK's threads."""
        loop = asyncio.get_running_loop()
        keep_alives = [
            thread
            for thread in threading.enumerate()
            if isinstance(thread, KeepAliveHandler) and thread.ws.loop is loop
        ]
        for keep_alive in keep_alives:
            keep_alive.stop()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self.close()
        except (TimeoutError, OSError, aiohttp.ClientError):
            await self.http.close()
        for socket in self._sockets:
            socket.close()
        for keep_alive in keep_alives:
            await asyncio.to_thread(keep_alive.join, _GOODBYE_S)

    def _disabled_switches(self) -> list[str]:
        """The switches in the portal that our intents need and that are off."""
        flags = self.application.flags if self.application is not None else discord.ApplicationFlags()
        wanted = [row for name, row in _SWITCHES.items() if getattr(self.intents, name)]
        return [switch for switch, names in wanted if not any(getattr(flags, name) for name in names)]

    def _intents_text(self) -> str:
        wanted = [switch for name, (switch, _) in _SWITCHES.items() if getattr(self.intents, name)]
        switches = " and ".join(self._disabled_switches() or wanted or ["the privileged intents"])
        return (
            f"Discord does not let the bot read this much: switch on {switches} at {_PORTAL} (your application, Bot, "
            "Privileged Gateway Intents), or take it out of channels.discord.intents."
        )


@contextmanager
def gateway_at(url: str, default: str) -> Iterator[None]:
    """Use this gateway URL unless it is the default. The SDK has only a global setting for it."""
    if url == default:
        yield
        return
    before = DiscordWebSocket.DEFAULT_GATEWAY
    DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(url)
    try:
        yield
    finally:
        DiscordWebSocket.DEFAULT_GATEWAY = before
