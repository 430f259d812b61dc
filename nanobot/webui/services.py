"""What the endpoints of the page work with."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
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
    channel_paused: Callable[[str], AbstractAsyncContextManager[None]]
    """Disconnects a channel while something else logs in as it, and then starts it as the config file says."""
