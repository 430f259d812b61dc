"""The window of a session: which part of its history is sent, and what of that is shrunk.

It is stored in the session's metadata, so that after a restart the model sees the same history. A window's indexes
count from the first row of a run's history; stored ones count from the session's first message. The index and time of
the last message are stored with them: if they do not fit any more, since somebody edited the file, the session gets a
new window.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field, NonNegativeInt, PositiveInt

from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session
from nanobot.utils import codec

_METADATA_KEY = "window"
MAX_ROWS = 400
"""Less than the number of messages a session loads when it is opened, so that the window is in memory."""
_SAFETY_SHARE = 0.95
"""Share of a reported limit that is used, since our token counts differ."""
_AFTER_OVERFLOW = 0.6
"""Size of the next request after a refusal that names no limit, as a share of the refused one."""
_MIN_ROWS_TOKENS = 512
"""Tokens for the rows that are always left."""
_MIN_WEIGHT = 500
"""Smaller requests teach nothing: the fixed overhead of the server distorts them."""
_MIN_RATIO, _MAX_RATIO = 0.75, 4.0
"""Bounds of the ratio: some providers do not count cached tokens."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """What a model's responses and refusals told about its size."""

    ratio: Annotated[float, Field(ge=_MIN_RATIO, le=_MAX_RATIO)] = 1.0
    """Its tokens per estimated token, by its own count of a request."""
    window: PositiveInt | None = None
    """Its tokens for a request with the reply, if less than configured."""

    def after_response(self, weight: int, prompt_tokens: int) -> "Calibration":
        """The calibration after the model counted a request of `weight` estimated tokens.

        It changes in steps, so that the session is not written for every request. Implausible figures are ignored.
        """
        if weight < _MIN_WEIGHT or not 0.5 <= prompt_tokens / weight <= _MAX_RATIO:
            return self
        ratio = max(-(-prompt_tokens * 20 // weight) / 20, _MIN_RATIO)
        return self if self.ratio - 0.1 < ratio <= self.ratio else replace(self, ratio=ratio)

    def after_refusal(self, weight: int, fixed: int, reply: int, limit_tokens: int | None = None) -> "Calibration":
        """The calibration after a request of this weight, with `reply` tokens for the reply, was refused as too long.

        A limit that the model named is believed once; else the next request is limited to 60 %, but the `fixed` part
        of the request always fits.
        """
        if limit_tokens is not None and int(limit_tokens * _SAFETY_SHARE) < (self.window or limit_tokens):
            ratio = min(1.1 * (limit_tokens - reply) / max(weight, 1), _MAX_RATIO)
            return Calibration(max(self.ratio, ratio), int(limit_tokens * _SAFETY_SHARE))
        rows = max(weight * _AFTER_OVERFLOW - fixed, _MIN_ROWS_TOKENS)  # the next reply gets at most as much
        return replace(self, window=int((fixed + rows) * self.ratio + min(reply, rows)))


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of a history are sent. All numbers but `clipped_chars` are indexes into it; `Window()` sends all."""

    start: NonNegativeInt = 0
    """Rows before this index are dropped."""
    resumed: NonNegativeInt = 0
    """From `start` to here only user messages are kept; 0 if no steps were dropped."""
    condensed: NonNegativeInt = 0
    """Turns before this index have no attachments and reasoning, and no very long texts."""
    shrunk: NonNegativeInt = 0
    """Results and arguments of calls before this index are shrunk."""
    clipped: NonNegativeInt = 0
    """Those from `shrunk` to here, of one step, have at most `clipped_chars` characters."""
    clipped_chars: NonNegativeInt = 0
    learned: Mapping[str, Calibration] = field(default_factory=dict)
    """Calibrations by model name."""

    def shifted(self, offset: int) -> "Window":
        """The window for a history that begins `offset` rows earlier, or later if negative."""
        indexes = ("start", "resumed", "condensed", "shrunk", "clipped")
        return replace(self, **{name: max(getattr(self, name) + offset, 0) for name in indexes})

    def model(self, name: str) -> Calibration:
        """The calibration of a model."""
        return self.learned.get(name, Calibration())

    def with_calibration(self, name: str, learned: Calibration) -> "Window":
        """The window with this calibration of a model."""
        return replace(self, learned={**self.learned, name: learned})

    def to_json(self) -> dict[str, Any]:
        """As JSON data without default values."""
        data: dict[str, Any] = codec.adapter(Window).dump_python(self, mode="json", exclude_defaults=True)
        return data

    @classmethod
    def from_json(cls, data: object) -> "Window":
        """Parse the output of `to_json`; an invalid one is `Window()`. Never raises."""
        try:
            window: Window = codec.adapter(Window).validate_python(data)
        except ValueError:
            return cls()
        return window


def open_window(session: Session) -> tuple[list[ChatMessage], Window]:
    """Load the rows that a run begins with and its window. May read older messages; raises StorageError.

    The first row is message number `session.message_count - len(rows)`.
    """
    stored = session.metadata.get(_METADATA_KEY)
    window = Window.from_json(stored)
    match stored:
        case {"at": [int(number), timestamp]}:
            rows = session.since(max(window.start, session.message_count - 10 * MAX_ROWS))
            first = session.message_count - len(rows)
            if first <= number < session.message_count and rows[number - first].get("timestamp") == timestamp:
                return rows, window.shifted(-first)
    default_start = session.message_count - MAX_ROWS
    rows = session.since(default_start)
    window = Window(learned=window.learned)
    if default_start > session.last_consolidated:  # fix the truncated start, so that it does not move every turn
        save_window(session, session.message_count - len(rows), window)
    return rows, window


def save_window(session: Session, first: int, window: Window) -> None:
    """Set the window of a run whose history begins at message number `first`. Stored with the next message."""
    last = session.last_message
    mark = [session.message_count - 1, None if last is None else last.get("timestamp")]
    session.metadata[_METADATA_KEY] = {**window.shifted(first).to_json(), "at": mark}
