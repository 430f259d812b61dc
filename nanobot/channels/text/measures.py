"""How long a text is, as each platform counts, and where it may be cut without tearing a character as people see it."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import regex

_AHEAD = 2
"""How much behind a cut tells whether a grapheme goes on."""

Measure = Callable[[str], int]
"""How long a text is. Every measure counts at least one for each code point."""


def code_points(text: str) -> int:
    """As Python and Discord count."""
    return len(text)


def utf16_units(text: str) -> int:
    """As Telegram counts."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8_bytes(text: str) -> int:
    """As a wire counts."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def furthest(text: str, start: int, room: int, measure: Measure) -> int:
    """The last position to which the text from `start` fits in `room`; `start` itself where nothing does."""
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
    """Whether a cut here, behind a character that continues no other (a blank, a stop), tears no grapheme."""
    if text[position : position + 1].isascii():
        return True
    found = _grapheme().match(text[position - 1 : position + 2])
    return found is None or found.end() == 1


def grapheme_ends(text: str, start: int, end: int) -> Iterator[int]:
    """Where the graphemes end that begin at or behind `start`, up to `end`.

    A flag, a family, a letter with its marks is one grapheme (Unicode Standard Annex 29).
    """
    # Of the whole text, each flag would be counted from the first one on.
    for found in _grapheme().finditer(text[start : end + _AHEAD]):
        if start + found.end() > end:
            return
        yield start + found.end()


@cache
def _grapheme() -> "regex.Pattern[str]":
    import regex  # 30 ms that only a long text pays for

    return regex.compile(r"\X")
