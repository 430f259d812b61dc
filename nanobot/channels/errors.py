"""Why sending failed, as types that say what to do about it.

SendError                     temporary: retry
|-- NotConnectedError         the platform is unreachable: wait until it is back, however long
|-- RateLimitedError          retry after the time the platform names
`-- UndeliverableError        permanent: the chat is gone, the bot was removed, the text is rejected
    `-- RefusedError          the same, with the platform's error code
ChannelSetupError             the channel cannot run until its owner changes something
`-- MissingSettingsError      a required setting is empty
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from nanobot.errors import NanobotError

ErrorCode = int | str

MAX_RETRY_AFTER_S = 3600.0
"""Cap on a platform's own retry-after, so that a wrong value cannot hold a message for a year."""
_DEFAULT_RETRY_AFTER_S = 5.0


class SendError(NanobotError):
    """The platform did not take a message, this time.

    `may_have_arrived`: the request left and no answer came, so the platform may have the message. The number of
    retries is then limited.
    """

    def __init__(self, message: str = "", *, may_have_arrived: bool = False) -> None:
        super().__init__(message)
        self.may_have_arrived = may_have_arrived


class NotConnectedError(SendError):
    """The platform is unreachable and nothing was sent. Retried without limit."""


class RateLimitedError(SendError):
    """The platform throttles. A `retry_after_s` that is negative or NaN is replaced by a default."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = min(retry_after_s, MAX_RETRY_AFTER_S) if retry_after_s >= 0 else _DEFAULT_RETRY_AFTER_S


class UndeliverableError(SendError):
    """The platform will never take the message."""


class RefusedError(UndeliverableError):
    """A refusal with an error code that is known to be final."""

    def __init__(self, message: str, code: ErrorCode) -> None:
        super().__init__(message)
        self.code = code


class ChannelSetupError(NanobotError):
    """A wrong token, a missing SDK or permission. The text says what the owner has to do."""


class MissingSettingsError(ChannelSetupError):
    """Required settings of a channel are empty. `names` are keys of its section."""

    def __init__(self, channel: str, *names: str) -> None:
        keys = " and ".join(f"channels.{channel}.{name}" for name in names)
        verb = "is" if len(names) == 1 else "are"
        super().__init__(f"{keys} {verb} not set. Run `nanobot channels login {channel}`.")


def require_settings(channel: str, **settings: str) -> tuple[str, ...]:
    """The settings of a channel, by the keys of its section, without blanks around. Raises MissingSettingsError."""
    if empty := [name for name, value in settings.items() if not value.strip()]:
        raise MissingSettingsError(channel, *empty)
    return tuple(value.strip() for value in settings.values())


@dataclass(frozen=True, slots=True)
class ErrorCodes:
    """What the error codes of a platform mean. An unknown code may be temporary."""

    platform: str
    final: Mapping[Any, str] = field(default_factory=dict)
    """Why something is refused for good, by code. `{text}` stands for the platform's own words."""
    setup: Mapping[Any, str] = field(default_factory=dict)
    """What the owner has to do, by code."""
    limited: Collection[ErrorCode] = ()
    """Too many requests."""
    temporary: Collection[ErrorCode] = ()
    """Also where most refusals need the owner, as when logging in."""
    accepted: Collection[ErrorCode] = ()
    """No failures."""
    pause_s: float = -1
    """How long to wait after too many requests, where the platform does not say."""

    def error(self, code: ErrorCode, text: str) -> SendError | ChannelSetupError:
        if code in self.setup:
            return ChannelSetupError(self.setup[code].format(text=f"{text}, {code}"))
        if code in self.final:
            return RefusedError(f"{self.platform}: {self.final[code].format(text=text)} ({code})", code)
        if code in self.limited:
            return RateLimitedError(f"{self.platform}: {text} ({code})", self.pause_s)
        return SendError(f"{self.platform}: {text} ({code})")
