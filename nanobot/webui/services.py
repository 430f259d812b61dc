"""What the endpoints of the page work with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from nanobot.agent.feed import Feed
from nanobot.channels.base import BaseChannel
from nanobot.runtime.build import Runtime
from nanobot.security.credentials import Credentials


@dataclass(frozen=True, slots=True)
class WebServices:
    """The running gateway, as the page uses it."""

    runtime: Runtime
    feed: Feed
    channel: BaseChannel
    """The channel of the page's own chats."""
    credentials: Credentials
    new_link: Callable[[], Awaitable[str]]
    """Returns a one-time link for another browser. Raises NanobotError."""
    report: Callable[[], Awaitable[dict[str, Any]]]
    """The health report of the gateway."""
    start_channel: Callable[[str], Awaitable[None]]
    """Applies the config file now, and starts this channel again unless it is connected."""
