"""Converts a body from the web to text: the article of a page as Markdown, JSON indented, plain text as it is.

Everything here blocks: call it in a thread.
"""

import codecs
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lxml.html import HtmlElement

_MAX_JSON_BYTES = 512 * 1024
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ALIASES = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""Labels that pages use for a different encoding: https://encoding.spec.whatwg.org."""
_ENCODINGS = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp\d{3,4}|iso8859-\d+|koi8-[ru]|euc_\w+|gb\w+|big5\w*|iso2022_\w+|mac-\w+"
)


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a body, and its source: readability, page (all of it), json, text."""

    text: str
    extractor: str
    cut: bool = False
    """Whether the body was longer than what was read."""


def read_body(body: bytes, content_type: str, header: str, *, url: str, markdown: bool, limit: int) -> Page | None:
    """Return about `limit` characters of a body's text; None if it is not text. Never raises.

    `header` is the server's Content-Type, and `content_type` its media type.
    """
    kind = content_type or _sniff_type(body)
    if kind in ("text/html", "application/xhtml+xml"):
        return _read_html(_decode(body, header, html=True), url, markdown)
    if kind.endswith(("/json", "+json")):
        return _read_json(body, header, limit)
    textual = kind.startswith("text/") or kind.endswith(("/xml", "+xml", "/javascript", "/x-javascript", "/yaml"))
    if not textual or (b"\0" in body[:1024] and not _bom_encoding(body)):
        return None
    return _plain_text(body, header, limit)


def _sniff_type(body: bytes) -> str:
    head = body[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "text/html"
    return "text/plain" if b"\0" not in head or _bom_encoding(body) else "application/octet-stream"


def _plain_text(body: bytes, header: str, limit: int) -> Page:
    enough = 4 * limit + 4
    return Page(_decode(body[:enough], header), "text", len(body) > enough)


def _read_json(body: bytes, header: str, limit: int) -> Page:
    if len(body) <= _MAX_JSON_BYTES:
        try:
            return _format_json(json.loads(body), limit)
        except (ValueError, RecursionError):
            pass
    plain = _plain_text(body, header, limit)
    return Page(plain.text, "json", plain.cut)


def _format_json(value: object, limit: int) -> Page:
    """Format as much as wanted: a deeply nested line has a thousand spaces."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            break
    return Page("".join(pieces), "json", size > limit)


def _bom_encoding(body: bytes) -> str:
    return next((name for mark, name in _BOMS if body.startswith(mark)), "")


def _decode(body: bytes, header: str, *, html: bool = False) -> str:
    """Decode by BOM, header or the page's own head; else as UTF-8, else as Windows-1252."""
    charset = _CHARSET.search(header) or (_CHARSET.search(body[:2048].decode("latin-1")) if html else None)
    encoding = _bom_encoding(body) or (_encoding(charset[1]) if charset else "")
    if encoding:
        return body.decode(encoding, "replace")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        is_cut_off = error.start >= len(body) - 4  # within a character
        return body.decode("utf-8" if is_cut_off else "cp1252", "replace")


def _encoding(label: str) -> str:
    """Return Python's name of a text encoding, empty for others: Python knows stranger ones."""
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    name = _ALIASES.get(name, name)
    return name if _ENCODINGS.fullmatch(name) else ""


def _read_html(html: str, url: str, markdown: bool) -> Page:
    from nanobot.utils.html import extract_text, is_too_deep, limit_html, parse_html  # with the first page

    html, cut = limit_html(html)
    tree = parse_html(html)
    if tree is None:
        return Page("", "page", cut)
    title = " ".join((tree.findtext(".//title") or "").split())[:300]
    whole = extract_text(tree)
    text, extractor = whole, "page"
    if not is_too_deep(tree):
        with suppress(Exception):  # two libraries, and any page: the plain text is the fallback
            text, extractor = _article(html, tree, whole, url, markdown)
    if title and not any(title == line.lstrip("# ") for line in text[:1000].splitlines()):
        text = f"{'# ' if markdown else ''}{title}\n\n{text}"
    return Page(text.strip(), extractor, cut)


def _article(html: str, tree: "HtmlElement", whole: str, url: str, markdown: bool) -> tuple[str, str]:
    """Return the article of a page; or all of it, if the article is only a small part."""
    from lxml import html as lxml_html
    from readability import Document

    from nanobot.utils.html import extract_text, to_markdown

    logging.getLogger("readability").setLevel(logging.CRITICAL)  # failures come as exceptions
    article = lxml_html.fromstring(Document(html, url=url).summary(html_partial=True))
    text = extract_text(article)
    extractor = "readability"
    if len(text) < 200 or len(text) < len(whole) / 10:
        tree.make_links_absolute(url, handle_failures="discard")
        body = tree.find(".//body")
        text, extractor, article = whole, "page", tree if body is None else body
    return (to_markdown(article) if markdown else text), extractor
