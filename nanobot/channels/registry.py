"""The built-in channels and those of plugins. A platform's modules are imported only when its channel is enabled."""

import asyncio
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from nanobot.channels.errors import ChannelSetupError
from nanobot.errors import NanobotError, PluginError
from nanobot.plugins import CHANNELS as PLUGINS
from nanobot.plugins import entry_points, load, names, package_of
from nanobot.utils.installation import install_command
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from nanobot.bus.queue import MessageBus
    from nanobot.channels.base import BaseChannel
    from nanobot.config.schema import Config


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    name: str
    title: str
    """The platform's display name."""
    class_name: str
    extra: str | None = None
    """The extra of the nanobot package with its SDK; None if no extra is needed."""
    packages: tuple[str, ...] = ()
    """What that extra installs, by the names to import."""
    owners_are_known: bool = True
    """Whether the platform verifies senders, so that an owner can be recognised."""
    chat_is_sender: bool = True
    """Whether a person's id is also the id of the private chat with them."""
    has_buttons: bool = True
    """Whether buttons below a message can be pressed there."""
    groups: str = "(?!)"
    """Regular expression of group chat ids; matches nothing where ids do not tell."""

    @property
    def target(self) -> str:
        """`module:Class`."""
        return f"nanobot.channels.{self.name}:{self.class_name}"

    def is_group(self, chat_id: str) -> bool:
        """Whether this is the id of a group chat. False if the platform's ids do not tell."""
        return re.fullmatch(self.groups, chat_id) is not None


CHANNELS: tuple[ChannelSpec, ...] = (
    ChannelSpec("telegram", "Telegram", "TelegramChannel", groups="-.*"),
    ChannelSpec("discord", "Discord", "DiscordChannel", "discord", ("discord", "yarl"), chat_is_sender=False),
    ChannelSpec("slack", "Slack", "SlackChannel", "slack", ("slack_sdk", "aiohttp"), groups="[CG].*"),
    ChannelSpec("feishu", "Feishu", "FeishuChannel", "feishu", ("websockets",), groups="oc_.*"),
    ChannelSpec(
        "dingtalk", "DingTalk", "DingTalkChannel", "dingtalk", ("websockets",), has_buttons=False, groups="group:.*"
    ),
    ChannelSpec("qq", "QQ", "QQChannel", "qq", ("websockets",), has_buttons=False),
    ChannelSpec("wecom", "WeCom", "WeComChannel", "wecom", ("websockets",)),
    ChannelSpec("weixin", "WeChat", "WeixinChannel", has_buttons=False),
    ChannelSpec("msteams", "Microsoft Teams", "TeamsChannel", chat_is_sender=False, groups="19:.*"),
    ChannelSpec(
        "whatsapp", "WhatsApp", "WhatsAppChannel", "whatsapp", ("websockets",),
        chat_is_sender=False, has_buttons=False, groups=r".*@g\.us",
    ),
    ChannelSpec(
        "matrix", "Matrix", "MatrixChannel", "matrix-e2e", ("nio", "aiohttp"), chat_is_sender=False, has_buttons=False
    ),
    ChannelSpec(
        "mochat", "Mochat", "MochatChannel", "mochat", ("socketio", "aiohttp", "msgpack"),
        chat_is_sender=False, has_buttons=False, groups="(?!session_).*",
    ),
    ChannelSpec(
        "email", "E-mail", "EmailChannel", "email", ("imap_tools", "aiosmtplib", "publicsuffixlist"),
        owners_are_known=False, has_buttons=False,
    ),
    ChannelSpec("websocket", "WebSocket", "WebSocketChannel", "websocket", ("websockets",)),
)  # fmt: skip


def find(name: str) -> ChannelSpec | None:
    return next((spec for spec in CHANNELS if spec.name == name), None)


def plugin_names() -> Iterator[str]:
    """Yield the channels of installed packages. A plugin cannot replace a built-in channel."""
    yield from sorted({point.name for point in entry_points(PLUGINS)} - {spec.name for spec in CHANNELS})


def load_channel(name: str, disabled: Iterable[str] = ()) -> "type[BaseChannel]":
    """Import the class of a channel. Raises ChannelSetupError, which says what to install.

    `disabled`: packages whose channels must not be loaded.
    """
    spec = find(name)
    if spec is None:
        return _load_plugin(name, disabled)
    _check_packages(spec)
    try:
        return _check_class(name, load(spec.target))
    except PluginError as error:
        raise ChannelSetupError(str(error)) from error


async def create_channel(name: str, config: "Config", bus: "MessageBus") -> "BaseChannel":
    """Load a channel, in a thread, and create it. Raises NanobotError, whatever the code of a plugin raises."""
    try:
        channel_class = await asyncio.to_thread(load_channel, name, config.plugins.disabled)
        if channel_class.name != name:
            raise ChannelSetupError(
                f"channels.{name}: its class {channel_class.__name__} is named {channel_class.name!r}. Its package "
                f"has to name it {name!r}; until then set channels.{name}.enabled to false."
            )
        return channel_class(config.channels.own_section(name), bus)
    except Exception as error:
        if isinstance(error, NanobotError) and str(error):
            raise
        raise ChannelSetupError(
            f"channels.{name} cannot be created: {type(error).__name__}: {error}. Its package has to fix that; until "
            f"then set channels.{name}.enabled to false."
        ) from error


def check_channel(name: str, disabled: Iterable[str] = ()) -> None:
    """Raise ChannelSetupError as `load_channel` does, without importing the SDK of a built-in channel."""
    if (spec := find(name)) is not None:
        _check_packages(spec)
    else:
        _load_plugin(name, disabled)


def _check_packages(spec: ChannelSpec) -> None:
    missing = next((package for package in spec.packages if find_spec(package) is None), None)
    if missing is not None and spec.extra is not None:
        raise ChannelSetupError(
            f"{spec.title} needs a package that is not installed ({missing}). Run "
            f"`{install_command(spec.extra)}`, then start the gateway again."
        )


def _load_plugin(name: str, disabled: Iterable[str]) -> "type[BaseChannel]":
    point = next((point for point in entry_points(PLUGINS) if point.name == name), None)
    if point is None:
        known = [spec.name for spec in CHANNELS]
        suggestion = "".join(f"Did you mean {match}? " for match in nearest(name, known)[:1])
        raise ChannelSetupError(
            f"nanobot has no channel {name} yet, and no installed package provides one. {suggestion}"
            f"Set channels.{name}.enabled to false, or install the package. Built-in channels: {', '.join(known)}."
        )
    origin = f"channels.{name} comes from the package {package_of(point)}"
    if names(disabled, package_of(point)):
        raise ChannelSetupError(
            f"{origin}, which plugins.disabled lists. Remove it there, or set channels.{name}.enabled to false."
        )
    try:
        return _check_class(name, load(point.value))
    except NanobotError as error:
        raise ChannelSetupError(f"{origin}: {error}") from error.__cause__
    except Exception as error:  # importing a plugin may raise anything
        raise ChannelSetupError(
            f"{origin}, which cannot be loaded: {type(error).__name__}: {error}. Its author has to fix that; until "
            f"then set channels.{name}.enabled to false."
        ) from error


def _check_class(name: str, target: object) -> "type[BaseChannel]":
    from nanobot.channels.base import BaseChannel

    if isinstance(target, type) and issubclass(target, BaseChannel):
        return target
    raise ChannelSetupError(f"channels.{name}: {target!r} is not a channel: it does not derive from BaseChannel.")
