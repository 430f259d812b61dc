"""Classifies the lines of a Markdown text in one pass: fences, tables, headings, list items, paragraphs.

This is all that the splitter needs. Rendering uses the parser.
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
_MAX_LANGUAGE_CHARS = 24
_MAX_DELIMITER_CHARS = 4_000
"""A longer row of dashes is not taken for the delimiter row of a table."""


class LineKind(Enum):
    """The kind of a line."""

    BLANK = auto()
    TEXT = auto()
    ITEM = auto()
    HEADING = auto()
    ROW = auto()
    MARK = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Fence:
    """A code fence: the lines that reopen and close it, after the prefix of the quote it is in."""

    quote: str
    opened: str
    closed: str


@dataclass(frozen=True, slots=True)
class Line:
    """A line including its line break, or a run of blank lines."""

    start: int
    end: int
    kind: LineKind
    quote: str = ""
    fence: Fence | None = None
    head: tuple[int, int] | None = None
    """Start and end of the head of its table."""
    opens: bool = False
    """Whether a block begins with it."""


@dataclass(slots=True)
class Layout:
    """A text, its lines and its spans."""

    text: str
    lines: list[Line]
    spans: Spans

    def line_at(self, position: int) -> int:
        """The index of the line with the character at this position."""
        return bisect_right(self.lines, position, key=lambda line: line.start) - 1


def parse_layout(text: str, *, growing: bool = False) -> Layout:
    """Classify the lines and find the spans. Linear in the length.

    `growing`: more text follows, so unclosed emphasis, code and links at the end count as open.
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
        prefix = quote.group() if quote else ""
        if fence is not None and fence.quote and not prefix:
            fence = None  # the quote ends, and the fence with it
        if fence is not None:
            inner = raw[len(prefix) :] if fence.quote else raw
            if _closes(fence, inner):
                lines.append(Line(start, end, LineKind.MARK, prefix, fence))
                fence = None
            else:
                lines.append(Line(start, end, LineKind.CODE, fence.quote, fence))
            continue
        inner = raw[len(prefix) :]
        opening = _FENCE.match(inner)
        if opening is not None:
            fence = _fence(prefix, opening)
            lines.append(Line(start, end, LineKind.MARK, prefix, fence, opens=True))
        elif not inner.strip():
            if lines and lines[-1].kind is LineKind.BLANK and not prefix:
                lines[-1] = Line(lines[-1].start, end, LineKind.BLANK)  # one entry even for a million blank lines
            else:
                lines.append(Line(start, end, LineKind.BLANK, prefix))
        else:
            lines.append(_plain_line(text, lines, Line(start, end, LineKind.TEXT, prefix), inner))
    return lines


def _line_bounds(text: str) -> list[tuple[int, int]]:
    bounds = [(match.start(), match.end()) for match in _LINE.finditer(text)]
    return bounds[:-1] if bounds and bounds[-1][0] == bounds[-1][1] else bounds


def _fence(quote: str, opening: "re.Match[str]") -> Fence:
    indent = re.sub(r"\S", " ", opening["lead"])
    info = opening["info"][:_MAX_LANGUAGE_CHARS]
    return Fence(quote, f"{quote}{indent}{opening['mark']}{info}\n", f"{quote}{indent}{opening['mark']}")


def _closes(fence: Fence, line: str) -> bool:
    mark = fence.closed[len(fence.quote) :].strip()
    text = line.strip()
    return len(text) >= len(mark) and text.startswith(mark) and not text.strip(mark[0])


def _plain_line(text: str, lines: list[Line], line: Line, inner: str) -> Line:
    """Classify a line outside fences. The second line of a table changes the kind of the first."""
    previous = lines[-1] if lines else None
    start, end, quote = line.start, line.end, line.quote
    if previous is not None and previous.kind is LineKind.ROW and "|" in inner:
        return Line(start, end, LineKind.ROW, quote, head=previous.head)
    if (
        previous is not None
        and previous.kind is LineKind.TEXT
        and len(inner) < _MAX_DELIMITER_CHARS
        and _DELIMITERS.match(inner)
    ):
        head = (previous.start, end)
        if "|" in text[previous.start : previous.end] and ("|" in inner or ":" in inner):
            lines[-1] = Line(previous.start, previous.end, LineKind.ROW, previous.quote, head=head, opens=True)
            return Line(start, end, LineKind.ROW, quote, head=head)
    if _HEADING.match(inner):
        return Line(start, end, LineKind.HEADING, quote, opens=True)
    if _RULE.match(inner) or _UNDERLINE.match(inner):
        # Below text it makes that a heading, and stays with it.
        is_rule = previous is None or previous.kind is not LineKind.TEXT
        return Line(start, end, LineKind.TEXT if is_rule and "=" in inner else LineKind.HEADING, quote, opens=is_rule)
    if _ITEM.match(inner):
        return Line(start, end, LineKind.ITEM, quote)
    opens = (
        previous is None
        or previous.kind not in {LineKind.TEXT, LineKind.ITEM}
        or previous.quote.strip() != quote.strip()
    )
    return Line(start, end, LineKind.TEXT, quote, opens=opens)
