"""What in a line of Markdown hangs together: code, links, addresses, tags, emphasis. One pass, whatever the text.

It follows CommonMark's rules for code spans and delimiter runs (spec.commonmark.org, chapter 6) as far as a splitter
must know them; what becomes of the text is for the parser to say.
"""

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"\\[^\s\w]"
    r"|(?P<ticks>`+)"
    r"|(?P<run>\*+|_+|~~)"
    r"|(?P<open>!?\[)"
    r"|(?P<close>\](?P<target>\([^\s()]*+(?:\([^\s()]*+\)[^\s()]*+)*+(?:\s+\"[^\"\n]{0,500}\")?\))?)"
    r"|(?P<tag></?[A-Za-z][^<>\n]{0,500}>)"
    r"|(?P<url>https?://[^\s<>\[\]()*`]+)"
)
_DEEPEST = 12
"""How many emphases are opened again behind a cut; nobody nests more."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch that hangs together. Where `marker` is set it may be cut, if need be: closed and opened again by it."""

    start: int
    end: int
    marker: str = ""


@dataclass(slots=True)
class _Run:
    char: str
    start: int
    length: int


@dataclass(slots=True)
class Spans:
    """The spans of a text, asked by position."""

    _atoms: list[Span] = field(default_factory=list)
    _marked: list[Span] = field(default_factory=list)
    _parents: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, found: list[Span]) -> "Spans":
        """Sorted, and each with the one around it."""
        spans = cls()
        spans._atoms = sorted((span for span in found if not span.marker), key=lambda span: span.start)
        spans._marked = sorted((span for span in found if span.marker), key=lambda span: (span.start, -span.end))
        around: list[int] = []
        for number, span in enumerate(spans._marked):
            while around and spans._marked[around[-1]].end <= span.start:
                around.pop()
            spans._parents.append(around[-1] if around else -1)
            around.append(number)
        return spans

    def is_torn(self, position: int) -> bool:
        """Whether a cut here goes through what cannot be opened again: a link, an address, a tag."""
        before = bisect_left(self._atoms, position, key=lambda span: span.start) - 1
        return before >= 0 and self._atoms[before].end > position

    def around(self, position: int) -> list[str]:
        """The markers of what is open here, outermost first."""
        number = bisect_left(self._marked, position, key=lambda span: span.start) - 1
        markers: list[str] = []
        while number >= 0:
            span = self._marked[number]
            if span.start + len(span.marker) <= position <= span.end - len(span.marker):
                markers.append(span.marker)
            elif span.start < position < span.end:
                markers.append("")  # between the characters of a marker
            number = self._parents[number]
        return markers[::-1][:_DEEPEST]


def spans_of(text: str, start: int, end: int, *, growing: bool = False) -> list[Span]:
    """The spans of one paragraph, row or heading.

    `growing`: the text has not ended here, so what is open is a span up to its end.
    """
    found: list[Span] = []
    twins = _twins(text, start, end)
    runs: dict[str, list[_Run]] = {"*": [], "_": [], "~": []}
    brackets: list[int] = []
    position = start
    while (token := _TOKEN.search(text, position, end)) is not None:
        position = token.end()
        kind = token.lastgroup
        if kind == "target" or token["close"]:
            if brackets:
                opened = brackets.pop()
                if token["target"]:
                    found.append(Span(opened, position))
        elif kind == "ticks":
            closing = twins.get(token.start())
            if closing is not None:
                position = closing + len(token["ticks"])
                found.append(Span(token.start(), position, token["ticks"]))
            elif growing:
                found.append(Span(token.start(), end + len(token["ticks"]), token["ticks"]))
                break
        elif kind == "run":
            _take_run(text, token, (start, end), runs, found)
        elif kind == "open":
            brackets.append(token.start())
        elif kind in {"tag", "url"}:
            found.append(Span(token.start(), position))
    if growing:
        for stack in runs.values():
            found += [_open_end(run, end) for run in stack if run.length]
    return _without_overlap(found)


def _open_end(run: _Run, end: int) -> Span:
    marker = run.char * min(run.length, 2)
    return Span(run.start + run.length - len(marker), end + len(marker), marker)


def _twins(text: str, start: int, end: int) -> dict[int, int]:
    """For each run of backticks the next one of its length, which closes it."""
    next_of: dict[int, int] = {}
    twins: dict[int, int] = {}
    for run in reversed([(found.start(), found.end()) for found in re.finditer("`+", text[start:end])]):
        length = run[1] - run[0]
        if length in next_of:
            twins[start + run[0]] = next_of[length]
        next_of[length] = start + run[0]
    return twins


def _take_run(
    text: str, token: "re.Match[str]", bounds: tuple[int, int], runs: dict[str, list[_Run]], found: list[Span]
) -> None:
    """A run of emphasis: it closes what it can, and what is left of it may open."""
    char, position, left = token["run"][0], token.start(), len(token["run"])
    before = text[position - 1] if position > bounds[0] else " "
    after = text[token.end()] if token.end() < bounds[1] else " "
    opens, closes = _flanks(char, before, after)
    stack = runs[char]
    while closes and left and stack:
        opener = stack[-1]
        used = 2 if opener.length >= 2 and left >= 2 else 1
        if char == "~" and used != 2:
            break
        found.append(Span(opener.start + opener.length - used, position + used, char * used))
        opener.length -= used
        position, left = position + used, left - used
        if not opener.length:
            stack.pop()
        for other in runs.values():
            while other and other[-1].start > opener.start:
                other.pop()
    if opens and left:
        stack.append(_Run(char, position, left))


def _flanks(char: str, before: str, after: str) -> tuple[bool, bool]:
    """Whether a run between these two may open, and whether it may close."""
    left = not after.isspace() and (not _is_mark(after) or before.isspace() or _is_mark(before))
    right = not before.isspace() and (not _is_mark(before) or after.isspace() or _is_mark(after))
    if char == "_":
        return left and (not right or _is_mark(before)), right and (not left or _is_mark(after))
    return left, right


def _is_mark(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _without_overlap(found: list[Span]) -> list[Span]:
    """A link inside a link, an address inside one: only the outermost counts."""
    atoms = sorted((span for span in found if not span.marker), key=lambda span: (span.start, -span.end))
    kept = [span for span in found if span.marker]
    reached = -1
    for span in atoms:
        if span.start >= reached:
            kept.append(span)
            reached = span.end
    return kept
