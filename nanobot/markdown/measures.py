"""Text lengths as platforms count them, and grapheme boundaries."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

_AHEAD = 2
"""Characters after a cut that are needed to find a grapheme boundary."""

Measure = Callable[[str], int]
"""How long a text is. Every measure counts at least one for each code point."""


def code_points(text: str) -> int:
    """The length as Python and Discord count it."""
    return len(text)


def utf16_units(text: str) -> int:
    """The length as Telegram counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def furthest(text: str, start: int, room: int, measure: Measure) -> int:
    """Return the last position up to which the text from `start` fits in `room`; `start` if nothing fits."""
    low, high = start, min(len(text), start + max(room, 0))
    if measure(text[start:high]) <= room:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if measure(text[start:middle]) <= room:
            low = middle
        else:
            high = middle
    return low


def is_whole(text: str, position: int) -> bool:
    """Whether this position, after a blank or punctuation, is a grapheme boundary."""
    if text[position : position + 1].isascii():
        return True
    match = _grapheme().match(text[position - 1 : position + 2])
    return match is None or match.end() == 1


def grapheme_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Yield the ends of the graphemes from `start` to `end` (Unicode Standard Annex 29)."""
    # From `start` on only: in the whole text, flags would be paired from the first one on.
    for match in _grapheme().finditer(text[start : end + _AHEAD]):
        if start + match.end() > end:
            return
        yield start + match.end()


@cache
def _grapheme() -> "regex.Pattern[str]":
    import regex  # takes 30 ms; only long texts need it

    return regex.compile(r"\X")
