"""The channels of a gateway, made as the config says. One that cannot be made is told of and stays in the list, red."""

import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.bus.events import MenuEntry
from nanobot.bus.queue import MessageBus
from nanobot.channels.access import Access, AccessPolicy
from nanobot.channels.base import BaseChannel, Services
from nanobot.channels.errors import ChannelSetupError
from nanobot.channels.evidence import Evidence
from nanobot.channels.manager import ChannelManager, DeadLetter
from nanobot.channels.media import MediaStore
from nanobot.channels.registry import load_channel
from nanobot.channels.supervisor import told_of
from nanobot.config.channels import ChannelsConfig
from nanobot.config.paths import Places
from nanobot.config.schema import Config
from nanobot.errors import NanobotError
from nanobot.pairing.store import PairingStore
from nanobot.utils.clock import Clock

if TYPE_CHECKING:
    from nanobot.providers.transcription import ChosenTranscriber

log = logging.getLogger(__name__)

TERMINAL = "cli"
"""The channel of chats at the terminal."""


def section_of(channels: ChannelsConfig, name: str) -> Any:
    """The section as its channel gets it: the schema's, or for a plugin what stands in the file."""
    if name in type(channels).model_fields:
        return getattr(channels, name)
    return (channels.model_extra or {}).get(name, {})


def _defect(name: str, error: Exception) -> str:
    return (
        f"channels.{name} cannot be made: {told_of(error)}. That is for its package to mend; until then set "
        f"channels.{name}.enabled to false."
    )


def _is_theirs(cause: BaseException | None) -> bool:
    """Whether a plugin's own code broke: its author wants to see where."""
    return cause is not None and not isinstance(cause, NanobotError | ImportError | SystemExit)


class Recordings:
    """Makes text of recordings, by whoever the config names for a channel. Nothing is loaded before the first one."""

    def __init__(self, config: Config, channel: str) -> None:
        self._config = config
        self._channel = channel
        self._chosen: ChosenTranscriber | None = None

    async def transcribe(self, path: Path) -> str:
        """What is said in it. Raises NanobotError, which says what is missing where nobody can hear it."""
        if self._chosen is None:
            from nanobot.providers.transcription import choose_transcriber  # brings httpx's pools

            own = self._config.channels.section(self._channel)
            self._chosen = choose_transcriber(
                self._config, os.environ, provider=own.transcription_provider, language=own.transcription_language
            )
        if self._chosen.transcriber is None:
            raise NanobotError(self._chosen.reason)
        return await self._chosen.transcriber.transcribe(path)

    async def close(self) -> None:
        """Let go of its connections."""
        chosen, self._chosen = self._chosen, None
        if chosen is not None and chosen.transcriber is not None:
            await chosen.transcriber.close()


@dataclass(slots=True)
class Roster:
    """The channels, the doors before them, and what is wrong with those that are missing."""

    config: Config
    """The one the runtime holds: changes to its channels are seen by both."""
    bus: MessageBus
    places: Places
    clock: Clock
    pairing: PairingStore
    dead_letter: DeadLetter | None = None
    commands: tuple[MenuEntry, ...] = ()
    """What the menus of platforms offer."""
    broken: dict[str, str] = field(default_factory=dict)
    """Channels that are switched on and cannot be made, with what their owner is to do."""
    manager: ChannelManager = field(init=False)
    _tries: dict[str, int] = field(default_factory=dict)
    _doors: dict[str, Access] = field(default_factory=dict)
    _recordings: dict[str, Recordings] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.manager = ChannelManager([], self.bus, tries=self._tries, dead_letter=self.dead_letter)

    def streams(self, name: str) -> bool:
        """Whether that channel shows an answer as it grows."""
        return self.manager.streams(name)

    @property
    def enabled(self) -> list[str]:
        """The channels that are switched on."""
        return self.config.channels.enabled

    @property
    def names(self) -> list[str]:
        """The channels that were made; not the terminal's, which is always there."""
        return [name for name in self.manager.names if name != TERMINAL]

    def evidence(self) -> dict[str, Evidence]:
        """The signs of life of each of them."""
        return {name: evidence for name, evidence in self.manager.evidence().items() if name != TERMINAL}

    async def open_terminal(self, channel: BaseChannel) -> None:
        """Take in the way to chats at the terminal."""
        await self.manager.change(TERMINAL, self._attached(channel, AccessPolicy(TERMINAL)))

    async def open_all(self) -> None:
        """Make every channel that is switched on."""
        for name in self.enabled:
            await self.open(name)

    async def open(self, name: str) -> bool:
        """Make this channel, or make it anew; whether that went well. What is wrong is an error in the log."""
        await self._forget(name)
        try:
            channel = self._make(name)
        except Exception as error:  # the wall of a connection: a plugin's constructor may do anything
            ours = isinstance(error, NanobotError)
            self.broken[name] = str(error) if ours and str(error) else _defect(name, error)
            log.error("%s: %s", name, self.broken[name], exc_info=not ours or _is_theirs(error.__cause__))  # noqa: TRY400 ours says it in a line
            return False
        await self.manager.change(name, channel)
        return True

    async def close(self, name: str) -> None:
        """Take it away."""
        await self._forget(name)
        await self.manager.change(name, None)

    async def close_recordings(self) -> None:
        """Let go of the connections of all transcribers."""
        for recordings in self._recordings.values():
            await recordings.close()

    def admit_anew(self, name: str) -> None:
        """Let in whom the config names now. Raises ConfigError for what it cannot mean; then the old word stands."""
        if name in self._doors:
            self._doors[name].policy = AccessPolicy.of(name, section_of(self.config.channels, name))

    def count_tries(self) -> None:
        """How often each channel tries again, as the config says now."""
        for name in self.manager.names:
            self._tries[name] = self._tries_of(name)

    def _make(self, name: str) -> BaseChannel:
        found, section = load_channel(name, self.config.plugins.disabled), section_of(self.config.channels, name)
        if found.name != name:
            raise ChannelSetupError(
                f"channels.{name}: its class {found.__name__} calls itself {found.name!r}. Its package has to give it "
                f"the name {name!r}; until then set channels.{name}.enabled to false."
            )
        channel = self._attached(found(section, self.bus), AccessPolicy.of(name, section))
        self._tries[name] = self._tries_of(name)
        return channel

    def _tries_of(self, name: str) -> int:
        own = self.config.channels.section(name).send_max_retries
        return self.config.channels.send_max_retries if own is None else own

    def _attached(self, channel: BaseChannel, policy: AccessPolicy) -> BaseChannel:
        name = channel.name
        self._doors[name] = Access(policy, self.pairing, self.clock)
        self._recordings[name] = Recordings(self.config, name)
        channel.attach(
            Services(
                self._doors[name],
                MediaStore(self.places.media / name, clock=self.clock),
                self.clock,
                self._recordings[name],
                self.places.state / "channels" / name,
                self.config.agents.defaults.unified_session,
                self.commands,
            )
        )
        return channel

    async def _forget(self, name: str) -> None:
        self.broken.pop(name, None)
        self._doors.pop(name, None)
        if (recordings := self._recordings.pop(name, None)) is not None:
            await recordings.close()
