"""Finds the inline spans of a text in one pass: code, links, URLs, tags, emphasis.

Follows CommonMark's rules for code spans and delimiter runs (spec.commonmark.org, chapter 6) as far as a splitter needs
them. Rendering uses the parser.
"""

import re
import unicodedata
from bisect import bisect_left
from dataclasses import dataclass

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
"""Most nested markers that are reopened after a cut."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span that should not be cut. One with a `marker` can be: the marker closes and reopens it."""

    start: int
    end: int
    marker: str = ""


@dataclass(slots=True)
class _FormattedRun:
    char: str
    start: int
    length: int


@dataclass(slots=True)
class Spans:
    """The spans of a text, with queries by position."""

    _atoms: list[Span]
    _marked: list[Span]
    _parents: list[int]
    """The index of the marked span around each marked span; -1 if there is none."""

    @classmethod
    def of(cls, spans: list[Span]) -> "Spans":
        """Sort the spans, and find the enclosing one of each."""
        atoms = sorted((span for span in spans if not span.marker), key=lambda span: span.start)
        marked = sorted((span for span in spans if span.marker), key=lambda span: (span.start, -span.end))
        parents: list[int] = []
        enclosing: list[int] = []
        for number, span in enumerate(marked):
            while enclosing and marked[enclosing[-1]].end <= span.start:
                enclosing.pop()
            parents.append(enclosing[-1] if enclosing else -1)
            enclosing.append(number)
        return cls(atoms, marked, parents)

    def is_torn(self, position: int) -> bool:
        """Whether a cut here would split a span that cannot be reopened: a link, a URL, a tag."""
        before = bisect_left(self._atoms, position, key=lambda span: span.start) - 1
        return before >= 0 and self._atoms[before].end > position

    def enclosing(self, position: int) -> list[str]:
        """The markers of the spans open at this position, outermost first."""
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

    `growing`: more text follows, so unclosed spans extend to the end.
    """
    spans: list[Span] = []
    closing_ticks = _closing_ticks(text, start, end)
    runs: dict[str, list[_FormattedRun]] = {"*": [], "_": [], "~": []}
    brackets: list[int] = []
    position = start
    while (token := _TOKEN.search(text, position, end)) is not None:
        position = token.end()
        kind = token.lastgroup
        if kind == "target" or token["close"]:
            if brackets:
                start_of_link = brackets.pop()
                if token["target"]:
                    spans.append(Span(start_of_link, position))
        elif kind == "ticks":
            closing = closing_ticks.get(token.start())
            if closing is not None:
                position = closing + len(token["ticks"])
                spans.append(Span(token.start(), position, token["ticks"]))
            elif growing:
                spans.append(Span(token.start(), end + len(token["ticks"]), token["ticks"]))
                break
        elif kind == "run":
            _process_run(text, token, (start, end), runs, spans)
        elif kind == "open":
            brackets.append(token.start())
        elif kind in {"tag", "url"}:
            spans.append(Span(token.start(), position))
    if growing:
        for stack in runs.values():
            spans += [_unclosed_span(run, end) for run in stack if run.length]
    return _drop_nested(spans)


def _unclosed_span(run: _FormattedRun, end: int) -> Span:
    marker = run.char * min(run.length, 2)
    return Span(run.start + run.length - len(marker), end + len(marker), marker)


def _closing_ticks(text: str, start: int, end: int) -> dict[int, int]:
    """For each run of backticks, the next run of the same length, which closes it."""
    next_of: dict[int, int] = {}
    closing: dict[int, int] = {}
    for run in reversed([*re.finditer("`+", text[start:end])]):
        length, position = len(run.group()), start + run.start()
        if length in next_of:
            closing[position] = next_of[length]
        next_of[length] = position
    return closing


def _process_run(
    text: str, token: "re.Match[str]", bounds: tuple[int, int], runs: dict[str, list[_FormattedRun]], spans: list[Span]
) -> None:
    """Process a run of emphasis marks: it closes open runs of its kind, and the rest may open one."""
    char, position, remaining = token["run"][0], token.start(), len(token["run"])
    before = text[position - 1] if position > bounds[0] else " "
    after = text[token.end()] if token.end() < bounds[1] else " "
    opens, closes = _flanks(char, before, after)
    stack = runs[char]
    while closes and remaining and stack:
        opener = stack[-1]
        length_used = 2 if opener.length >= 2 and remaining >= 2 else 1
        if char == "~" and length_used != 2:
            break
        spans.append(Span(opener.start + opener.length - length_used, position + length_used, char * length_used))
        opener.length -= length_used
        position, remaining = position + length_used, remaining - length_used
        if not opener.length:
            stack.pop()
        for other in runs.values():
            while other and other[-1].start > opener.start:
                other.pop()
    if opens and remaining:
        stack.append(_FormattedRun(char, position, remaining))


def _flanks(char: str, before: str, after: str) -> tuple[bool, bool]:
    """Whether a run between these characters may open, and whether it may close emphasis."""
    left = not after.isspace() and (not _is_punctuation(after) or before.isspace() or _is_punctuation(before))
    right = not before.isspace() and (not _is_punctuation(before) or after.isspace() or _is_punctuation(after))
    if char == "_":
        return left and (not right or _is_punctuation(before)), right and (not left or _is_punctuation(after))
    return left, right


def _is_punctuation(char: str) -> bool:
    return unicodedata.category(char)[0] in "PS"


def _drop_nested(spans: list[Span]) -> list[Span]:
    """Keep only the outermost of nested links, URLs and tags."""
    atoms = sorted((span for span in spans if not span.marker), key=lambda span: (span.start, -span.end))
    kept = [span for span in spans if span.marker]
    last_end = -1
    for span in atoms:
        if span.start >= last_end:
            kept.append(span)
            last_end = span.end
    return kept
