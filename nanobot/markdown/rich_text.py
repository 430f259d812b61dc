"""Text with its formatting as spans over it: what Markdown is parsed into, cut as, and written from."""

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property

INLINE = {"bold", "italic", "underline", "strikethrough", "sub", "sup", "code", "link"}
"""The styles of spans within a line; all others are blocks."""

BULLETS = ("• ", "◦ ", "▪ ")
"""Of lists, by depth."""


@dataclass(frozen=True, slots=True)
class Span:
    """The style of a range of a text.

    Blocks, with their value: `paragraph` ("tight" for one without a margin), `heading` (its level), `quote`, `list`
    ("ul" or "ol"), `item` (its bullet or number, with which its text begins), `pre` (the language), `table` (the
    alignment of each column; its text has a line for each row, and a tab between cells), `rule`. The value of a `link`
    is its URL.
    """

    start: int
    end: int
    style: str
    value: str = ""


@dataclass(frozen=True)
class RichText:
    """A text and its spans, sorted by start, the outer before the inner. Of two that overlap one contains the other."""

    text: str
    spans: tuple[Span, ...] = ()

    def part(self, start: int, end: int) -> "RichText":
        """The text of this range, not empty, with the spans cut to it."""
        spans = tuple(
            Span(
                max(span.start - start, 0),
                min(span.end, end) - start,
                span.style,
                "" if span.style == "item" and span.start < start else span.value,
            )
            for span in self.spans_between(start, end)
        )
        return RichText(self.text[start:end], spans)

    def spans_between(self, start: int, end: int) -> list[Span]:
        """The spans that overlap this range."""
        first, last = (bisect_left(self._starts, position) for position in (start, end))
        return [*self.spans_around(start), *self.spans[first:last]]

    def spans_around(self, position: int) -> list[Span]:
        """The spans that a cut here would cut in two, the outer before the inner."""
        found = []
        number = bisect_left(self._starts, position) - 1
        while number >= 0:
            if self.spans[number].end > position:
                found.append(self.spans[number])
            number = self._parents[number]
        return found[::-1]

    @cached_property
    def _starts(self) -> list[int]:
        return [span.start for span in self.spans]

    @cached_property
    def _parents(self) -> list[int]:
        """The index of the span around each span; -1 if there is none."""
        parents: list[int] = []
        around: list[int] = []
        for number, span in enumerate(self.spans):
            while around and self.spans[around[-1]].end <= span.start:
                around.pop()
            parents.append(around[-1] if around else -1)
            around.append(number)
        return parents
