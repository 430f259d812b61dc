"""The saved state of a bot: the update offset, migrated groups, and values too long for a button."""

import hashlib
import time
from dataclasses import dataclass, field

from nanobot.utils.bounded_dict import put_bounded

LONGEST_DATA = 64
"""Maximum size of a button's data in bytes (core.telegram.org/bots/api#inlinekeyboardbutton)."""
RENUMBERED_S = 6 * 86400.0
"""After a week without updates their numbers restart at random; an offset of that age would hide new ones."""
_MOST_VALUES = 500
_TOKEN = "#"  # noqa: S105 prefix of the key of a stored value


@dataclass(slots=True)
class TelegramState:
    """The state of one bot."""

    bot: str = ""
    offset: int | None = None
    """The first unconfirmed update."""
    heard_at: float = 0.0
    """When the last update arrived, in seconds since 1970."""
    moved: dict[str, str] = field(default_factory=dict)
    """Groups that became supergroups: new id by old id."""
    values: dict[str, str] = field(default_factory=dict)
    """Values of buttons that exceed the limit of a button's data, by the data sent instead."""

    @property
    def next_offset(self) -> int | None:
        """What to poll from; None, which means all there is, if the offset is unknown or too old."""
        return None if time.time() - self.heard_at > RENUMBERED_S else self.offset

    def former_id(self, chat_id: str) -> str | None:
        """The id of a group before it migrated, which its session and the owner's lists use; None if it did not."""
        return next((old for old, new in self.moved.items() if new == chat_id), None)

    def data_of(self, value: str) -> str:
        """The button data for this value."""
        encoded = value.encode("utf-8", "surrogatepass")
        if len(encoded) <= LONGEST_DATA and not value.startswith(_TOKEN):
            return value
        token = _TOKEN + hashlib.sha256(encoded).hexdigest()[:32]
        put_bounded(self.values, token, value, _MOST_VALUES)
        return token

    def value_of(self, data: str) -> str | None:
        """The value of a pressed button; None if it is no longer stored."""
        return self.values.get(data) if data.startswith(_TOKEN) else data
