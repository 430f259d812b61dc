"""The window of a session: the small state that says what is left of its history. It stands until room runs out again.

Plain data. `sheet` shows what it leaves of the rows, `fit` moves it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from nanobot.agent.run.allowance import Learned
from nanobot.agent.run.shrink import Depth

SHRUNK_CHARS = 700
"""What is left of a result that has shrunk."""
_MOST_SPANS = 64
_MOST_MODELS = 16


@dataclass(frozen=True, slots=True)
class Span:
    """Rows from `begin` to before `end` (None: and all that come) show no part longer than about `chars`."""

    begin: int
    end: int | None
    chars: int = SHRUNK_CHARS
    depth: Depth = Depth.RESULTS

    def covers(self, other: "Span") -> bool:
        """Whether the other one changes nothing beside this one."""
        ends = self.end is None or (other.end is not None and other.end <= self.end)
        return ends and self.begin <= other.begin and self.chars <= other.chars and self.depth >= other.depth


@dataclass(frozen=True, slots=True)
class Window:
    """What is left of a history. All numbers are positions in it; the state of nothing done yet is `Window()`."""

    start: int = 0
    """Rows before it have left."""
    resumed: int = 0
    """From `start` to here only the words of people are left, where it is behind `start`."""
    shrunk: tuple[Span, ...] = ()
    learned: Mapping[str, Learned] = field(default_factory=dict)
    """By model."""

    def moved(self, by: int) -> "Window":
        """The same window where the history begins so many rows earlier (or, below 0, later)."""
        spans = (
            replace(span, begin=max(span.begin + by, 0), end=None if span.end is None else span.end + by)
            for span in self.shrunk
        )
        kept = tuple(span for span in spans if span.end is None or span.end > span.begin)
        return replace(self, start=max(self.start + by, 0), resumed=max(self.resumed + by, 0), shrunk=kept)

    def model(self, name: str) -> Learned:
        """What is known of a model."""
        return self.learned.get(name, Learned())

    def taught(self, name: str, learned: Learned) -> "Window":
        """The same window, knowing this of a model."""
        others = {known: one for known, one in self.learned.items() if known != name}
        return replace(self, learned=dict([*list(others.items())[1 - _MOST_MODELS :], (name, learned)]))

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is as it always is."""
        spans = [[span.begin, span.end, span.chars, int(span.depth)] for span in self.shrunk]
        learned = {name: [one.ratio, one.most, one.window] for name, one in self.learned.items()}
        found = {"start": self.start, "resumed": self.resumed, "shrunk": spans, "learned": learned}
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_json(cls, found: object) -> "Window":
        """What `to_json` gave; of anything else, as much as makes sense. Never raises."""
        if not isinstance(found, dict):
            return cls()
        spans, learned = found.get("shrunk"), found.get("learned")
        read_spans = [span for one in spans if (span := _read_span(one))] if isinstance(spans, list) else []
        pairs = learned.items() if isinstance(learned, dict) else ()
        models = {name: one for name, raw in pairs if isinstance(name, str) and (one := _read_learned(raw))}
        return cls(
            _natural(found.get("start")) or 0,
            _natural(found.get("resumed")) or 0,
            tuple(read_spans[-_MOST_SPANS:]),
            dict(list(models.items())[-_MOST_MODELS:]),
        )


def _natural(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _read_span(found: object) -> Span | None:
    if not isinstance(found, list) or len(found) != 4:
        return None
    begin, end, chars, depth = _natural(found[0]), _natural(found[1]), _natural(found[2]), _natural(found[3])
    if begin is None or not chars or depth not in set(Depth) or (end is None and found[1] is not None):
        return None
    return Span(begin, end, chars, Depth(depth)) if end is None or end > begin else None


def _read_learned(found: object) -> Learned | None:
    if not isinstance(found, list) or len(found) not in (2, 3):
        return None
    ratio, most, *window = found
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0.1 <= ratio <= 10:
        return None
    return Learned(float(ratio), _natural(most) or None, _natural(window[0]) or None if window else None)
