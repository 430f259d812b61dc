"""Splits Markdown into parts that are each valid by themselves.

A cut prefers the end of a paragraph, then of a line, a sentence, a word. A fence that is cut is closed and reopened
with its language, a table repeats its head, emphasis its marks. Links, URLs and graphemes are cut only if one alone
exceeds the limit. Every character of the text is in exactly one part's `source`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from nanobot.markdown.layout import Layout, LineKind, parse_layout
from nanobot.markdown.measures import Measure, code_points, furthest, grapheme_ends, is_whole

SHORTEST = 32
"""Smallest limit."""

_SENTENCE = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*_]*+\s+|[。！？；]++[”’」』）]*")
_WORD = re.compile(r"\s+|[，、：]")
_BLOCK_MARK = re.compile(
    r"[ \t]*(?:(\d{1,9})(?=[.)](?:\s|$))"
    r"|(?=(?:#{1,6}|[-+*])(?:\s|$)|>|`{3}|~{3}|[-*_=](?:[ \t]*[-*_=]){2}))"
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the text (`source`), and the same with open markup closed and reopened (`markdown`)."""

    source: str
    markdown: str
    before_next: str = ""
    """The markup that the next part has to reopen."""


def split(markdown: str, limit: int, measure: Measure = code_points) -> list[str]:
    """Split a text into parts of at most `limit`. Raises ValueError for a limit below SHORTEST."""
    layout, start, before = parse_layout(markdown), 0, ""
    parts = []
    while start < len(markdown):
        part = next_part(layout, start, before, limit, measure)
        start, before = start + len(part.source), part.before_next
        parts.append(part.markdown)
    return parts


def next_part(layout: Layout, start: int, before: str, limit: int, measure: Measure) -> Part:
    """The next part of the text, from `start` on (0, or where the part before ended), which `before` opens."""
    if limit < SHORTEST:
        raise ValueError(f"a piece of {limit} is too short; {SHORTEST} is the least")
    text = layout.text
    most = limit // 3  # what opens a part must leave room for what it says
    before = before if measure(before) <= most else ""
    room = limit - measure(before)
    while True:
        end = furthest(text, start, room, measure)
        if end < len(text):
            end = _cut(layout, start, max(end, start + 1))
        part = _part(layout, start, end, before)
        over = measure(part.markdown) - limit
        if over <= 0:
            return part if measure(part.before_next) <= most else replace(part, before_next="")
        if room <= over:
            # What opens and closes leaves no room: the bare text then.
            end = max(furthest(text, start, limit, measure), start + 1)
            return Part(text[start:end], text[start:end])
        room -= over


def _part(layout: Layout, start: int, end: int, before: str) -> Part:
    text = layout.text
    source = body = text[start:end]
    if start and text[start - 1] != "\n" and not before.endswith("\n"):
        body = as_prose(body)
    if end >= len(text):
        return Part(source, before + body + closing(layout))
    closed, opened = _around(layout, end)
    return Part(source, before + body + closed, opened)


def closing(layout: Layout) -> str:
    """What closes a fence that the end of the text leaves open."""
    line = layout.lines[-1]
    if line.fence is None or (line.kind is LineKind.MARK and not line.opens):
        return ""
    return ("" if layout.text.endswith("\n") else "\n") + line.fence.closed


def as_prose(text: str) -> str:
    """The rest of a line, so that what stood in its middle is not taken for the mark of a block."""
    mark = _BLOCK_MARK.match(text)
    text = text.lstrip(" \t")
    if mark is None:
        return text
    number = mark.group(1) or ""
    return f"{number}\\{text[len(number) :]}"


def _around(layout: Layout, cut: int) -> tuple[str, str]:
    """What closes a part that ends here, and what opens the next."""
    line = layout.lines[layout.line_at(cut)]
    inside = cut > line.start
    if line.fence is not None and not line.opens:
        newline = "" if layout.text[cut - 1] == "\n" else "\n"
        return newline + line.fence.closed, line.fence.opened + (line.fence.quote if inside else "")
    if line.head is not None:
        first, last = line.head
        return "", layout.text[first:last] if not inside and cut >= last else ""
    markers = layout.spans.around(cut)
    return "".join(reversed(markers)), (line.quote if inside else "") + "".join(markers)


def _cut(layout: Layout, start: int, end: int) -> int:
    """The best place for a cut behind `start`, at `end` at the latest."""
    for least, places, keep_marks in _TIERS:
        lowest = start + max(int((end - start) * least), 1)
        for place in places(layout, lowest, end):
            if _may_cut(layout, place, keep_marks):
                return place
    graphemes = [*grapheme_ends(layout.text, start, end)]
    for place in reversed(graphemes):
        if place - start >= (end - start) / 8 and _may_cut(layout, place, keep_marks=False):
            return place
    return graphemes[-1] if graphemes else end


def _may_cut(layout: Layout, place: int, keep_marks: bool) -> bool:
    number = layout.line_at(place)
    line = layout.lines[number]
    if place == line.start and line.fence is not None and not line.opens:
        # An opened fence needs a line, and its last mark goes with what it closes.
        return line.kind is LineKind.CODE and layout.lines[number - 1].kind is LineKind.CODE
    if layout.spans.is_torn(place) or layout.text[place - 1] == "\\":
        return False
    markers = layout.spans.around(place)
    return not markers if keep_marks else "" not in markers


def _starts(layout: Layout, lowest: int, end: int, wanted: Callable[[int], bool]) -> Iterator[int]:
    """The starts of such lines, last first; not behind a heading, which belongs to what follows."""
    number = layout.line_at(end) if end < len(layout.text) else len(layout.lines) - 1
    while number > 0 and layout.lines[number].start >= lowest:
        before = layout.lines[number - 1]
        if before.kind is LineKind.BLANK and number > 1 and layout.lines[number].kind is not LineKind.CODE:
            before = layout.lines[number - 2]
        if before.kind is not LineKind.HEADING and wanted(number):
            yield layout.lines[number].start
        number -= 1


def _blocks(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def opens(number: int) -> bool:
        line, before = layout.lines[number], layout.lines[number - 1]
        follows_blank = before.kind is LineKind.BLANK and line.kind is not LineKind.BLANK and line.fence is None
        return line.opens or follows_blank

    return _starts(layout, lowest, end, opens)


def _ends_of_lines(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def outside(number: int) -> bool:
        line = layout.lines[number]
        is_bound = line.kind in {LineKind.BLANK, LineKind.HEADING} or (
            line.head is not None and line.start < line.head[1]
        )
        return line.opens or (line.fence is None and not is_bound)

    return _starts(layout, lowest, end, outside)


def _ends_of_code(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def code(number: int) -> bool:
        return layout.lines[number].kind is LineKind.CODE and layout.lines[number - 1].kind is LineKind.CODE

    return _starts(layout, lowest, end, code)


def _matches(pattern: "re.Pattern[str]") -> "Callable[[Layout, int, int], Iterable[int]]":
    def places(layout: Layout, lowest: int, end: int) -> Iterable[int]:
        ends = [found.end() for found in pattern.finditer(layout.text, max(lowest - 1, 0), end)]
        return (place for place in reversed(ends) if place >= lowest and is_whole(layout.text, place))

    return places


_Places = Callable[[Layout, int, int], Iterable[int]]
_TIERS: tuple[tuple[float, _Places, bool], ...] = (
    (1 / 3, _blocks, True),
    (1 / 3, _ends_of_lines, True),
    (1 / 3, _ends_of_code, True),
    (1 / 2, _matches(_SENTENCE), True),
    (1 / 2, _matches(_WORD), True),
    (1 / 8, _ends_of_lines, True),
    (1 / 8, _matches(_WORD), True),
    (1 / 2, _matches(_SENTENCE), False),
    (1 / 2, _matches(_WORD), False),
    (1 / 8, _matches(_WORD), False),
)
"""Where to cut, best first: how much of a piece must be filled for it to count, and if emphasis must stay whole."""
