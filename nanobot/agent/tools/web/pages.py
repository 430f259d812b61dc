"""What a body from the web says, as text: the article of a page as Markdown, JSON set out, plain text as it is.

A page may be made to take for ever. So what is taken of it is bounded before anything clever looks: its length, its
tags, and how deep they stand in one another. Everything here blocks: call it in a thread.
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

_MOST_HTML = 1_500_000
"""Characters of a page, without scripts and styles."""
_MOST_TAGS = 16_000
_MOST_DEPTH = 600_000
"""How deep all elements of a page stand, together: above it only the plain text is taken, which is one walk."""
_LONGEST_LIST = 1000
"""Numbered lines of a list, rows of the head of a table."""
_MOST_JSON = 512 * 1024
_HIDDEN = (
    *(
        (re.compile(rf"<{name}\b", re.IGNORECASE), re.compile(rf"</{name}\s*>", re.IGNORECASE))
        for name in ("script", "style", "svg")
    ),
    (re.compile("<!--"), re.compile("-->")),
)
_INLINE_DATA = re.compile(r"data:[\w/+.;=-]{1,100},[^\"'\s>)]{100,}")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([\w:.-]{2,40})", re.IGNORECASE)
_MARKS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_ALIKE = {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030", "shift_jis": "cp932"}
"""What pages call one thing and mean another: https://encoding.spec.whatwg.org."""
_ENCODINGS = re.compile(
    r"utf-8|utf-16(-[lb]e)?|cp\d{3,4}|iso8859-\d+|koi8-[ru]|euc_\w+|gb\w+|big5\w*|iso2022_\w+|mac-\w+"
)
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|li|main|nav|"
    r"ol|option|p|pre|section|table|t[dhr]|ul"
)


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a body, and what made it: readability, page (all of it), json, text."""

    text: str
    extractor: str
    cut: bool = False
    """Whether there was more than was looked at."""


def read_body(body: bytes, content_type: str, header: str, *, url: str, markdown: bool, limit: int) -> Page | None:
    """The text of a body, of which `limit` characters are wanted; None of one that is no text. Never raises.

    `header` is its Content-Type as the server wrote it, and `content_type` the first word of it.
    """
    kind = content_type or _sniffed(body)
    if kind in ("text/html", "application/xhtml+xml"):
        return _read_html(_decoded(body, header, html=True), url, markdown)
    if kind.endswith(("/json", "+json")):
        return _read_json(body, header, limit)
    textual = kind.startswith("text/") or kind.endswith(("/xml", "+xml", "/javascript", "/x-javascript", "/yaml"))
    if not textual or (b"\0" in body[:1024] and not _mark(body)):
        return None
    return _plain(body, header, limit)


def _sniffed(body: bytes) -> str:
    head = body[:1024].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "text/html"
    return "text/plain" if b"\0" not in head or _mark(body) else "application/octet-stream"


def _plain(body: bytes, header: str, limit: int) -> Page:
    enough = 4 * limit + 4
    return Page(_decoded(body[:enough], header), "text", len(body) > enough)


def _read_json(body: bytes, header: str, limit: int) -> Page:
    if len(body) <= _MOST_JSON:
        try:
            return _set_out(json.loads(body), limit)
        except (ValueError, RecursionError):
            pass
    plain = _plain(body, header, limit)
    return Page(plain.text, "json", plain.cut)


def _set_out(value: object, limit: int) -> Page:
    """As much of it as is wanted: a line deep in a hundred brackets is a thousand spaces."""
    pieces: list[str] = []
    size = 0
    for piece in json.JSONEncoder(ensure_ascii=False, indent=2).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > limit:
            break
    return Page("".join(pieces), "json", size > limit)


def _mark(body: bytes) -> str:
    return next((name for mark, name in _MARKS if body.startswith(mark)), "")


def _decoded(body: bytes, header: str, *, html: bool = False) -> str:
    """Its text: as its first bytes, its header or a page's own head say, else UTF-8, else as the old web wrote."""
    said = _CHARSET.search(header) or (_CHARSET.search(body[:2048].decode("latin-1")) if html else None)
    named = _mark(body) or (_encoding(said[1]) if said else "")
    if named:
        return body.decode(named, "replace")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        is_cut_off = error.start >= len(body) - 4  # in the middle of a letter
        return body.decode("utf-8" if is_cut_off else "cp1252", "replace")


def _encoding(label: str) -> str:
    """Our name for it, if it is one that texts are written in: Python knows stranger ones."""
    try:
        name = codecs.lookup(label).name
    except LookupError:
        return ""
    name = _ALIKE.get(name, name)
    return name if _ENCODINGS.fullmatch(name) else ""


def _read_html(html: str, url: str, markdown: bool) -> Page:
    from lxml import etree  # with what follows 150 ms, once, in a thread
    from lxml import html as lxml_html

    html, cut = _bounded(html)
    try:
        tree = lxml_html.document_fromstring(html)
    except (etree.ParserError, ValueError):  # nothing in it; or a declaration of an encoding, which it wants in bytes
        try:
            tree = lxml_html.document_fromstring(html.encode(), parser=lxml_html.HTMLParser(encoding="utf-8"))
        except (etree.ParserError, ValueError):
            return Page("", "page", cut)
    title = " ".join((tree.findtext(".//title") or "").split())[:300]
    whole = _text_of(tree)
    text, extractor = whole, "page"
    if _depth(tree) <= _MOST_DEPTH:
        with suppress(Exception):  # two libraries, and any page: the plain text of it is there already
            text, extractor = _article(html, tree, whole, url, markdown)
    if title and not any(title == line.lstrip("# ") for line in text[:1000].splitlines()):
        text = f"{'# ' if markdown else ''}{title}\n\n{text}"
    return Page(text.strip(), extractor, cut)


def _article(html: str, tree: "HtmlElement", whole: str, url: str, markdown: bool) -> tuple[str, str]:
    """The article of a page; or all of it, where what looks like one is but a small part."""
    from lxml import html as lxml_html
    from readability import Document

    logging.getLogger("readability").setLevel(logging.CRITICAL)  # what it cannot make out is told by its exceptions
    article = lxml_html.fromstring(Document(html, url=url).summary(html_partial=True))
    text = _text_of(article)
    extractor = "readability"
    if len(text) < 200 or len(text) < len(whole) / 10:
        tree.make_links_absolute(url, handle_failures="discard")
        body = tree.find(".//body")
        text, extractor, article = whole, "page", tree if body is None else body
    return (_markdown(article) if markdown else text), extractor


def _markdown(tree: "HtmlElement") -> str:
    from lxml import html as lxml_html
    from markdownify import markdownify

    _make_bearable(tree)
    html = lxml_html.tostring(tree, encoding="unicode")
    text = str(markdownify(html, heading_style="ATX", bullets="-", strip=["noscript"]))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines()))


def _make_bearable(tree: "HtmlElement") -> None:
    """Markdown of a list or a head takes as long as their length squared, and a cell as much room as it claims."""
    for cell in tree.iter("td", "th"):
        if not re.fullmatch(r"[1-9][0-9]?", cell.get("colspan", "1")):
            del cell.attrib["colspan"]
    for name, item, plainer in (("ol", "li", "ul"), ("thead", "tr", "tbody")):
        for long in [one for one in tree.iter(name) if len(one.findall(f".//{item}")) > _LONGEST_LIST]:
            long.tag = plainer


def _bounded(html: str) -> tuple[str, bool]:
    """The page without what nobody reads, as much of it as is looked at; and whether there was more."""
    html = html.replace("\0", "")
    for opening, closing in _HIDDEN:
        html = "".join(_between(html, opening, closing))
    html = _INLINE_DATA.sub("data:,", html)
    kept = html[:_MOST_HTML]
    end = -1
    for _ in range(_MOST_TAGS):
        end = kept.find("<", end + 1)
        if end < 0:
            return kept, len(kept) < len(html)
    return kept[:end], True


def _between(html: str, opening: re.Pattern[str], closing: re.Pattern[str]) -> Iterator[str]:
    """What stands outside of these: one walk, also where nothing ever closes."""
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


def _text_of(tree: "HtmlElement") -> str:
    """Its words, a line a block. One walk, however deep it is."""
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
