"""Parses Markdown into tokens without losing text: constructs that drop text are disabled or restored."""

import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_TAGS = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "del": "strikethrough", "strike": "strikethrough", "code": "mono", "kbd": "mono", "sub": "",
    "sup": "", "span": "", "p": "", "div": "", "center": "", "font": "", "small": "", "details": "", "summary": "bold",
}  # fmt: skip
"""HTML tags that models use for formatting, with the style of each."""
TAG = re.compile(r"<(/?)([A-Za-z]+)(?:\s[^<>]*)?(/?)>\Z")
"""Groups: `/` of an end tag, the name, `/` of an empty tag."""
_BOLD = re.compile(r"\*\*(?=[^\s*])([^*\n]*[^\s*])\*\*")
_BRACKETS = 200
"""With more unlinked brackets links are disabled, since they would take the parser seconds."""


@cache
def parser(*, links: bool = True) -> "MarkdownIt":
    """Return a parser without reference definitions and indented code, which would lose text."""
    from markdown_it import MarkdownIt  # 100 ms that only the first answer pays for

    new_parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 300})
    new_parser.enable(["table", "strikethrough"]).disable(["code", "reference", "html_block"])
    return new_parser if links else new_parser.disable(["link", "image"])


def parse(markdown: str) -> "list[Token]":
    """Parse a text. Surplus cells of a table row are added to its last cell."""
    tokens = parser(links=markdown.count("[") - markdown.count("](") <= _BRACKETS).parse(markdown)
    source = markdown.split("\n")
    columns, extra, cell = 0, "", None
    for token in tokens:
        if token.type == "thead_open":
            columns = 0
        elif token.type == "th_open":
            columns += 1
        elif token.type == "tr_open":
            extra = _cells_beyond(source, token, columns)
        elif token.type == "inline":
            cell = token
            if "**" in token.content and "\\" not in token.content:
                token.children = _bold_beside_letters(token.children or [])
        elif token.type == "tr_close" and extra and cell is not None:
            cell.children = [*(cell.children or []), _text_token(f" | {extra}")]
    return tokens


def paired_tags(tokens: "Sequence[Token]") -> dict[int, str]:
    """The indexes of matching start and end tags, with their style."""
    open_tags: dict[str, list[int]] = {}
    pairs: dict[int, str] = {}
    for number, token in enumerate(tokens):
        tag = TAG.match(token.content) if token.type == "html_inline" else None
        if tag is None or tag[3] or (name := tag[2].lower()) not in _TAGS:
            continue
        if not tag[1]:
            open_tags.setdefault(name, []).append(number)
        elif open_tags.get(name):
            pairs[number] = pairs[open_tags[name].pop()] = _TAGS[name]
    return pairs


def safe_tag(text: str, is_paired: bool) -> tuple[str, bool]:
    """Return a known, paired tag without attributes and True; any other unchanged and False."""
    tag = TAG.match(text)
    name = tag[2].lower() if tag else ""
    if tag is not None and (name == "br" or (is_paired and name in _TAGS)):
        return f"<{tag[1]}{name}>", True
    return text, False


def _cells_beyond(source: list[str], row: "Token", columns: int) -> str:
    """The text of a row's surplus cells, which the parser drops."""
    if not columns or row.map is None:
        return ""
    cells = re.split(r"(?<!\\)\|", source[row.map[0]].strip().removeprefix("|"))
    return " | ".join(cell.strip() for cell in cells[columns:]).strip(" |") if len(cells) > columns else ""


def _bold_beside_letters(tokens: "list[Token]") -> "list[Token]":
    """Restore bold that ends in punctuation before a letter (`**「重点」**内容`), which CommonMark misses."""
    from markdown_it.token import Token  # see parser

    result: list[Token] = []
    for token in tokens:
        if token.type != "text" or "**" not in token.content:
            result.append(token)
            continue
        for number, text in enumerate(_BOLD.split(token.content)):
            if number % 2:
                result += [Token("strong_open", "strong", 1), _text_token(text), Token("strong_close", "strong", -1)]
            elif text:
                result.append(_text_token(text))
    return result


def _text_token(text: str) -> "Token":
    from markdown_it.token import Token  # see parser

    return Token("text", "", 0, content=text)
