"""The connection to Discord: discord.py's client, with ears of ours and no retries of its own.

The SDK keeps the heartbeat and resumes what was cut (https://discord.com/developers/docs/events/gateway). Whatever it
cannot mend ends the connection, so that one place decides when to try again: for connections the supervisor, for
messages the manager.
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

from nanobot.channels.discord.outbound import as_send_errors, give_back
from nanobot.channels.errors import ChannelSetupError, NotConnectedError

GUILDS_S = 0.5
"""How long no further server may be announced until all of them are believed to be."""
_GOODBYE_S = 1.0
_PORTAL = "https://discord.com/developers/applications"
_SWITCHES = {
    "message_content": ("MESSAGE CONTENT INTENT", ("gateway_message_content", "gateway_message_content_limited")),
    "members": ("SERVER MEMBERS INTENT", ("gateway_guild_members", "gateway_guild_members_limited")),
    "presences": ("PRESENCE INTENT", ("gateway_presence", "gateway_presence_limited")),
}
"""Intents that have to be switched on in the portal: the switch, and the flags of an application that has it on."""
BAD_TOKEN = (
    f"Discord does not know this token. Make a new one at {_PORTAL} (Bot, Reset Token), put it into "
    "channels.discord.token, then start the gateway again."
)
_CLOSED_FOR_GOOD = {
    4004: BAD_TOKEN,
    4011: "The bot is in more than 2,500 servers, which one connection cannot serve. Take it out of some.",
    4012: "Discord has given up the version of the gateway that discord.py speaks. Run `pip install -U discord.py`.",
    4013: "channels.discord.intents is a number that Discord does not know. Remove it, or set 37377.",
}
"""Close codes after which trying again is of no use."""


class DiscordClient(discord.Client):
    """One connection. `ears` are called at once, in the order of events, by the SDK's names of them."""

    def __init__(
        self,
        intents: int,
        ears: Mapping[str, Callable[..., None]],
        *,
        proxy: str | None = None,
        guilds_s: float = GUILDS_S,
    ) -> None:
        discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False  # nobody here speaks
        wanted = discord.Intents.none()
        wanted.value = intents
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(give_back)
        trace.on_request_end.append(self._opened)
        super().__init__(
            intents=wanted,
            proxy=proxy,
            max_messages=None,
            member_cache_flags=discord.MemberCacheFlags.none(),
            chunk_guilds_at_startup=False,
            guild_ready_timeout=guilds_s,
            allowed_mentions=discord.AllowedMentions.none(),
            enable_debug_events=True,  # for "socket_raw_receive", which is the only sign of a heartbeat's answer
            http_trace=trace,
        )
        self._ears = ears
        self._sockets: list[aiohttp.ClientResponse] = []

    @property
    def me(self) -> discord.ClientUser:
        """The bot itself. Raises NotConnectedError before it is known."""
        if self.user is None:
            raise NotConnectedError("Discord has not sent the bot's identity")
        return self.user

    def dispatch(self, event: str, /, *args: Any, **_: Any) -> None:
        """Something has happened. Nothing is heard of a connection that is over."""
        ear = self._ears.get(event)
        if ear is not None and not self.is_closed():
            ear(*args)

    async def before_identify_hook(self, *_: object, initial: bool = False) -> None:
        """A session that Discord has forgotten is not begun anew in here, where nobody sees it fail."""
        if not initial:
            raise ConnectionResetError("Discord ended the session")

    async def serve(self, token: str) -> None:
        """Be connected until that ends. Raises ChannelSetupError where only the owner can help. Safe to cancel."""
        try:
            await self.start(token, reconnect=False)
        except discord.LoginFailure as error:
            raise ChannelSetupError(BAD_TOKEN) from error
        except discord.ConnectionClosed as error:
            if error.code == 4014:
                raise ChannelSetupError(self._which_switch()) from error
            if error.code in _CLOSED_FOR_GOOD:
                raise ChannelSetupError(_CLOSED_FOR_GOOD[error.code]) from error
            raise
        finally:
            await self._leave()

    async def look_in(self, token: str) -> discord.AppInfo:
        """Ask whose token it is, and go. Raises ChannelSetupError where only the owner can help, SendError else."""
        try:
            with as_send_errors():
                await self.login(token)
                found = self.application or await self.application_info()
        except discord.LoginFailure as error:
            raise ChannelSetupError(BAD_TOKEN) from error
        finally:
            await self._leave()
        if self._switched_off():
            raise ChannelSetupError(self._which_switch())
        return found

    async def _opened(
        self, _: aiohttp.ClientSession, __: SimpleNamespace, asked: aiohttp.TraceRequestEndParams
    ) -> None:
        """The SDK forgets a connection to the gateway that ends before it is greeted."""
        if asked.response.status == 101:
            self._sockets = [asked.response, *(one for one in self._sockets if not one.closed)]

    async def _leave(self) -> None:
        """Say goodbye; where nobody listens any more, hang up without. Then no thread of the SDK uses the loop."""
        loop = asyncio.get_running_loop()
        hearts = [one for one in threading.enumerate() if isinstance(one, KeepAliveHandler) and one.ws.loop is loop]
        for heart in hearts:
            heart.stop()
        try:
            async with asyncio.timeout(_GOODBYE_S):
                await self.close()
        except (TimeoutError, OSError, aiohttp.ClientError):
            await self.http.close()
        for socket in self._sockets:
            socket.close()
        for heart in hearts:
            await asyncio.to_thread(heart.join, _GOODBYE_S)

    def _switched_off(self) -> list[str]:
        """The switches in the portal that have to be on for what is wanted, and are not."""
        flags = self.application.flags if self.application is not None else discord.ApplicationFlags()
        wanted = [row for name, row in _SWITCHES.items() if getattr(self.intents, name)]
        return [switch for switch, names in wanted if not any(getattr(flags, name) for name in names)]

    def _which_switch(self) -> str:
        wanted = [switch for name, (switch, _) in _SWITCHES.items() if getattr(self.intents, name)]
        named = " and ".join(self._switched_off() or wanted or ["the privileged intents"])
        return (
            f"Discord does not let the bot read this much: switch on {named} at {_PORTAL} (your application, Bot, "
            "Privileged Gateway Intents), or take it out of channels.discord.intents."
        )


@contextmanager
def gateway_at(url: str, usual: str) -> Iterator[None]:
    """Let connections begin at this address, unless it is the usual one. (The SDK has one place for it.)"""
    if url == usual:
        yield
        return
    before = DiscordWebSocket.DEFAULT_GATEWAY
    DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(url)
    try:
        yield
    finally:
        DiscordWebSocket.DEFAULT_GATEWAY = before
