"""What the endpoints of the API work with."""

from dataclasses import dataclass

from nanobot.agent.feed import Feed
from nanobot.api.store import ApiRequests
from nanobot.channels.base import BaseChannel
from nanobot.runtime.build import Runtime


@dataclass(frozen=True, slots=True)
class ApiServices:
    """The running gateway, as the API uses it."""

    runtime: Runtime
    feed: Feed
    channel: BaseChannel
    """The channel of the API's sessions."""
    requests: ApiRequests
