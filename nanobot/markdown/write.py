"""Writes rich text in any dialect. Nothing is dropped: a URL that cannot be a link follows its text."""

import html
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from nanobot.markdown.dialects import PLAIN, Dialect, utf16_units
from nanobot.markdown.parse import BULLETS, INLINE, RichText, Span

_WHOLE = {"code", "pre", "rule", "table"}
"""Styles within which no other is written."""
_EMPHASIS = {"bold", "italic", "underline", "strikethrough"}
_MAX_ENTITIES = 100
"""What Telegram accepts."""
_WEIGHTS = {"text_link": 0, "pre": 1, "code": 2, "blockquote": 3}
"""Which entities to keep if there are more."""
_MAX_WIDTH = 100
"""Of a table, in columns; phones wrap longer lines."""
_GAP = " | "


@dataclass(frozen=True, slots=True)
class Entity:
    """The formatting of a range of the text, in UTF-16 units (core.telegram.org/bots/api#messageentity)."""

    type: str
    offset: int
    length: int
    url: str | None = None
    language: str | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """One message as a platform takes it."""

    text: str
    entities: tuple[Entity, ...] = ()
    html: str | None = None
    content: RichText = field(default_factory=lambda: RichText(""), compare=False)
    """What is written here, to write it otherwise."""


def write(rich: RichText, dialect: Dialect) -> Chunk:
    """Write a text in this dialect."""
    writer = _Writer(dialect)
    writer.write(rich)
    page = dialect.html.replace("{}", _html(rich, dialect)) if dialect.html is not None else None
    text = "".join(writer.out)
    return Chunk(text, _accepted(writer.entities, text), page, rich)


def _walk(rich: RichText) -> Iterator[tuple[str, Span | None, str]]:
    """Yield what to write, in order: `text`; `begin` and `end` of a span, `whole` for one as a whole. With its text."""
    position = 0
    around: list[Span] = []
    for span in (*rich.spans, Span(len(rich.text), len(rich.text), "")):
        if span.start < position:
            continue  # within a whole one
        while around and around[-1].end <= span.start:
            ended = around.pop()
            yield "text", None, rich.text[position : ended.end]
            yield "end", ended, rich.text[ended.start : ended.end]
            position = ended.end
        yield "text", None, rich.text[position : span.start]
        position, text = span.start, rich.text[span.start : span.end]
        if span.style in _WHOLE:
            yield "whole", span, text
            position = span.end
        elif span.style:
            yield "begin", span, text
            around.append(span)
            if span.style == "item":
                position = min(span.start + len(span.value), span.end)


@dataclass(slots=True)
class _Mark:
    """An open span, and what shows it: text before and after it, or an entity. No style: nothing."""

    style: str = ""
    before: str = ""
    after: str = ""
    url: str | None = None
    start: int = -1
    """Where its text begins in the output; -1 before it, and after a break that it cannot span."""


class _Writer:
    """Collects the output. Lines begin with the prefixes of the quotes and lists around them."""

    def __init__(self, dialect: Dialect) -> None:
        self.out: list[str] = []
        self.entities: list[Entity] = []
        self._dialect = dialect
        self._size = 0
        self._prefixes: list[str] = []
        self._marks: list[_Mark] = []
        self._starts_line = True
        self._follows_mark = False

    def write(self, rich: RichText) -> None:
        for event, span, text in _walk(rich):
            if span is None:
                self._text(text)
            elif event == "begin":
                self._marks.append(self._begin(span, text))
            elif event == "end":
                self._end(span, text)
            elif span.style == "code":
                self._code(text)
            elif span.style == "pre":
                self._pre(text, span.value)
            elif span.style == "table":
                self._table(_cells(rich, span), span.value.split(","))
            else:
                self._text(text)

    def _begin(self, span: Span, text: str) -> _Mark:
        open_styles = {mark.style for mark in self._marks}
        match span.style:
            case "heading" if int(span.value) <= self._dialect.heading_levels:
                self._open_marks()
                self._add("#" * int(span.value) + " ")
                return _Mark("bold")  # bold words in it are no bolder
            case "heading" | "bold" | "italic" | "underline" | "strikethrough":
                style = "bold" if span.style == "heading" else span.style
                return _Mark() if style in open_styles else _Mark(style, *self._dialect.marks.get(style, ()))
            case "quote":
                if not self._starts_line:
                    self._add(self._dialect.quote)
                self._prefixes.append(self._dialect.quote)
                return _Mark() if "blockquote" in open_styles else _Mark("blockquote")
            case "item":
                self._open_marks()
                self._add(self._dialect.bullet or span.value if span.value in BULLETS else span.value)
                self._prefixes.append(" " * len(span.value))
            case "link" if span.value.startswith(self._dialect.schemes):
                url = _escape_url(span.value)
                before, after = (part.replace("{url}", url) for part in self._dialect.link or ("", ""))
                if self._dialect.entities or (before and text not in _bare(span.value)):
                    return _Mark("text_link", before, after, span.value)
        return _Mark()

    def _end(self, span: Span, text: str) -> None:
        mark = self._marks.pop()
        self._close(mark)
        if span.style in {"quote", "item"}:
            self._prefixes.pop()
        elif span.style == "link" and not mark.style and text not in _bare(span.value):
            self._add(self._dialect.escape(f" ({span.value})"))

    def _code(self, code: str) -> None:
        in_link = any(mark.style == "text_link" for mark in self._marks)
        if self._dialect.entities and not in_link:
            self._suspend_emphasis()  # which must not contain code
        self._open_marks(emphasis=in_link or not self._dialect.entities)
        start = self._size
        self._add(self._edge() + self._dialect.code(code))
        self._follows_mark = True
        if not in_link:
            self._add_entity("code", start)

    def _pre(self, code: str, language: str = "") -> None:
        """Write code without the indentation of a list, which would be copied with it."""
        prefixes = self._prefixes
        self._prefixes = [prefix for prefix in prefixes if prefix.strip()]
        self._open_marks()
        start = self._size
        for number, line in enumerate(self._dialect.fence(code, language).split("\n")):
            if number:
                self._newline()
            self._add(line)
        self._add_entity("pre", start, language=language or None)
        self._prefixes = prefixes

    def _table(self, rows: list[list[RichText]], aligns: Sequence[str]) -> None:
        """Write a table as aligned columns. One that is too wide becomes a list of what each row says."""
        plain = [[write(cell, PLAIN).text.strip() for cell in row] for row in rows]
        drawn = _align(plain, aligns)
        if drawn is not None or len(rows) == 1:
            self._pre(drawn or _GAP.join(plain[0]))
            return
        is_first = True
        for row in rows[1:]:
            if not is_first:
                self._newline()
            for head, cell in zip_longest(plain[0], row, fillvalue=None):
                if isinstance(cell, RichText) and cell.text.strip():
                    if not is_first:
                        self._newline()
                    is_first = False
                    if isinstance(head, str) and head:
                        self.write(RichText(f"{head}: ", (Span(0, len(head) + 1, "bold"),)))
                    self.write(cell)

    # -- the text so far

    def _text(self, text: str) -> None:
        if not text:
            return
        for number, line in enumerate(text.split("\n")):
            if number:
                self._newline(self._dialect.newline)
            if line.strip():
                self._open_marks()
            self._add(self._dialect.escape(line))

    def _newline(self, newline: str = "\n") -> None:
        if self._dialect.edge:
            self._suspend_emphasis()
        if self._starts_line:
            self._append("".join(self._prefixes).rstrip())
        self._append(newline)
        self._starts_line, self._follows_mark = True, False

    def _add(self, text: str) -> None:
        """Add to the line."""
        if text:
            self._indent()
            if self._follows_mark and text[0].isalnum():
                self._append(self._dialect.edge)
            self._follows_mark = False
            self._append(text)

    def _indent(self) -> None:
        if self._starts_line:
            self._starts_line = False
            self._append("".join(self._prefixes))

    def _append(self, text: str) -> None:
        if text:
            self.out.append(text)
            self._size += utf16_units(text)

    def _edge(self) -> str:
        return self._dialect.edge if self.out and self.out[-1][-1].isalnum() else ""

    def _open_marks(self, *, emphasis: bool = True) -> None:
        """Write the marks that wait for their first text."""
        self._indent()
        for mark in self._marks:
            if mark.start < 0 and (emphasis or mark.style not in _EMPHASIS):
                self._add(self._edge() + mark.before if mark.before else "")
                mark.start = self._size

    def _suspend_emphasis(self) -> None:
        """Close emphasis; the next text opens it again."""
        for mark in reversed(self._marks):
            if mark.style in _EMPHASIS:
                self._close(mark)

    def _close(self, mark: _Mark) -> None:
        if mark.start >= 0:
            self._add(mark.after)
            self._follows_mark = self._follows_mark or bool(mark.after)
            self._add_entity(mark.style, mark.start, url=mark.url)
            mark.start = -1

    def _add_entity(self, kind: str, start: int, url: str | None = None, language: str | None = None) -> None:
        if self._dialect.entities and kind and self._size > start:
            self.entities.append(Entity(kind, start, self._size - start, url, language))


def _bare(url: str) -> tuple[str, str]:
    """The texts that say no less than the URL."""
    return url, url.removeprefix("mailto:")


def _escape_url(url: str) -> str:
    """Escape characters that would end a link."""
    return url.replace("(", "%28").replace(")", "%29").replace("|", "%7C").replace(">", "%3E")


def _accepted(entities: list[Entity], text: str) -> tuple[Entity, ...]:
    """Keep what Telegram accepts: no blank entities, and at most a hundred, links and code before formatting."""
    units = text.encode("utf-16-le", "surrogatepass") if entities else b""

    def is_blank(entity: Entity) -> bool:
        return not units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le").strip()

    kept = sorted((entity for entity in entities if not is_blank(entity)), key=lambda one: _WEIGHTS.get(one.type, 4))
    return tuple(sorted(kept[:_MAX_ENTITIES], key=lambda entity: (entity.offset, -entity.length)))


# -- tables


def _cells(rich: RichText, table: Span) -> list[list[RichText]]:
    """The cells of each row, with the formatting within them."""
    rows: list[list[RichText]] = []
    position = table.start
    for line in rich.text[table.start : table.end].split("\n"):
        rows.append([])
        for text in line.split("\t"):
            spans = rich.part(position, position + len(text)).spans if text else ()
            rows[-1].append(RichText(text, tuple(span for span in spans if span.style in INLINE)))
            position += len(text) + 1
    return rows


def _align(rows: Sequence[Sequence[str]], aligns: Sequence[str]) -> str | None:
    """Align the rows, with a rule below the first. None if they are too wide. `aligns`: left, right or center."""
    columns = list(zip_longest(*rows, fillvalue=""))
    widths = [max(map(_width, column)) for column in columns]
    if sum(widths) + len(_GAP) * (len(widths) - 1) > _MAX_WIDTH:
        return None
    padded = [
        [_pad(cell, width, aligns[number] if number < len(aligns) else "left") for cell in column]
        for number, (column, width) in enumerate(zip(columns, widths, strict=True))
    ]
    lines = [_GAP.join(cells).rstrip() for cells in zip(*padded, strict=True)]
    return "\n".join([lines[0], "-+-".join("-" * width for width in widths), *lines[1:]])


def _pad(cell: str, width: int, align: str) -> str:
    missing = width - _width(cell)
    before = {"right": missing, "center": missing // 2}.get(align, 0)
    return " " * before + cell + " " * (missing - before)


def _width(text: str) -> int:
    """Width in monospace columns: CJK characters and emoji take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(char) in {"Mn", "Me", "Cf"} else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in text
    )


# -- HTML

_TAGS = {
    "heading": "h{}", "quote": "blockquote", "list": "{}", "item": "li", "bold": "strong", "italic": "em",
    "underline": "u", "strikethrough": "s", "sub": "sub", "sup": "sup",
}  # fmt: skip
_TABLE = '<table border="1" cellpadding="4" style="border-collapse: collapse">'


def _html(rich: RichText, dialect: Dialect) -> str:
    """HTML without scripts, pictures, and links other than the dialect's."""
    out: list[str] = []
    in_paragraph = False
    for event, span, text in _walk(rich):
        if span is None:
            if text.strip("\n") or in_paragraph:
                out.append(html.escape(text).replace("\n", "<br>\n"))
        elif event == "whole":
            out.append(_whole_html(rich, span, text, dialect))
        else:
            if span.style in {"paragraph", "heading"}:
                in_paragraph = event == "begin"
            out.append(_tag(span, event == "begin", dialect))
    return "".join(out)


def _tag(span: Span, is_start: bool, dialect: Dialect) -> str:
    if span.style == "paragraph":
        return "" if span.value else ("<p>" if is_start else "</p>\n")
    if span.style == "link":
        if not span.value.startswith((*dialect.schemes, "mailto:")):
            return "" if is_start else html.escape(f" ({span.value})")
        return f'<a href="{html.escape(span.value)}">' if is_start else "</a>"
    tag = _TAGS[span.style].format(span.value)
    if not is_start:
        return f"</{tag}>" + ("" if span.style in INLINE else "\n")
    number = span.value.rstrip(".) ")
    value = f' value="{number}"' if span.style == "item" and number.isdigit() else ""
    return f"<{tag}{value}>" + ("\n" if span.style in {"quote", "list"} else "")


def _whole_html(rich: RichText, span: Span, text: str, dialect: Dialect) -> str:
    match span.style:
        case "code":
            return f"<code>{html.escape(text)}</code>"
        case "pre":
            language = f' class="language-{html.escape(span.value)}"' if span.value else ""
            return f"<pre><code{language}>{html.escape(text)}\n</code></pre>\n"
        case "rule":
            return "<hr>\n"
    aligns = span.value.split(",")
    rows = []
    for number, row in enumerate(_cells(rich, span)):
        tag = "td" if number else "th"
        cells = [
            f'<{tag} style="text-align: {align}">{_html(cell, dialect)}</{tag}>'
            for cell, align in zip(row, [*aligns, *["left"] * len(row)], strict=False)
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>\n")
    return f"{_TABLE}\n{''.join(rows)}</table>\n"
