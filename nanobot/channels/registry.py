"""Which class serves which channel. Nothing of a platform is imported before its channel is enabled."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanobot.channels.errors import ChannelSetupError
from nanobot.errors import PluginError
from nanobot.plugins import CHANNELS as PLUGINS
from nanobot.plugins import entry_points, load, names, package_of
from nanobot.utils.extras import install_command
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from nanobot.channels.base import BaseChannel


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """A channel of ours, before anything of it is loaded."""

    name: str
    title: str
    """What people call the platform."""
    target: str
    extra: str | None = None
    """The extra of our package that brings its SDK; None where it is in the core."""
    owners_are_known: bool = True
    """Whether the platform vouches for who writes, so that an owner can be told from others."""
    groups: str = "(?!)"
    """What the ids of chats with several people look like, where an id of this platform tells."""

    def is_group(self, chat_id: str) -> bool:
        """Whether this id is one of a chat with several people. False where the platform's ids do not tell."""
        return re.fullmatch(self.groups, chat_id) is not None


CHANNELS: tuple[ChannelSpec, ...] = (
    ChannelSpec("telegram", "Telegram", "nanobot.channels.telegram:TelegramChannel", groups="-.*"),
    ChannelSpec("discord", "Discord", "nanobot.channels.discord.channel:DiscordChannel", "discord"),
    ChannelSpec("slack", "Slack", "nanobot.channels.slack:SlackChannel", "slack", groups="[CG].*"),
    ChannelSpec("email", "E-mail", "nanobot.channels.email:EmailChannel", "email", owners_are_known=False),
    ChannelSpec("websocket", "WebSocket", "nanobot.channels.websocket:WebSocketChannel", "websocket"),
)


def find(name: str) -> ChannelSpec | None:
    """The channel of ours with that name."""
    return next((spec for spec in CHANNELS if spec.name == name), None)


def plugin_names() -> Iterator[str]:
    """Channels that installed packages bring; one named like ours is left out, and never replaces it."""
    yield from sorted({point.name for point in entry_points(PLUGINS)} - {spec.name for spec in CHANNELS})


def load_channel(name: str, disabled: Iterable[str] = ()) -> "type[BaseChannel]":
    """The class that serves this channel. Raises ChannelSetupError, which says what to install.

    `disabled` are packages whose channels are not wanted.
    """
    spec = find(name)
    if spec is None:
        return _load_plugin(name, disabled)
    try:
        return _checked(name, load(spec.target))
    except PluginError as error:
        if spec.extra is not None and isinstance(error.__cause__, ModuleNotFoundError):
            raise ChannelSetupError(
                f"{spec.title} needs a package that is not installed ({error.__cause__.name}). Run "
                f"`{install_command(spec.extra)}`, then start the gateway again."
            ) from error
        raise ChannelSetupError(str(error)) from error


def _load_plugin(name: str, disabled: Iterable[str]) -> "type[BaseChannel]":
    for point in entry_points(PLUGINS):
        if point.name == name:
            if names(disabled, package_of(point)):
                raise ChannelSetupError(
                    f"channels.{name} is of the package {package_of(point)}, which plugins.disabled names. Take it out "
                    f"there, or set channels.{name}.enabled to false."
                )
            return _checked(name, _loaded(name, point))
    known = [spec.name for spec in CHANNELS]
    near = "".join(f"Did you mean {one}? " for one in nearest(name, known)[:1])
    raise ChannelSetupError(
        f"channels.{name}: nanobot has no such channel, and no installed package brings it. {near}"
        f"It has {', '.join(known)}. "
        f"Set channels.{name}.enabled to false, or install the package."
    )


def _loaded(name: str, point: "EntryPoint") -> object:
    try:
        found: object = load(point.value)
    except PluginError as error:
        raise ChannelSetupError(f"channels.{name} is of the package {package_of(point)}: {error}") from error.__cause__
    except Exception as error:  # the wall of a connection: somebody else's import may do anything
        raise ChannelSetupError(
            f"channels.{name} is of the package {package_of(point)}, which cannot be loaded: {type(error).__name__}: "
            f"{error}. That is for its author to mend; until then set channels.{name}.enabled to false."
        ) from error
    return found


def _checked(name: str, found: object) -> "type[BaseChannel]":
    from nanobot.channels.base import BaseChannel

    if isinstance(found, type) and issubclass(found, BaseChannel):
        return found
    raise ChannelSetupError(f"channels.{name}: {found!r} is no channel: it does not derive from BaseChannel.")
