"""The lines of a Markdown text and what each is, found in one pass: fences, tables, headings, list items, paragraphs.

A splitter needs to know no more; what becomes of the text is for the parser to say.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from enum import Enum, auto

from nanobot.markdown.spans import Span, Spans, spans_of

_LINE = re.compile(r"[^\n]*\n?")
_QUOTE = re.compile(r"(?:[ \t]*>)+[ \t]?|")
_FENCE = re.compile(
    r"(?P<lead>[ \t]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*)(?P<mark>`{3,}(?=[^`\n]*$)|~{3,})"
    r"[ \t]*(?P<info>[^\s`]*)",
    re.MULTILINE,
)
_HEADING = re.compile(r"[ \t]*#{1,6}(?:[ \t]|$)", re.MULTILINE)
_ITEM = re.compile(r"[ \t]*(?:[-*+]|\d{1,9}[.)])[ \t]")
_RULE = re.compile(r"[ \t]*(?:(?:-[ \t]*){3,}|(?:\*[ \t]*){3,}|(?:_[ \t]*){3,})$", re.MULTILINE)
_UNDERLINE = re.compile(r"[ \t]*=+[ \t]*$", re.MULTILINE)
_DELIMITERS = re.compile(r"[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$", re.MULTILINE)
_LONGEST_LANGUAGE = 24
_WIDEST = 4_000
"""A row of dashes that is longer heads no table."""


class LineKind(Enum):
    """What a line is."""

    BLANK = auto()
    TEXT = auto()
    ITEM = auto()
    HEADING = auto()
    ROW = auto()
    MARK = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Fence:
    """A fence: how it is opened again and how it is closed, behind the `quote` it stands in."""

    quote: str
    opened: str
    closed: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line with its end, or a run of blank ones. `head` is where the head of its table lies; `opens` a block."""

    start: int
    end: int
    kind: LineKind
    quote: str = ""
    fence: Fence | None = None
    head: tuple[int, int] | None = None
    opens: bool = False


@dataclass(slots=True)
class Layout:
    """A text, its lines and its spans."""

    text: str
    lines: list[Line]
    spans: Spans

    def line_at(self, position: int) -> int:
        """The number of the line that holds the character at this position."""
        return bisect_right(self.lines, position, key=lambda line: line.start) - 1


def parse_layout(text: str, *, growing: bool = False) -> Layout:
    """Look through the text. Linear in its length.

    `growing`: more of it is to come, so what is open at its end (emphasis, code, a link) counts as open.
    """
    lines = _lines(text)
    spans: list[Span] = []
    number = 0
    while number < len(lines):
        first = lines[number]
        number += 1
        if first.kind in {LineKind.MARK, LineKind.HEADING, LineKind.ROW}:
            stop = first.end
        elif first.kind in {LineKind.TEXT, LineKind.ITEM}:
            while number < len(lines) and lines[number].kind is LineKind.TEXT and not lines[number].opens:
                number += 1
            stop = lines[number - 1].end
        else:
            continue
        if first.kind is LineKind.MARK:
            spans.append(Span(first.start, first.end - text.endswith("\n", first.start, first.end)))
        else:
            spans += spans_of(text, first.start, stop, growing=growing and stop == len(text))
    return Layout(text, lines, Spans.of(spans))


def _lines(text: str) -> list[Line]:
    lines: list[Line] = []
    fence: Fence | None = None
    for start, end in _line_bounds(text):
        raw = text[start:end]
        quote = _QUOTE.match(raw)
        said = quote.group() if quote else ""
        if fence is not None and fence.quote and not said:
            fence = None  # the quote ends, and the fence with it
        if fence is not None:
            inner = raw[len(said) :] if fence.quote else raw
            if _closes(fence, inner):
                lines.append(Line(start, end, LineKind.MARK, said, fence))
                fence = None
            else:
                lines.append(Line(start, end, LineKind.CODE, fence.quote, fence))
            continue
        inner = raw[len(said) :]
        opening = _FENCE.match(inner)
        if opening is not None:
            fence = _fence(said, opening)
            lines.append(Line(start, end, LineKind.MARK, said, fence, opens=True))
        elif not inner.strip():
            if lines and lines[-1].kind is LineKind.BLANK and not said:
                lines[-1] = Line(lines[-1].start, end, LineKind.BLANK)  # a million empty lines are one
            else:
                lines.append(Line(start, end, LineKind.BLANK, said))
        else:
            lines.append(_plain_line(text, lines, Line(start, end, LineKind.TEXT, said), inner))
    return lines


def _line_bounds(text: str) -> list[tuple[int, int]]:
    bounds = [(found.start(), found.end()) for found in _LINE.finditer(text)]
    return bounds[:-1] if bounds and bounds[-1][0] == bounds[-1][1] else bounds


def _fence(quote: str, opening: "re.Match[str]") -> Fence:
    indent = re.sub(r"\S", " ", opening["lead"])
    info = opening["info"][:_LONGEST_LANGUAGE]
    return Fence(quote, f"{quote}{indent}{opening['mark']}{info}\n", f"{quote}{indent}{opening['mark']}")


def _closes(fence: Fence, line: str) -> bool:
    mark = fence.closed[len(fence.quote) :].strip()
    said = line.strip()
    return len(said) >= len(mark) and said.startswith(mark) and not said.strip(mark[0])


def _plain_line(text: str, lines: list[Line], line: Line, inner: str) -> Line:
    """What a line outside fences is. A table is known by its second line, so the first may change what it was."""
    before = lines[-1] if lines else None
    start, end, quote = line.start, line.end, line.quote
    if before is not None and before.kind is LineKind.ROW and "|" in inner:
        return Line(start, end, LineKind.ROW, quote, head=before.head)
    if before is not None and before.kind is LineKind.TEXT and len(inner) < _WIDEST and _DELIMITERS.match(inner):
        head = (before.start, end)
        if "|" in text[before.start : before.end] and ("|" in inner or ":" in inner):
            lines[-1] = Line(before.start, before.end, LineKind.ROW, before.quote, head=head, opens=True)
            return Line(start, end, LineKind.ROW, quote, head=head)
    if _HEADING.match(inner):
        return Line(start, end, LineKind.HEADING, quote, opens=True)
    if _RULE.match(inner) or _UNDERLINE.match(inner):
        # Under a text it makes a heading of it, and stays with it.
        is_rule = before is None or before.kind is not LineKind.TEXT
        return Line(start, end, LineKind.TEXT if is_rule and "=" in inner else LineKind.HEADING, quote, opens=is_rule)
    if _ITEM.match(inner):
        # An item that is nested is a line of its list; one at the margin may begin a piece.
        return Line(start, end, LineKind.ITEM, quote)
    opens = before is None or before.kind not in {LineKind.TEXT, LineKind.ITEM} or before.quote.strip() != quote.strip()
    return Line(start, end, LineKind.TEXT, quote, opens=opens)
