"""Converts a body from the web to text: the article of a page as Markdown, JSON indented, plain text as it is.

A page may be made to take forever to process. So its length, tags and nesting are limited before any library sees it.
Everything here blocks: call it in a thread.
"""

import codecs
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lxml.html import HtmlElement

_MAX_HTML_CHARS = 1_500_000
"""Characters of a page, without scripts and styles."""
_MAX_TAGS = 16_000
_MAX_TOTAL_DEPTH = 600_000
"""The depths of all elements together: beyond it only the plain text is extracted, in one pass."""
_MAX_LIST_ITEMS = 1000
"""Items of a numbered list, rows of a table's head."""
_MAX_JSON_BYTES = 512 * 1024
_HIDDEN = (
    *(
        (re.compile(rf"<{name}\b", re.IGNORECASE), re.compile(rf"</{name}\s*>", re.IGNORECASE))
        for name in ("script", "style", "svg")
    ),
    (re.compile("<!--"), re.compile("-->")),
)
_INLINE_DATA = re.compile(r"data:[\w/+.;=-]{1,100},[^\"'\s>)]{100,}")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ALIASES = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""Labels that pages use for a different encoding: https://encoding.spec.whatwg.org."""
_ENCODINGS = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp\d{3,4}|iso8859-\d+|koi8-[ru]|euc_\w+|gb\w+|big5\w*|iso2022_\w+|mac-\w+"
)
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|li|main|nav|"
    r"ol|option|p|pre|section|table|t[dhr]|ul"
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
    from lxml import etree  # with the next imports 150 ms, once, in a thread
    from lxml import html as lxml_html

    html, cut = _limit(html)
    try:
        tree = lxml_html.document_fromstring(html)
    except (etree.ParserError, ValueError):  # empty; or an encoding declaration, which lxml wants in bytes
        try:
            tree = lxml_html.document_fromstring(html.encode(), parser=lxml_html.HTMLParser(encoding="utf-8"))
        except (etree.ParserError, ValueError):
            return Page("", "page", cut)
    title = " ".join((tree.findtext(".//title") or "").split())[:300]
    whole = _extract_text(tree)
    text, extractor = whole, "page"
    if _depth(tree) <= _MAX_TOTAL_DEPTH:
        with suppress(Exception):  # two libraries, and any page: the plain text is the fallback
            text, extractor = _article(html, tree, whole, url, markdown)
    if title and not any(title == line.lstrip("# ") for line in text[:1000].splitlines()):
        text = f"{'# ' if markdown else ''}{title}\n\n{text}"
    return Page(text.strip(), extractor, cut)


def _article(html: str, tree: "HtmlElement", whole: str, url: str, markdown: bool) -> tuple[str, str]:
    """Return the article of a page; or all of it, if the article is only a small part."""
    from lxml import html as lxml_html
    from readability import Document

    logging.getLogger("readability").setLevel(logging.CRITICAL)  # failures come as exceptions
    article = lxml_html.fromstring(Document(html, url=url).summary(html_partial=True))
    text = _extract_text(article)
    extractor = "readability"
    if len(text) < 200 or len(text) < len(whole) / 10:
        tree.make_links_absolute(url, handle_failures="discard")
        body = tree.find(".//body")
        text, extractor, article = whole, "page", tree if body is None else body
    return (_markdown(article) if markdown else text), extractor


def _markdown(tree: "HtmlElement") -> str:
    from lxml import html as lxml_html
    from markdownify import markdownify

    _simplify(tree)
    html = lxml_html.tostring(tree, encoding="unicode")
    text = str(markdownify(html, heading_style="ATX", bullets="-", strip=["noscript"]))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines()))


def _simplify(tree: "HtmlElement") -> None:
    """Limit what takes markdownify quadratic time (long lists and heads), and the width of cells."""
    for cell in tree.iter("td", "th"):
        if not re.fullmatch(r"[1-9][0-9]?", cell.get("colspan", "1")):
            del cell.attrib["colspan"]
    for name, item, plainer in (("ol", "li", "ul"), ("thead", "tr", "tbody")):
        for item_parent in [
            element for element in tree.iter(name) if len(element.findall(f".//{item}")) > _MAX_LIST_ITEMS
        ]:
            item_parent.tag = plainer


def _limit(html: str) -> tuple[str, bool]:
    """Return the page without hidden parts, cut to the limits, and whether it was cut."""
    html = html.replace("\0", "")
    for opening, closing in _HIDDEN:
        html = "".join(_remove(html, opening, closing))
    html = _INLINE_DATA.sub("data:,", html)
    kept = html[:_MAX_HTML_CHARS]
    end = -1
    for _ in range(_MAX_TAGS):
        end = kept.find("<", end + 1)
        if end < 0:
            return kept, len(kept) < len(html)
    return kept[:end], True


def _remove(html: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> Iterator[str]:
    """Yield what is outside of these tags, in one pass, also if a tag is never closed."""
    at = 0
    while begin := opening.search(html, at):
        yield html[at : begin.start()]
        end = closing.search(html, begin.end())
        if end is None:
            return
        at = end.end()
    yield html[at:]


def _depth(tree: "HtmlElement") -> int:
    from lxml.etree import iterwalk

    total = depth = 0
    for event, _ in iterwalk(tree, events=("start", "end")):
        depth += 1 if event == "start" else -1
        total += depth if event == "start" else 0
    return total


def _extract_text(tree: "HtmlElement") -> str:
    """Return the text, a line per block. One pass, however deep the page is."""
    from lxml.etree import iterwalk

    pieces: list[str] = []
    for event, element in iterwalk(tree, events=("start", "end", "comment", "pi")):
        tag = element.tag if isinstance(element.tag, str) else ""
        if _BLOCKS.fullmatch(tag):
            pieces.append("\n")
        if event == "start" and tag not in ("title", "noscript"):
            pieces.append(" ".join((element.text or "").split(" ")))
        elif event != "start":
            pieces.append(element.tail or "")
    lines = (" ".join(line.split()) for line in "".join(pieces).split("\n"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
