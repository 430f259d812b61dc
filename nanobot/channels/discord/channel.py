"""The Discord channel: connects, and sends messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import discord

from nanobot.bus.events import Address
from nanobot.bus.queue import MessageBus
from nanobot.channels.chat_channel import ChatChannel, SendOptions
from nanobot.channels.discord.client import GUILDS_S, DiscordClient, gateway_at
from nanobot.channels.discord.event_handler import DiscordEventHandler
from nanobot.channels.discord.history import open_history
from nanobot.channels.discord.inbound import download
from nanobot.channels.discord.outbound import as_send_errors, nonce_of, reference_to, view_of
from nanobot.channels.errors import ChannelSetupError, MissingSettingsError, NotConnectedError, UndeliverableError
from nanobot.channels.media import Attachment
from nanobot.channels.outgoing import Outgoing, open_outgoing
from nanobot.config.channels import DiscordConfig
from nanobot.markdown import Chunk
from nanobot.markdown.dialects import DISCORD
from nanobot.net.http import HttpPools, proxy_for

_USUAL_GATEWAY = DiscordConfig().gateway_url
_PERMISSIONS = 274878024768
"""The permissions that the invitation asks for; docs/guides/discord.md lists them."""


class DiscordChannel(ChatChannel):
    """A Discord bot."""

    name = "discord"
    dialect = DISCORD
    largest_file = 10 * 1024 * 1024
    can_edit = True
    can_react = True
    dedupe_s = 120.0
    """Discord drops a second message with a nonce seen "in the past few minutes", which are at least two.
    https://discord.com/developers/docs/resources/message#create-message (enforce_nonce)
    """
    stall_s = 50.0  # heartbeats are answered every 41 s; a dead connection is noticed within a minute
    guilds_s: float = GUILDS_S

    def __init__(self, config: Any, bus: MessageBus) -> None:
        super().__init__(config, bus)
        self._settings = config if isinstance(config, DiscordConfig) else DiscordConfig.model_validate(config)
        self._client: DiscordClient | None = None
        self._pools: HttpPools | None = None
        self._salt = ""

    async def start(self) -> None:
        """Connect, and receive messages until the connection ends."""
        settings = self._settings
        token, proxy = _credentials(settings)
        pools = self._pools = HttpPools(proxy=proxy)
        try:
            async with open_history(self.services.state, self.services.clock.now()) as history:
                handler = DiscordEventHandler(self, history)
                self._salt = history.salt
                handlers = handler.event_handlers()
                self._client = DiscordClient(settings.intents, handlers, proxy=proxy, guilds_s=self.guilds_s)
                with gateway_at(settings.gateway_url, _USUAL_GATEWAY):
                    await handler.serve(self._client, token)
        finally:
            self._client = self._pools = None
            await pools.close()

    async def login(self, force: bool = False) -> bool:
        """Print which bot the token belongs to. Raises ChannelSetupError; SendError if Discord is unreachable."""
        token, proxy = _credentials(self._settings)
        bot = await DiscordClient(self._settings.intents, {}, proxy=proxy).fetch_application(token)
        invite = f"to add it to one of your servers, open\n{_invitation(bot.id)}"
        print(f"The token works. Your bot is {bot.name}; {invite}")  # noqa: T201 a person waits
        return True

    async def post(self, to: Address, chunk: Chunk, options: SendOptions) -> str:
        """Post a chunk. Discord drops a second one with the same nonce for a while: see `dedupe_s`.

        Without link previews: fetching a URL could leak data that a prompt injection put into it.
        """
        return await self._send(to, options, content=chunk.text, suppress_embeds=True)

    async def edit(self, to: Address, platform_id: str, chunk: Chunk) -> None:
        """Replace the text of a message. It stays without previews."""
        with as_send_errors():
            await self._chat(to).get_partial_message(int(platform_id)).edit(content=chunk.text)

    async def post_file(self, to: Address, file: Outgoing, options: SendOptions) -> str:
        """Post a file. For a URL Discord shows the picture itself."""
        if file.path is None:
            return await self._send(to, options, content=file.url or file.name)
        try:
            attached = await asyncio.to_thread(_open_attachment, file.path, file.name)
        except OSError as error:
            raise UndeliverableError(f"{file.path} can no longer be read ({error.strerror})") from error
        try:
            return await self._send(to, options, file=attached)
        finally:
            attached.close()
            attached.fp.close()  # the SDK leaves this to the caller

    async def show_typing(self, to: Address) -> None:
        """Show the typing indicator, which expires after ten seconds."""
        with as_send_errors():
            await self._chat(to).typing()

    async def react(self, to: Address, message_id: str, emoji: str) -> None:
        """Add a reaction to a message. Ignored for slash commands and button presses, which are no messages."""
        with as_send_errors(), suppress(discord.NotFound):
            await self._chat(to).get_partial_message(int(message_id)).add_reaction(emoji)

    def download(self, attachment: Attachment) -> AsyncIterator[bytes]:
        """Download a file."""
        if self._pools is None:
            raise NotConnectedError("Discord is not connected")
        return download(attachment.source, self._pools)

    def largest_to(self, to: Address) -> int:
        """The server's upload limit: higher on boosted servers."""
        chat = self._client.get_channel(int(to.chat_id)) if self._client is not None and to.chat_id.isdigit() else None
        guild = getattr(chat, "guild", None)
        return guild.filesize_limit if isinstance(guild, discord.Guild) else self.largest_file

    async def find(self, name: str) -> str | None:
        """Find a server channel by `#general`, or `home #general` if several servers have one of that name."""
        server, _, channel = name.strip().removeprefix("<").removesuffix(">").rpartition("#")
        if channel.isdigit():
            return channel
        known = self._client.get_all_channels() if self._client is not None else ()
        wanted = (channel.strip().casefold(), server.strip().casefold())
        matches = [
            candidate
            for candidate in known
            if isinstance(candidate, discord.abc.Messageable)
            and candidate.name.casefold() == wanted[0]
            and wanted[1] in ("", candidate.guild.name.casefold())
        ]
        return str(matches[0].id) if len(matches) == 1 else None

    async def chat_with(self, sender_id: str) -> str | None:
        """Open the private chat, whose id differs from the person's.

        Discord returns an existing one (https://discord.com/developers/docs/resources/user#create-dm).
        """
        client = self._connected_client()
        if not sender_id.isdigit():
            return None
        with as_send_errors():
            return str((await client.create_dm(discord.Object(int(sender_id)))).id)

    async def _send(self, to: Address, options: SendOptions, **content: Any) -> str:
        chat = self._chat(to)
        if (view := view_of(options.buttons)) is not None:
            content["view"] = view
        if (reference := reference_to(options.reply_to, chat.id)) is not None:
            content["reference"] = reference
        if options.nonce is not None:
            content["nonce"] = nonce_of(self._salt, chat.id, options.nonce)
        with as_send_errors():
            sent = await chat.send(silent=options.quiet, **content)
        return str(sent.id)

    def _chat(self, to: Address) -> discord.PartialMessageable:
        client = self._connected_client()
        chat_id = to.thread_id or to.chat_id
        if not chat_id.isdigit():
            raise UndeliverableError(
                f"{chat_id!r} is no Discord channel id. Enable Developer Mode in Discord (Settings, Advanced). "
                "Then right-click the channel and copy its ID."
            )
        return client.get_partial_messageable(int(chat_id))

    def _connected_client(self) -> DiscordClient:
        if self._client is None or not self.is_running:
            raise NotConnectedError("Discord is not connected")
        return self._client


def _open_attachment(path: Path, name: str) -> discord.File:
    return discord.File(open_outgoing(path), name)


def _credentials(settings: DiscordConfig) -> tuple[str, str | None]:
    """The token and the proxy. Raises ChannelSetupError for values that cannot be used."""
    token = settings.token.strip().removeprefix("Bot ")
    if not token:
        raise MissingSettingsError("discord", "token")
    proxy = proxy_for("https://discord.com", settings.proxy)
    if proxy is not None and not proxy.startswith(("http://", "https://")):
        kind = proxy.partition("://")[0]  # what follows may hold a password
        raise ChannelSetupError(f"channels.discord.proxy must look like http://host:port, not {kind}://.")
    return token, proxy


def _invitation(application: int) -> str:
    return (
        f"https://discord.com/oauth2/authorize?client_id={application}&scope=bot+applications.commands"
        f"&permissions={_PERMISSIONS}"
    )
