"""Splits Markdown into parts that are each valid by themselves.

A cut prefers the end of a paragraph, then of a line, a sentence, a word. A fence that is cut is closed and reopened
with its language, a table repeats its head, emphasis its marks. Links, URLs and graphemes are cut only if one alone
exceeds the limit. Every character of the text is in exactly one part's `source`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from nanobot.markdown.layout import Layout, LineKind, parse_layout
from nanobot.markdown.measures import Measure, furthest, grapheme_ends, is_whole

SHORTEST = 32
"""Smallest limit."""

_SENTENCE = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]*_]*+\s+|[。！？；]++[”’」』）]*")
_WORD = re.compile(r"\s+|[，、：]")
_BLOCK_MARK = re.compile(
    r"[ \t]*(?:(\d{1,9})(?=[.)](?:\s|$))"
    r"|(?=(?:#{1,6}|[-+*])(?:\s|$)|>|`{3}|~{3}|[-*_=](?:[ \t]*[-*_=]){2}))"
)

_UNFINISHED_LINE = re.compile(r"(?:\A|(?<=\n))[ \t]*(?:[>#*+\-=_~`|:. \t]+|\d{1,9}[.)]?)[ \t]*\Z")
"""A last line of marks alone is ambiguous: dashes would make a heading of the line above."""
_UNFINISHED_LINK = re.compile(r"!?\[([^\[\]\n]*)(?:\]\([^()\s]*)?\Z")
_UNFINISHED_MARK = re.compile(r"(?:\*+|_+|~+|`+|\\|<[^<>\s]{0,20})\Z")


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the text (`source`), and the same with open markup closed and reopened (`markdown`)."""

    source: str
    markdown: str
    before_next: str = ""
    """The markup that the next part has to reopen."""


def next_part(layout: Layout, start: int, before: str, limit: int, measure: Measure) -> Part:
    """The next part of the text from `start` on: 0, or the end of the previous part, whose `before_next` is `before`.

    Raises ValueError for a limit below SHORTEST.
    """
    if limit < SHORTEST:
        raise ValueError(f"a limit of {limit} is too short; the minimum is {SHORTEST}")
    text = layout.text
    max_markup = limit // 3  # reopened markup must leave room for text
    before = before if measure(before) <= max_markup else ""
    room = limit - measure(before)
    while True:
        end = furthest(text, start, room, measure)
        if end < len(text):
            end = _cut(layout, start, max(end, start + 1))
        part = _part(layout, start, end, before)
        over = measure(part.markdown) - limit
        if over <= 0:
            return part if measure(part.before_next) <= max_markup else replace(part, before_next="")
        if room <= over:
            # The markup leaves no room: use the bare text.
            end = max(furthest(text, start, limit, measure), start + 1)
            return Part(text[start:end], text[start:end])
        room -= over


def _part(layout: Layout, start: int, end: int, before: str) -> Part:
    text = layout.text
    source = body = text[start:end]
    if start and text[start - 1] != "\n" and not before.endswith("\n"):
        body = _escape_block_marker(body)
    if end >= len(text):
        return Part(source, before + body + _fence_end(layout))
    closed, opened = _boundary_markup(layout, end)
    return Part(source, before + body + closed, opened)


def _fence_end(layout: Layout) -> str:
    """The line that closes a fence left open at the end of the text; empty if there is none."""
    line = layout.lines[-1]
    if line.fence is None or (line.kind is LineKind.MARK and not line.opens):
        return ""
    return ("" if layout.text.endswith("\n") else "\n") + line.fence.closed


def _escape_block_marker(text: str) -> str:
    """Escape the rest of a line, so that its beginning is not taken for a block marker."""
    marker = _BLOCK_MARK.match(text)
    text = text.lstrip(" \t")
    if marker is None:
        return text
    number = marker.group(1) or ""
    return f"{number}\\{text[len(number) :]}"


def _boundary_markup(layout: Layout, cut: int) -> tuple[str, str]:
    """The markup that closes a part that ends here, and the markup that reopens it in the next."""
    line = layout.lines[layout.line_at(cut)]
    inside = cut > line.start
    if line.fence is not None and not line.opens:
        newline = "" if layout.text[cut - 1] == "\n" else "\n"
        return newline + line.fence.closed, line.fence.opened + (line.fence.quote if inside else "")
    if line.head is not None:
        first, last = line.head
        return "", layout.text[first:last] if not inside and cut >= last else ""
    markers = layout.spans.enclosing(cut)
    return "".join(reversed(markers)), (line.quote if inside else "") + "".join(markers)


def _cut(layout: Layout, start: int, end: int) -> int:
    """The best position for a cut after `start`, at most `end`."""
    for min_filled, find_positions, keeps_emphasis in _TIERS:
        lowest = start + max(int((end - start) * min_filled), 1)
        for position in find_positions(layout, lowest, end):
            if _may_cut(layout, position, keeps_emphasis):
                return position
    graphemes = [*grapheme_ends(layout.text, start, end)]
    for position in reversed(graphemes):
        if position - start >= (end - start) / 8 and _may_cut(layout, position, keeps_emphasis=False):
            return position
    return graphemes[-1] if graphemes else end


def _may_cut(layout: Layout, position: int, keeps_emphasis: bool) -> bool:
    number = layout.line_at(position)
    line = layout.lines[number]
    if position == line.start and line.fence is not None and not line.opens:
        # A fence needs at least one line, and its end stays with its last line.
        return line.kind is LineKind.CODE and layout.lines[number - 1].kind is LineKind.CODE
    if layout.spans.is_torn(position) or layout.text[position - 1] == "\\":
        return False
    markers = layout.spans.enclosing(position)
    return not markers if keeps_emphasis else "" not in markers


def _starts_of(layout: Layout, lowest: int, end: int, wanted: Callable[[int], bool]) -> Iterator[int]:
    """The starts of the wanted lines, last first; not directly after a heading, which belongs to the next text."""
    number = layout.line_at(end) if end < len(layout.text) else len(layout.lines) - 1
    while number > 0 and layout.lines[number].start >= lowest:
        before = layout.lines[number - 1]
        if before.kind is LineKind.BLANK and number > 1 and layout.lines[number].kind is not LineKind.CODE:
            before = layout.lines[number - 2]
        if before.kind is not LineKind.HEADING and wanted(number):
            yield layout.lines[number].start
        number -= 1


def _block_starts(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def opens(number: int) -> bool:
        line, before = layout.lines[number], layout.lines[number - 1]
        follows_blank = before.kind is LineKind.BLANK and line.kind is not LineKind.BLANK and line.fence is None
        return line.opens or follows_blank

    return _starts_of(layout, lowest, end, opens)


def _line_starts(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def is_outside(number: int) -> bool:
        line = layout.lines[number]
        is_bound = line.kind in {LineKind.BLANK, LineKind.HEADING} or (
            line.head is not None and line.start < line.head[1]
        )
        return line.opens or (line.fence is None and not is_bound)

    return _starts_of(layout, lowest, end, is_outside)


def _code_line_starts(layout: Layout, lowest: int, end: int) -> Iterable[int]:
    def is_code(number: int) -> bool:
        return layout.lines[number].kind is LineKind.CODE and layout.lines[number - 1].kind is LineKind.CODE

    return _starts_of(layout, lowest, end, is_code)


def _match_ends(pattern: "re.Pattern[str]") -> "Callable[[Layout, int, int], Iterable[int]]":
    def find_positions(layout: Layout, lowest: int, end: int) -> Iterable[int]:
        ends = [match.end() for match in pattern.finditer(layout.text, max(lowest - 1, 0), end)]
        return (position for position in reversed(ends) if position >= lowest and is_whole(layout.text, position))

    return find_positions


_FindPositions = Callable[[Layout, int, int], Iterable[int]]
_TIERS: tuple[tuple[float, _FindPositions, bool], ...] = (
    (1 / 3, _block_starts, True),
    (1 / 3, _line_starts, True),
    (1 / 3, _code_line_starts, True),
    (1 / 2, _match_ends(_SENTENCE), True),
    (1 / 2, _match_ends(_WORD), True),
    (1 / 8, _line_starts, True),
    (1 / 8, _match_ends(_WORD), True),
    (1 / 2, _match_ends(_SENTENCE), False),
    (1 / 2, _match_ends(_WORD), False),
    (1 / 8, _match_ends(_WORD), False),
)
"""Where to cut, best first: how full a part must be at least, the positions, and whether emphasis must stay whole."""


def close_open_markup(markdown: str) -> str:
    """Close the open emphasis, code and links of a partial answer, and drop markup that has only begun.

    Linear in the length; never raises. `next_part` closes fences.
    """
    layout = parse_layout(markdown)
    last = layout.lines[-1] if layout.lines else None
    if last is None or (last.fence is not None and (last.opens or last.kind is not LineKind.MARK)):
        return markdown
    text = _UNFINISHED_LINE.sub("", markdown)
    text = _UNFINISHED_LINK.sub(r"\1", text)
    text = _UNFINISHED_MARK.sub("", text).rstrip()
    return text + "".join(reversed(parse_layout(text, growing=True).spans.enclosing(len(text))))
