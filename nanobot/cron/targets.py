"""Where a job may post. A target is fixed when the job is made and looked at then: no job aims at "the last chat"."""

from collections.abc import Mapping
from typing import Protocol

from nanobot.cron.types import CronError
from nanobot.utils.text import nearest

_NOT_A_CHAT = frozenset({"", "last", "default", "none", "null"})


class Targets(Protocol):
    """Knows which chats can be reached."""

    def check(self, channel: str, to: str, thread_id: str | None) -> None:
        """Raises NanobotError, which says what to do, where nothing sent there would arrive."""
        ...


class KnownChannels:
    """Targets as the config has them: each channel's name, and whether it is switched on."""

    def __init__(self, channels: Mapping[str, bool]) -> None:
        self._channels = dict(channels)

    def check(self, channel: str, to: str, thread_id: str | None) -> None:
        """Raises CronError where the channel is unknown or switched off."""
        if channel == "cli":  # the terminal needs no channel
            return
        if channel not in self._channels:
            near = nearest(channel, self._channels, 1)
            hint = f"Did you mean {near[0]}? " if near else ""
            there = ", ".join(sorted(name for name, is_on in self._channels.items() if is_on)) or "none"
            raise CronError(f"There is no channel {channel!r}. {hint}Switched on: {there}.")
        if not self._channels[channel]:
            raise CronError(
                f"The channel {channel} is not switched on, so nothing would arrive. Set channels.{channel}.enabled, "
                f"or let `nanobot channels login {channel}` ask what it needs."
            )


def check_target(
    deliver: bool, channel: str | None, to: str | None, thread_id: str | None, targets: Targets | None
) -> None:
    """Raises NanobotError where a job that delivers has nowhere to deliver to."""
    if not deliver:
        return
    if not channel or (to or "").strip().lower() in _NOT_A_CHAT:
        raise CronError(
            "A job that delivers needs the very chat it posts to: a channel and a chat id, for example "
            "`--channel telegram --to 12345`."
        )
    if targets is not None:
        targets.check(channel, to or "", thread_id)
