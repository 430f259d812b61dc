"""How sending fails, as types that say what to do about it.

SendError                     not now; worth another try
|-- NotConnectedError         the platform is out of reach: wait until it is back, however long
|-- RateLimitedError          the platform says when
`-- UndeliverableError        never: the chat is gone, the bot was thrown out, the text is refused
ChannelSetupError             the channel cannot run until its owner changes something
"""

from nanobot.errors import NanobotError

LONGEST_PAUSE_S = 3600.0
"""A platform that wants a longer pause is asked again after this; a message must not wait a year for a typing error."""
_USUAL_PAUSE_S = 5.0


class SendError(NanobotError):
    """The platform did not take a message, this time. `may_have_it`: the line broke with the message on it."""

    def __init__(self, message: str = "", *, may_have_it: bool = False) -> None:
        super().__init__(message)
        self.may_have_it = may_have_it


class NotConnectedError(SendError):
    """The platform is out of reach."""


class RateLimitedError(SendError):
    """Too much at once. A pause that is no time (below zero, no number) is a usual one."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, LONGEST_PAUSE_S) if retry_after_s >= 0 else _USUAL_PAUSE_S


class UndeliverableError(SendError):
    """The platform will never take it."""


class ChannelSetupError(NanobotError):
    """A token is wrong, an SDK is missing, a permission was not given. Says what the owner is to do."""
