"""Splits an answer in Markdown into messages in a platform's dialect and within its length limit.

The text is parsed once and cut at the end of a paragraph, else of a line, a sentence, a word. Formatting that crosses a
cut is closed and opened again, a table repeats its head. Links, code and graphemes are cut only if one alone exceeds
the limit.
"""

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from nanobot.markdown.dialects import PLAIN, Dialect, Measure
from nanobot.markdown.parse import RichText, parse
from nanobot.markdown.write import Chunk, write

if TYPE_CHECKING:
    import regex

log = logging.getLogger(__name__)

SHORTEST = 32
"""Smallest limit."""
_UNLIMITED = 1 << 62
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNFINISHED = re.compile(r"(?:\A|\n)[ \t|:=+*#>-]*\Z|!?\[(?P<text>[^\[\]\n]*)\]\((?:h[^()\s]*)?\Z")
"""At the end of a growing text: a line of marks alone, which may make a heading of the line above, or half a link."""

_BLOCK = re.compile(r"(?=\n\n)")
_LINE = re.compile(r"(?=\n)")
_SENTENCE = re.compile(r"[.!?…][\"'”’)\]]*(?=\s)|[。！？；][”’」』）]*(?![\u0300-\u036f\ufe00-\ufe0f])")
_WORD = re.compile(r"(?=\s)|[，、：](?![\u0300-\u036f\ufe00-\ufe0f])")
_FREE, _IN_BLOCK, _IN_EMPHASIS, _IN_LINE, _IN_ATOM = range(5)
"""What a cut at a position splits: nothing, a table or code between two lines, emphasis, a line of these, a link..."""
_TIERS = (
    (1 / 3, _BLOCK, _FREE),
    (1 / 3, _LINE, _FREE),
    (1 / 3, _LINE, _IN_BLOCK),
    (1 / 2, _SENTENCE, _FREE),
    (1 / 2, _WORD, _FREE),
    (1 / 8, _LINE, _IN_BLOCK),
    (1 / 8, _WORD, _FREE),
    (1 / 2, _SENTENCE, _IN_EMPHASIS),
    (1 / 2, _WORD, _IN_EMPHASIS),
    (1 / 8, _WORD, _IN_EMPHASIS),
    (1 / 8, _WORD, _IN_LINE),
    (0, _WORD, _IN_LINE),
    (1 / 8, _WORD, _IN_ATOM),
)
"""Where to cut, best first: how full a message must be at least, the positions, and what may be split."""


def split_message(
    markdown: str | RichText, dialect: Dialect, limit: int | None = None, *, growing: bool = False
) -> list[Chunk]:
    """Split a text into messages, none of them empty or longer than `limit` (default: the dialect's).

    `growing`: more text follows, so an end that the next characters will change is left out. Text that cannot be
    rendered is sent as it is. Raises ValueError for a limit below SHORTEST.
    """
    limit = limit or dialect.limit or _UNLIMITED
    if limit < SHORTEST:
        raise ValueError(f"a limit of {limit} is too short; the minimum is {SHORTEST}")
    if isinstance(markdown, RichText):
        return list(_chunks(markdown, dialect, limit))
    text = well_formed(markdown)
    if growing:
        text = _UNFINISHED.sub(lambda match: match["text"] or "", text)
    unformatted = replace(PLAIN, escape=dialect.escape, measure=dialect.measure)
    try:
        chunks = list(_chunks(parse(text, max_url=min(limit // 2, 2000)), dialect, limit))
    except Exception as error:  # a parser bug must not lose the answer
        log.warning("sending an answer as plain text: %s could not render it (%r)", dialect.name, error)
        return list(_chunks(RichText(text), unformatted, limit))
    return chunks if chunks or growing else list(_chunks(RichText(text), unformatted, limit))


def well_formed(markdown: str) -> str:
    """Normalize line ends, and replace lone surrogates, which cannot be encoded."""
    text = markdown.replace("\r\n", "\n").replace("\r", "\n")
    # Surrogate pairs, which JSON may contain, are joined.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace") if _SURROGATE.search(text) else text


def _chunks(rich: RichText, dialect: Dialect, limit: int) -> Iterator[Chunk]:
    position = 0
    while (start := _next_start(rich, position)) < len(rich.text):
        position, chunk = _next_chunk(rich, start, dialect, limit)
        if chunk.content.text.strip():
            yield chunk


def _next_start(rich: RichText, position: int) -> int:
    """Skip line breaks, and other blanks but the indentation of code."""
    while rich.text.startswith("\n", position):
        position += 1
    if any(span.style == "pre" for span in rich.spans_around(position + 1)):
        return position
    while rich.text[position : position + 1] in {" ", "\n"}:
        position += 1
    return position


def _next_chunk(rich: RichText, start: int, dialect: Dialect, limit: int) -> tuple[int, Chunk]:
    """The end of the next message, and the message. Marks lengthen a text, so less is taken until it fits."""
    budget = limit
    while budget > limit // 64:
        end = _cut(rich, start, _furthest(rich.text, start, budget, dialect.measure))
        chunk = write(_part(rich, start, end, limit), dialect)
        size = dialect.measure(chunk.text)
        if size <= limit:
            return end, chunk
        used = dialect.measure(rich.text[start:end])
        budget = min(used - 1, int(used * limit / size * 0.95))
    # The marks alone are too long: write the text without them.
    end = _cut(rich, start, _furthest(rich.text, start, limit // 5, dialect.measure))
    return end, write(RichText(rich.text[start:end]), dialect)


def _part(rich: RichText, start: int, end: int, limit: int) -> RichText:
    """The text of a message. What is left of a table begins with its head, and with blank cells before a cut one."""
    part = rich.part(start, start + len(rich.text[start:end].rstrip()))
    around = rich.spans_around(start)
    depth = next((number for number, span in enumerate(around) if span.style == "table"), None)
    if depth is None:
        return part
    table = around[depth].start
    head_end = rich.text.find("\n", table, start)
    if not 0 <= head_end - table <= limit // 3:
        return RichText(part.text, tuple(span for span in part.spans if span.style != "table"))
    row = rich.text.rfind("\n", table, start) + 1
    lead = rich.text[table:head_end] + "\n" + "\t" * rich.text.count("\t", row, start)
    outer = [replace(span, end=span.end + len(lead)) for span in part.spans[: depth + 1]]
    head = rich.part(table, head_end).spans[depth + 1 :]
    inner = [replace(span, start=span.start + len(lead), end=span.end + len(lead)) for span in part.spans[depth + 1 :]]
    return RichText(lead + part.text, (*outer, *head, *inner))


def _cut(rich: RichText, start: int, end: int) -> int:
    """The best position for a cut after `start`, at most `end`."""
    text = rich.text
    if end >= len(text):
        return end
    splits = _split_by_cut(rich, start, end)
    for filled, pattern, allowed in _TIERS:
        lowest = max(int((end - start) * filled), 1)
        found = [match.end() - start for match in pattern.finditer(text, start + lowest - 1, end + 1)]
        for position in reversed(found):
            if lowest <= position <= end - start and splits[position] <= allowed:
                return start + position
    ends = [match.end() for match in _grapheme().finditer(text[start : end + 2]) if match.end() <= end - start]
    return start + (ends or [max(end - start, 1)])[-1]


def _split_by_cut(rich: RichText, start: int, end: int) -> bytearray:
    """What a cut at each position from `start` to `end` splits."""
    splits = bytearray(end - start + 1)

    def mark(first: int, last: int, kind: int) -> None:
        first, last = max(first - start, 0), min(last - start, end - start) + 1
        if last > first:
            splits[first:last] = bytes([kind]) * (last - first)

    spans = rich.spans_between(start, end + 1)
    for span in sorted(spans, key=lambda span: _SPLIT.get(span.style, _FREE)):
        kind = _SPLIT.get(span.style, _FREE)
        if kind:
            mark(span.start + 1, span.end - 1, kind)
    for span in spans:
        match span.style:
            case "pre" | "table":
                for line in _LINE.finditer(rich.text, max(span.start, start), min(span.end, end + 1)):
                    mark(line.end(), line.end(), _IN_BLOCK)
                if span.style == "table":
                    head_end = rich.text.find("\n", span.start, span.end)
                    mark(span.start + 1, head_end, _IN_ATOM)
            case "heading":
                mark(span.end, span.end + 1, _IN_ATOM)
    return splits


_SPLIT = {
    "heading": _IN_EMPHASIS, "bold": _IN_EMPHASIS, "italic": _IN_EMPHASIS, "underline": _IN_EMPHASIS,
    "strikethrough": _IN_EMPHASIS, "pre": _IN_LINE, "table": _IN_LINE, "code": _IN_ATOM, "link": _IN_ATOM,
}  # fmt: skip


def _furthest(text: str, start: int, room: int, measure: Measure) -> int:
    """Return the last position up to which the text from `start` fits in `room`; one character if nothing fits."""
    low, high = start + 1, min(len(text), start + room)
    if measure(text[start:high]) <= room:
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if measure(text[start:middle]) <= room:
            low = middle
        else:
            high = middle
    return low


@cache
def _grapheme() -> "regex.Pattern[str]":
    import regex  # takes 30 ms; only long texts need it, and the standard library cannot tell

    return regex.compile(r"\X")
