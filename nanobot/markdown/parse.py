"""Rich text, and parsing Markdown into it, without losing text: constructs that drop text are disabled or restored."""

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

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


_MARKS = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "del": "strikethrough", "strike": "strikethrough", "code": "code", "kbd": "code",
    "sub": "sub", "sup": "sup", "span": "", "p": "", "div": "", "center": "", "font": "", "small": "", "details": "",
    "summary": "bold",
}  # fmt: skip
"""HTML tags that models use for formatting, with the style of each."""
_TAG = re.compile(r"<(/?)([A-Za-z]+)(?:\s[^<>]*)?(/?)>\Z")
"""Groups: `/` of an end tag, the name, `/` of an empty tag."""
_TASK = re.compile(r"\[([ xX])\](?=\s)")
_RULE = "———"
_NOT_OPENING = frozenset(",.;:!?)，。；：！？、）")
_MAX_BLOCKS = 10_000
"""How deep blocks are nested: a RecursionError comes first, and the text is sent as it is."""
_MAX_LINKS = 20
"""How deep brackets are nested; each level costs the parser a pass."""


def parse(markdown: str, *, max_url: int = 2000) -> RichText:
    """Parse a text. A link with a longer URL than `max_url` is written out, as text."""
    builder = _Builder(markdown, max_url)
    for token in _parser(_MAX_BLOCKS).parse(markdown):
        builder.block(token)
    return RichText("".join(builder.text), tuple(span for span in builder.spans if span is not None))


@cache
def _parser(max_nesting: int) -> "MarkdownIt":
    """Return a parser without reference definitions and indented code, which would lose text.

    Blocks nested deeper are lost, links are text. Paragraphs are parsed one by one.
    """
    from markdown_it import MarkdownIt  # 100 ms that only the first answer pays for

    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": max_nesting})
    parser.enable(["table", "strikethrough"]).disable(["code", "reference", "html_block", "inline", "text_join"])
    parser.inline.ruler.at("emphasis", _emphasis)
    return parser


def _emphasis(state: "StateInline", silent: bool) -> bool:
    """Parse `*` and `_`. `**` counts between punctuation and a letter, too (`是**「重」**的`), unlike in CommonMark."""
    from markdown_it.rules_inline import emphasis

    start = state.pos
    if not emphasis.tokenize(state, silent):
        return False
    if state.src.startswith("**", start):
        before, after = state.src[start - 1 : start], state.src[state.pos : state.pos + 1]
        for delimiter in state.delimiters[start - state.pos :]:
            delimiter.open |= not after.isspace() and after not in _NOT_OPENING
            delimiter.close |= not before.isspace()
    return True


class _Builder:
    """Collects text and spans, token by token."""

    def __init__(self, markdown: str, max_url: int) -> None:
        self.text: list[str] = []
        self.spans: list[Span | None] = []
        """In the order in which they begin; None while one is open, and for one without text."""
        self._lines = markdown.split("\n")
        self._max_url = max_url
        self._size = 0
        self._newlines = 0
        """Line breaks before the next text; -1 if the next block continues the line."""
        self._open: list[tuple[int, int, str, str]] = []
        """The open spans: index, start, style and value."""
        self._paragraph_end = -1
        """The line after the last paragraph."""
        self._aligns: list[str] = []
        """The alignment of each column of the table."""
        self._cells = 0
        """Cells of the row so far."""
        self._surplus: list[str] = []
        """Cells of the row beyond the columns of the table, which the parser drops."""

    def block(self, token: "Token") -> None:
        """Add a block, or begin or end one."""
        match token.type:
            case "inline":
                tokens: list[Token] = []
                parser = _parser(_MAX_LINKS)
                parser.inline.parse(token.content, parser, {}, tokens)
                self._inline(tokens)
                if not token.content and self._is_open("table"):
                    self._put(" ")
            case "paragraph_open":
                is_tight = token.hidden or (bool(self._open) and self._open[-1][2] == "item")
                self._gap(1 if is_tight else 2)
                self._begin("paragraph", "tight" if token.hidden else "")
                self._paragraph_end = token.map[1] if token.map else -1
            case "heading_open":
                self._gap(2)
                self._begin("heading", token.tag[1])
            case "bullet_list_open" | "ordered_list_open":
                follows_at_once = token.map is not None and token.map[0] == self._paragraph_end
                if self._newlines >= 0:
                    self._gap(1 if follows_at_once or self._is_open("list") else 2)
                self._begin("list", token.tag)
                self._newlines = -1
            case "list_item_open":
                self._gap(1)
                depth = sum(style == "list" and value == "ul" for _, _, style, value in self._open)
                marker = f"{token.info}{token.markup} " if token.info else BULLETS[min(depth, len(BULLETS)) - 1]
                self._begin("item", marker)
                self._put(marker)
                self._newlines = -1
            case "blockquote_open":
                self._gap(2)
                self._begin("quote")
                self._newlines = -1
            case "fence":
                self._gap(2)
                self._whole("pre", token.content.removesuffix("\n"), (token.info.split() or [""])[0])
            case "hr":
                self._gap(2)
                self._whole("rule", _RULE)
            case "table_open":
                self._gap(2)
                self._begin("table")
                self._aligns = []
            case "table_close":
                self._end("table", ",".join(self._aligns))
            case "tr_open":
                self._put("\n" if self._aligns else "")
                self._cells = 0
                self._surplus = self._surplus_cells(token)
            case "tr_close":
                self._put("".join(f"\t{cell.strip()}" for cell in self._surplus))
            case "th_open" | "td_open":
                if token.type == "th_open":
                    self._aligns.append(str(token.attrGet("style") or "left").rpartition(":")[2])
                self._put("\t" if self._cells else "")
                self._cells += 1
            case closed if closed in _CLOSING:
                self._end(_CLOSING[closed])

    def _surplus_cells(self, row: "Token") -> list[str]:
        if row.map is None or not self._aligns:
            return []
        line = self._lines[row.map[0]].strip().lstrip("> \t").removeprefix("|").removesuffix("|")
        return re.split(r"(?<!\\)\|", line)[len(self._aligns) :]

    def _inline(self, tokens: "Sequence[Token]") -> None:
        tags = _paired_tags(tokens)
        for number, token in enumerate(tokens):
            match token.type:
                case "text" | "text_special":
                    text = token.content
                    if number == 0 and self._is_open("list") and (task := _TASK.match(text)):
                        text = ("☐" if task[1] == " " else "☑") + text[3:]
                    self._put(text.replace("\t", " ") if self._is_open("table") else text)
                case "softbreak" | "hardbreak":
                    self._break()
                case "code_inline":
                    self._whole("code", token.content)
                case "link_open":
                    self._begin("link", str(token.attrGet("href") or ""))
                case "link_close":
                    self._end_link()
                case "image":
                    self._put("🖼 ")
                    self._begin("link", str(token.attrGet("src") or ""))
                    self._put(token.content)
                    self._end_link()
                case "html_inline":
                    self._html(token.content, tags.get(number))
                case _ if style := _MARKS.get(token.tag):
                    if token.nesting > 0:
                        self._begin(style)
                    else:
                        self._end(style)

    def _html(self, text: str, style: str | None) -> None:
        tag = _TAG.match(text)
        if tag is not None and tag[2].lower() == "br":
            self._break()
        elif style is None or tag is None:
            self._put(text)
        elif style and tag[1]:
            self._end(style)
        elif style:
            self._begin(style)

    def _end_link(self) -> None:
        """End a link. One without a text shows its URL, and one whose URL is too long has no URL but in its text."""
        start, url = next((start, value) for _, start, style, value in reversed(self._open) if style == "link")
        if self._size == start:
            self._put(url)
        is_short = len(url) <= self._max_url
        self._end("link", url, keep=is_short)
        if not is_short and "".join(self.text)[start:] != url:
            self._put(f" ({url})")

    def _break(self) -> None:
        """Add a line break; a space where a line is all that a link or a cell may have."""
        self._put(" " if self._is_open("link") or self._is_open("table") else "\n")

    # -- the text so far

    def _gap(self, newlines: int) -> None:
        self._newlines = 0 if self._newlines < 0 or not self._size else max(self._newlines, newlines)

    def _put(self, text: str) -> None:
        if text:
            self._write_gap()
            self._newlines = 0
            self.text.append(text)
            self._size += len(text)

    def _write_gap(self) -> None:
        if self._newlines > 0:
            self.text.append("\n" * self._newlines)
            self._size += self._newlines
            self._newlines = 0

    def _is_open(self, style: str) -> bool:
        return any(entry[2] == style for entry in self._open)

    def _begin(self, style: str, value: str = "") -> None:
        self._write_gap()
        self._open.append((len(self.spans), self._size, style, value))
        self.spans.append(None)

    def _whole(self, style: str, text: str, value: str = "") -> None:
        self._begin(style, value)
        self._put(text)
        self._end(style)

    def _end(self, style: str, value: str = "", *, keep: bool = True) -> None:
        """End the innermost span of this style. Spans within it that go on are ended too, and begun again."""
        crossing = []
        while True:
            index, start, opened, opened_value = self._open.pop()
            is_wanted = opened == style
            if self._size > start and (keep or not is_wanted):
                self.spans[index] = Span(start, self._size, opened, (value if is_wanted else "") or opened_value)
            if is_wanted:
                break
            crossing.append((opened, opened_value))
        for opened, opened_value in reversed(crossing):
            self._begin(opened, opened_value)


_CLOSING = {
    "paragraph_close": "paragraph", "heading_close": "heading", "bullet_list_close": "list",
    "ordered_list_close": "list", "list_item_close": "item", "blockquote_close": "quote",
}  # fmt: skip


def _paired_tags(tokens: "Sequence[Token]") -> dict[int, str]:
    """The indexes of matching start and end tags, with their style."""
    open_tags: dict[str, list[int]] = {}
    pairs: dict[int, str] = {}
    for number, token in enumerate(tokens):
        tag = _TAG.match(token.content) if token.type == "html_inline" else None
        if tag is None or tag[3] or (name := tag[2].lower()) not in _TAGS:
            continue
        if not tag[1]:
            open_tags.setdefault(name, []).append(number)
        elif open_tags.get(name):
            pairs[number] = pairs[open_tags[name].pop()] = _TAGS[name]
    return pairs
