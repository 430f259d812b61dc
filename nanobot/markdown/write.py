"""Writes parsed Markdown in any dialect, in one pass: a `Style` has the formatting, entities mark ranges of the text.

No content is dropped: HTML without formatting stays as it is, a URL that cannot be a link follows its text, a picture
becomes its description and URL.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanobot.markdown.measures import utf16_units
from nanobot.markdown.parse import TAG, paired_tags, parse
from nanobot.markdown.tables import align_rows

if TYPE_CHECKING:
    from markdown_it.token import Token

_MARKS = {"strong": "bold", "em": "italic", "s": "strikethrough"}
_TASK = re.compile(r"\[([ xX])\](?=\s)")
_RULE = "———"


@dataclass(frozen=True, slots=True)
class Style:
    """The formatting of a dialect. `marks`: the text before and after bold, italic, code..."""

    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    escape: Callable[[str], str] = str
    escape_code: Callable[[str], str] = str
    bullets: Sequence[str] = ("• ", "◦ ", "▪ ")
    quote: str = "> "
    link: tuple[str, str] | None = None
    """The text around a link's text, with `{url}`; None to write the URL in brackets after the text."""
    schemes: tuple[str, ...] = ("http://", "https://")
    fence: Callable[[str, str], str] = lambda code, _: code
    inline_code: Callable[[str], str] = str
    heading_marks: bool = False
    """Whether headings are written with #."""
    edge: str = ""
    """Separates a mark from an adjacent letter, on platforms that need a word boundary there."""
    entities: bool = False
    """Whether entities mark links, code and quotes, so that the text needs no markup."""


@dataclass(frozen=True, slots=True)
class Entity:
    """The formatting of a range of the text, in UTF-16 units (core.telegram.org/bots/api#messageentity)."""

    type: str
    offset: int
    length: int
    url: str | None = None
    language: str | None = None


def write(markdown: str, style: Style) -> tuple[str, tuple[Entity, ...]]:
    """Write a text in this style. Return it with its entities."""
    writer = _Writer(style)
    writer.blocks(parse(markdown))
    return "".join(writer.out), tuple(writer.entities)


class _Writer:
    """Collects the output. Lines begin with the prefixes of the quotes and lists around them."""

    def __init__(self, style: Style) -> None:
        self.out: list[str] = []
        self.entities: list[Entity] = []
        self._style = style
        self._size = 0
        self._newlines = 0
        self._prefixes: list[str] = []
        self._lists: list[int | None] = []
        self._tight: list[bool] = []
        self._open: list[tuple[str, int, str | None]] = []
        self._plain_depth = 0
        self._closed = False
        self._ended_at = -1

    # -- blocks

    def blocks(self, tokens: "Sequence[Token]") -> None:
        """Write these blocks."""
        number = 0
        while number < len(tokens):
            token = tokens[number]
            if token.type == "table_open":
                end = next(index for index in range(number, len(tokens)) if tokens[index].type == "table_close")
                self._table(tokens[number:end])
                number = end
            else:
                step = _STEPS.get(token.type)
                if step is not None:
                    step(self, token)
            number += 1

    def paragraph(self, token: "Token") -> None:
        """Start a paragraph."""
        self._gap(1 if token.hidden or (self._tight and self._tight[-1]) else 2)
        self._ended_at = token.map[1] if token.map else -1

    def heading(self, token: "Token") -> None:
        """Start a heading: bold, or with #."""
        self._gap(2)
        level = int(token.tag[1])
        if self._style.heading_marks and level <= 3:
            self._put("#" * level + " ")
        else:
            self.open("bold")
        self._plain_depth += 1

    def heading_end(self, token: "Token") -> None:
        """End a heading."""
        self._plain_depth -= 1
        if not (self._style.heading_marks and int(token.tag[1]) <= 3):
            self.close("bold")

    def inline(self, token: "Token") -> None:
        """Write the content of a paragraph or heading."""
        self._inline(token.children or [])

    def rule(self, _: "Token") -> None:
        """Write a horizontal rule."""
        self._gap(2)
        self._put(_RULE)

    def fence(self, token: "Token") -> None:
        """Write a code block without indentation, which would be copied with it."""
        language = token.info.split()[0] if token.info.strip() else ""
        self._code(token.content.removesuffix("\n"), language)

    def list_open(self, token: "Token") -> None:
        """Start a list."""
        follows_at_once = token.map is not None and token.map[0] == self._ended_at
        if self._newlines >= 0:  # otherwise its first item continues the line
            self._gap(1 if self._lists or follows_at_once else 2)
        start = token.attrGet("start")
        self._lists.append(int(start or 1) if token.type.startswith("ordered") else None)
        if token.type.startswith("ordered") and start == 0:
            self._lists[-1] = 0

    def list_close(self, _: "Token") -> None:
        """End a list."""
        self._lists.pop()

    def item_open(self, token: "Token") -> None:
        """Start an item: write its bullet, and indent what follows."""
        self._gap(1)
        bullets = self._style.bullets
        number = self._lists[-1]
        if number is None:
            depth = self._lists.count(None) - 1
            marker = bullets[min(depth, len(bullets) - 1)]
        else:
            marker = f"{token.info or number}{token.markup} "
        self._put(marker)
        self._prefixes.append(" " * len(marker))
        self._tight.append(True)
        self._newlines = -1  # the first block continues the line of its bullet

    def item_close(self, _: "Token") -> None:
        """End an item."""
        self._flush()
        self._prefixes.pop()
        self._tight.pop()

    def quote_open(self, _: "Token") -> None:
        """Start a quote."""
        self._gap(2)
        self._flush()
        self._put(self._style.quote)
        self._prefixes.append(self._style.quote)
        self._tight.append(False)
        self._newlines = -1
        is_inner = any(kind == "blockquote" for kind, *_ in self._open)
        self._open.append(("" if is_inner else "blockquote", self._size, None))

    def quote_close(self, _: "Token") -> None:
        """End a quote."""
        self._flush()
        self._prefixes.pop()
        self._tight.pop()
        self.close(self._open[-1][0])

    def _table(self, tokens: "Sequence[Token]") -> None:
        rows: list[list[Token]] = []
        aligns: list[str] = []
        for token in tokens:
            if token.type == "tr_open":
                rows.append([])
            elif token.type == "inline":
                rows[-1].append(token)
            elif token.type == "th_open":
                aligns.append(str(token.attrGet("style") or "left").rpartition(":")[2])
        cells = [[self._cell(cell) for cell in row] for row in rows]
        text = align_rows(cells, aligns)
        if text is not None:
            self._code(text, "")
            return
        for number, row in enumerate(rows[1:]):
            for column, cell in enumerate(row):
                self._gap(2 if column == 0 and number else 1)
                self.open("bold")
                self._put(self._style.escape(cells[0][column]) + ":")
                self.close("bold")
                self._put(" ")
                self._inline(cell.children or [])
        if len(rows) == 1:
            self._gap(2)
            self._put(self._style.escape(" | ".join(cells[0])))

    def _cell(self, cell: "Token") -> str:
        writer = _Writer(Style())
        writer._inline(cell.children or [])
        return "".join(writer.out).strip()

    def _code(self, code: str, language: str) -> None:
        self._gap(2)
        prefixes = self._prefixes
        self._prefixes = [prefix for prefix in prefixes if prefix.strip()]
        self._flush()
        start = self._size
        self._put(self._style.fence(self._style.escape_code(code), language))
        self._add_entity("pre", start, language=language or None)
        self._prefixes = prefixes

    # -- inside a line

    def _inline(self, tokens: "Sequence[Token]") -> None:
        tags = paired_tags(tokens)
        links: list[str] = []
        for number, token in enumerate(tokens):
            if token.type == "text":
                text = token.content
                if number == 0 and self._lists and (task := _TASK.match(text)):
                    text = ("☐" if task[1] == " " else "☑") + text[3:]
                self._put(self._style.escape(text))
            elif token.type in {"softbreak", "hardbreak"}:
                self._break()
            elif token.type == "code_inline":
                self._mono(token.content)
            elif token.type == "link_open":
                links.append(str(token.attrGet("href") or ""))
                self._link_open(links[-1], token.markup == "autolink")
            elif token.type == "link_close":
                self._link_close(links.pop())
            elif token.type == "image":
                self._image(token)
            elif token.type == "html_inline":
                self._html(token.content, tags.get(number))
            elif token.nesting and (kind := _MARKS.get(token.tag)):
                (self.open if token.nesting > 0 else self.close)(kind)

    def _html(self, text: str, kind: str | None) -> None:
        tag = TAG.match(text)
        if tag is not None and tag[2].lower() == "br":
            self._break()
        elif kind is None or tag is None:
            self._put(self._style.escape(text))
        elif kind:
            (self.close if tag[1] else self.open)(kind)

    def _mono(self, code: str) -> None:
        self._flush()
        start = self._size
        self._put(self._edge() + self._style.inline_code(self._style.escape_code(code)))
        self._closed = True
        self._add_entity("code", start)

    def _link_open(self, url: str, is_bare: bool = False) -> None:
        if is_bare and not self._style.entities:
            self.open("")  # the platform makes bare URLs links itself
        elif url.startswith(self._style.schemes):
            if self._style.link is not None:
                self._put(self._style.link[0].replace("{url}", _escape_url(url)))
            self.open("text_link", url)
        else:
            self.open("")

    def _link_close(self, url: str) -> None:
        kind, start, _ = self._open[-1]
        if kind == "text_link":
            if self._size == start:
                self._put(self._style.escape(url))  # a link without a text
            if self._style.link is not None:
                self._put(self._style.link[1].replace("{url}", _escape_url(url)))
        text = self._text_since(start)
        self.close(kind)
        is_link = kind == "text_link" and (self._style.link is not None or self._style.entities)
        if not is_link and url and text not in {url, url.removeprefix("mailto:")}:
            self._put(self._style.escape(f" ({url})" if text else url))

    def _image(self, token: "Token") -> None:
        url = str(token.attrGet("src") or "")
        self._put("🖼 ")
        self._link_open(url)
        self._put(self._style.escape(token.content))
        self._link_close(url)

    def _text_since(self, start: int) -> str:
        """The text written since this offset."""
        parts: list[str] = []
        size = self._size
        for part in reversed(self.out):
            if size <= start:
                break
            parts.append(part)
            size -= utf16_units(part)
        return "".join(reversed(parts))

    def open(self, kind: str, url: str | None = None) -> None:
        """Open a mark."""
        self._flush()
        if self._is_needed(kind):
            before = self._style.marks.get(kind, ("", ""))[0]
            self._put(self._edge() + before if before else "")
        self._open.append((kind, self._size, url))

    def close(self, kind: str) -> None:
        """Close the innermost mark of this kind."""
        index = max((index for index, mark in enumerate(self._open) if mark[0] == kind), default=-1)
        if index < 0:
            return
        _, start, url = self._open.pop(index)
        if kind and self._is_needed(kind):
            self._put(closing_mark := self._style.marks.get(kind, ("", ""))[1])
            self._closed = bool(closing_mark)
            self._add_entity(kind, start, url=url)

    def _is_needed(self, kind: str) -> bool:
        """Whether a mark has an effect: bold within bold or within a heading has none."""
        if kind == "bold" and self._plain_depth:
            return False
        return all(kind != mark[0] for mark in self._open)

    def _edge(self) -> str:
        last = self.out[-1][-1:] if self.out else ""
        return self._style.edge if last.isalnum() else ""

    def _break(self) -> None:
        """Break a line within a paragraph; marks that cannot span lines are closed and reopened."""
        if self._style.link is not None and any(mark[0] == "text_link" for mark in self._open):
            self._put(" ")  # a link's text is one line
            return
        marks = [mark[0] for mark in self._open if mark[0] in self._style.marks] if self._style.edge else []
        for kind in reversed(marks):
            self._put(self._style.marks[kind][1])
        self._gap(1)
        for kind in marks:
            self._put(self._style.marks[kind][0])

    # -- the text so far

    def _gap(self, newlines: int) -> None:
        if self._newlines < 0:
            self._newlines = 0
        elif self.out:
            self._newlines = max(self._newlines, newlines)

    def _flush(self) -> None:
        newlines, self._newlines = max(self._newlines, 0), 0
        if newlines:
            prefix = "".join(self._prefixes)
            self._add(("\n" + prefix.rstrip()) * (newlines - 1) + "\n" + prefix)

    def _put(self, text: str) -> None:
        if not text:
            return
        needs_edge = self._closed and self._newlines <= 0 and text[0].isalnum()
        self._closed = False
        self._flush()
        prefix = "".join(self._prefixes)
        self._add((self._style.edge if needs_edge else "") + text.replace("\n", "\n" + prefix))

    def _add(self, text: str) -> None:
        if text:
            self.out.append(text)
            self._size += utf16_units(text)

    def _add_entity(self, kind: str, start: int, url: str | None = None, language: str | None = None) -> None:
        if self._style.entities and self._size > start:
            self.entities.append(Entity(kind, start, self._size - start, url, language))


_STEPS: "Mapping[str, Callable[[_Writer, Token], None]]" = {
    "paragraph_open": _Writer.paragraph, "heading_open": _Writer.heading, "heading_close": _Writer.heading_end,
    "inline": _Writer.inline, "hr": _Writer.rule, "fence": _Writer.fence, "bullet_list_open": _Writer.list_open,
    "ordered_list_open": _Writer.list_open, "bullet_list_close": _Writer.list_close,
    "ordered_list_close": _Writer.list_close, "list_item_open": _Writer.item_open,
    "list_item_close": _Writer.item_close, "blockquote_open": _Writer.quote_open,
    "blockquote_close": _Writer.quote_close,
}  # fmt: skip


def _escape_url(url: str) -> str:
    """Escape characters that would end a link."""
    return url.replace("(", "%28").replace(")", "%29").replace("|", "%7C").replace(">", "%3E")
