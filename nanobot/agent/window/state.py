"""The window of a session: which part of its history is sent, and what of that is shrunk. Plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nanobot.agent.window.shrink import Depth
from nanobot.agent.window.token_budget import Calibration

SHRUNK_CHARS = 700
"""Length of a shrunk result."""
_MAX_SPANS = 64
_MAX_MODELS = 16


@dataclass(frozen=True, slots=True)
class ShrunkSpan:
    """Rows from `begin` to before `end` (None: also all future rows) are shrunk to parts of about `chars`."""

    begin: int
    end: int | None
    chars: int = SHRUNK_CHARS
    depth: Depth = Depth.RESULTS

    def covers(self, other: "ShrunkSpan") -> bool:
        """Whether the other span is redundant beside this one."""
        ends_within = self.end is None or (other.end is not None and other.end <= self.end)
        return ends_within and self.begin <= other.begin and self.chars <= other.chars and self.depth >= other.depth


@dataclass(frozen=True, slots=True)
class Window:
    """Which rows of a history are sent. All numbers are indexes into it; `Window()` sends everything."""

    start: int = 0
    """Rows before this index are dropped."""
    resumed: int = 0
    """From `start` to here only user messages are kept; 0 if no steps were dropped."""
    shrunk: tuple[ShrunkSpan, ...] = ()
    learned: Mapping[str, Calibration] = field(default_factory=dict)
    """Calibrations by model name."""

    def shifted(self, offset: int) -> "Window":
        """The window for a history that begins `offset` rows earlier, or later if negative."""
        spans = (
            replace(span, begin=max(span.begin + offset, 0), end=None if span.end is None else span.end + offset)
            for span in self.shrunk
        )
        kept = tuple(span for span in spans if span.end is None or span.end > span.begin)
        return replace(self, start=max(self.start + offset, 0), resumed=max(self.resumed + offset, 0), shrunk=kept)

    def model(self, name: str) -> Calibration:
        """The calibration of a model."""
        return self.learned.get(name, Calibration())

    def with_calibration(self, name: str, learned: Calibration) -> "Window":
        """The window with this calibration of a model."""
        others = {other: calibration for other, calibration in self.learned.items() if other != name}
        return replace(self, learned=dict([*list(others.items())[1 - _MAX_MODELS :], (name, learned)]))

    def to_json(self) -> dict[str, Any]:
        """As JSON data without default values."""
        spans = [[span.begin, span.end, span.chars, int(span.depth)] for span in self.shrunk]
        learned = {name: [item.ratio, item.max_weight, item.window] for name, item in self.learned.items()}
        payload = {"start": self.start, "resumed": self.resumed, "shrunk": spans, "learned": learned}
        return {name: value for name, value in payload.items() if value}

    @classmethod
    def from_json(cls, payload: object) -> "Window":
        """Parse the output of `to_json`; ignores invalid parts, never raises."""
        if not isinstance(payload, dict):
            return cls()
        spans, learned = payload.get("shrunk"), payload.get("learned")
        read_spans = [span for item in spans if (span := _read_span(item))] if isinstance(spans, list) else []
        pairs = learned.items() if isinstance(learned, dict) else ()
        models = {name: item for name, raw in pairs if isinstance(name, str) and (item := _read_calibration(raw))}
        return cls(
            _natural(payload.get("start")) or 0,
            _natural(payload.get("resumed")) or 0,
            tuple(read_spans[-_MAX_SPANS:]),
            dict(list(models.items())[-_MAX_MODELS:]),
        )


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_span(payload: object) -> ShrunkSpan | None:
    if not isinstance(payload, list) or len(payload) != 4:
        return None
    begin, end, chars, depth = _natural(payload[0]), _natural(payload[1]), _natural(payload[2]), _natural(payload[3])
    if begin is None or not chars or depth not in set(Depth) or (end is None and payload[1] is not None):
        return None
    return ShrunkSpan(begin, end, chars, Depth(depth)) if end is None or end > begin else None


def _read_calibration(payload: object) -> Calibration | None:
    if not isinstance(payload, list) or len(payload) not in (2, 3):
        return None
    ratio, max_weight, *window = payload
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.1 <= ratio <= 10:
        return None
    return Calibration(float(ratio), _natural(max_weight) or None, _natural(window[0]) or None if window else None)
