"""Creates the enabled channels from the config. One that cannot be created is logged and reported as failed."""

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from nanobot.bus.events import FEED_CHANNELS, Address, Button, OutboundKind, OutboundMessage
from nanobot.channels.access import AccessControl, AccessPolicy
from nanobot.channels.base import BaseChannel, ChannelServices
from nanobot.channels.manager import ChannelManager, DeadLetter
from nanobot.channels.media import MediaStore
from nanobot.channels.registry import create_channel
from nanobot.channels.status import ChannelStatus
from nanobot.channels.supervisor import describe_error
from nanobot.channels.webhooks import Webhooks
from nanobot.config.paths import DataPaths
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.pairing.store import Pending
from nanobot.runtime.build import Runtime

log = logging.getLogger(__name__)

_INTERNAL = {"cli", *FEED_CHANNELS}
"""Channels without a platform. They are always there, and no config names them."""


def _is_plugin_error(cause: BaseException | None) -> bool:
    """Whether a plugin's own code raised, so that its author needs the traceback."""
    return cause is not None and not isinstance(cause, NanobotError | ImportError | SystemExit)


class TranscriptionService:
    """Transcribes recordings with the provider that the config names for a channel at that time."""

    def __init__(self, config: Config, channel: str) -> None:
        self._config = config
        self._channel = channel

    async def transcribe(self, path: Path) -> str:
        """Return the text of a recording. Raises NanobotError, which names a missing setting."""
        from nanobot.providers.transcription import choose_transcriber  # only a recording needs it

        own = self._config.channels.section(self._channel)
        chosen = choose_transcriber(
            self._config, os.environ, provider=own.transcription_provider, language=own.transcription_language
        )
        if chosen.transcriber is None:
            raise NanobotError(chosen.reason)
        return await chosen.transcriber.transcribe(path)


class GatewayChannels:
    """The channels, their access control and transcription, and the errors of those that cannot start."""

    def __init__(self, runtime: Runtime, dead_letter: DeadLetter, on_code: Callable[[Pending], None]) -> None:
        """`dead_letter` gets undeliverable messages; `on_code` each new pairing code, and must not block or raise."""
        self.runtime = runtime
        self.config = runtime.config
        self.webhooks = Webhooks()
        """For channels that receive over HTTP; the gateway serves them."""
        self.broken: dict[str, str] = {}
        """Enabled channels that cannot be created, with what their owner has to do."""
        self._places = DataPaths(runtime.data_dir)
        self._on_code = on_code
        self._retries: dict[str, int] = {}
        self.manager = ChannelManager([], runtime.bus, retries=self._retries, dead_letter=dead_letter)

    @property
    def enabled(self) -> list[str]:
        """The channels that the config enables."""
        return self.config.channels.enabled

    @property
    def names(self) -> list[str]:
        """The channels of platforms that were created."""
        return [name for name in self.manager.names if name not in _INTERNAL]

    def statuses(self) -> dict[str, ChannelStatus]:
        """The status of each platform's channel, by name."""
        return {name: status for name, status in self.manager.statuses().items() if name not in _INTERNAL}

    async def open_internal(self, channel: BaseChannel) -> None:
        """Add a channel without a platform."""
        await self.manager.change(channel.name, self._attach(channel, AccessPolicy(channel.name)))

    async def open_all(self) -> None:
        """Create every enabled channel."""
        for name in self.enabled:
            await self.open(name)

    async def open(self, name: str) -> bool:
        """Create or recreate a channel. Return False after an error, which is logged and kept in `broken`."""
        self.broken.pop(name, None)
        try:
            channel = await create_channel(name, self.config, self.runtime.bus)
            self._attach(channel, AccessPolicy.of(name, self.config.channels.own_section(name)))
        except Exception as error:  # a plugin's `attach` may raise anything
            ours = isinstance(error, NanobotError) and str(error)
            self.broken[name] = str(error) if ours else describe_error(error)
            log.error("%s: %s", name, self.broken[name], exc_info=not ours or _is_plugin_error(error.__cause__))  # noqa: TRY400 ours says it in a line
            return False
        self.renew_retries()
        await self.manager.change(name, channel)
        return True

    async def close(self, name: str) -> None:
        """Stop and remove a channel."""
        self.broken.pop(name, None)
        await self.manager.change(name, None)

    def is_running(self, name: str) -> bool:
        """Whether this channel is connected."""
        channel = self.manager.get(name)
        return channel is not None and channel.is_running

    def renew_access(self, name: str) -> None:
        """Apply changed access settings. Raises ConfigError if they are invalid; the old ones stay then."""
        if (channel := self.manager.get(name)) is not None:
            channel.config = self.config.channels.own_section(name)
            channel.services.access.policy = AccessPolicy.of(name, channel.config)

    def renew_retries(self) -> None:
        """Apply changed retry settings."""
        common = self.config.channels.send_max_retries
        for name in self.enabled:
            own = self.config.channels.section(name).send_max_retries
            self._retries[name] = common if own is None else own

    def _attach(self, channel: BaseChannel, policy: AccessPolicy) -> BaseChannel:
        name, runtime = channel.name, self.runtime
        channel.attach(
            ChannelServices(
                AccessControl(policy, runtime.pairing, runtime.clock, self._on_code),
                MediaStore(self._places.media / name, clock=runtime.clock),
                runtime.clock,
                TranscriptionService(self.config, name),
                self._places.state / "channels" / name,
                self.config.agents.defaults.unified_session,
                runtime.loop.commands.menu(),
                runtime.loop.bypasses_lane,
                self.webhooks,
            )
        )
        return channel

    async def tell_owner(self, text: str, channels: Sequence[str] = (), buttons: tuple[Button, ...] = ()) -> bool:
        """Queue a notice to an owner of these channels, by default of all. False if there is no chat for it.

        Raises StorageError.
        """
        if chat := await self.owners_chat(channels or self.names):
            notice = OutboundMessage(chat.channel, chat.chat_id, text, kind=OutboundKind.NOTICE, buttons=buttons)
            await self.runtime.bus.publish_outbound(notice)
        return chat is not None

    async def owners_chat(self, channels: Sequence[str]) -> Address | None:
        """The last chat of these channels that only an owner reads, else the private one that a platform opens for an
        owner. Raises StorageError.
        """
        owners = {name: ids for name, ids in self.runtime.pairing.load().owners.items() if name in channels and ids}
        if chat := await self.last_private_chat(owners):
            return chat
        for name in channels:
            for owner in owners.get(name, ()):
                if (chat_id := await self.manager.chat_with(name, owner)) is not None:
                    return Address(name, chat_id)
        return None

    async def last_private_chat(self, channels: Collection[str]) -> Address | None:
        """The chat of these channels that was used last and that only an owner reads."""

        def is_private_chat(key: str) -> bool:
            name, _, chat_id = key.partition(":")
            is_chat = name in channels and ":" not in chat_id
            return is_chat and self.runtime.privacy.is_private(Address(name, chat_id))

        key = await asyncio.to_thread(self.runtime.sessions.latest, is_private_chat)
        name, _, chat_id = (key or "").partition(":")
        return Address(name, chat_id) if key else None
