"""Converts HTML of pages and mails to Markdown or plain text. Everything here blocks: call it in a thread.

HTML may be made to take forever to process. So its length, tags and nesting are limited before any library sees it.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lxml.html import HtmlElement

_MAX_CHARS = 1_500_000
"""Characters of a page, without scripts and styles."""
_MAX_TAGS = 16_000
_MAX_TOTAL_DEPTH = 600_000
"""The depths of all elements together: beyond it only the plain text is extracted, in one pass."""
_MAX_LIST_ITEMS = 1000
"""Items of a numbered list, rows of a table's head."""
_NOT_TEXT = (
    *(
        (re.compile(rf"<{name}\b", re.IGNORECASE), re.compile(rf"</{name}\s*>", re.IGNORECASE))
        for name in ("script", "style", "svg")
    ),
    (re.compile("<!--"), re.compile("-->")),
)
_INLINE_DATA = re.compile(r"data:[\w/+.;=-]{1,100},[^\"'\s>)]{100,}")
_BLOCKS = re.compile(
    r"address|article|aside|blockquote|br|d[dlt]|div|fieldset|figcaption|figure|footer|form|h[1-6]|header|hr|li|main|nav|"
    r"ol|option|p|pre|section|table|t[dhr]|ul"
)
_INVISIBLE_STYLE = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?<![-\w])(?:font-size|max-height|opacity)\s*:\s*0(?![.\d]*[1-9])|mso-hide\s*:\s*all",
    re.IGNORECASE,
)
_INVISIBLE_TAGS = {"head", "title", "template", "noscript", "object", "math", "select", "textarea"}
_INVISIBLE_CHARS = re.compile("[\u00ad\u034f\u200b-\u200f\u2060-\u2064\ufeff]")
_TABLE_PARTS = ("thead", "tbody", "tfoot", "tr", "td", "th")


def visible_markdown(html: str) -> str:
    """What a person sees of a mail, as Markdown. Never raises, whatever the input."""
    from lxml.etree import LxmlError

    try:
        tree = parse_html(limit_html(html)[0])
        if tree is None:
            return ""
        for element in list(tree.iter()):
            tag = element.tag if isinstance(element.tag, str) else "template"
            is_hidden = "hidden" in element.attrib or _INVISIBLE_STYLE.search(element.get("style") or "")
            if (tag in _INVISIBLE_TAGS or is_hidden) and element.getparent() is not None:
                element.drop_tree()
        text = extract_text(tree)
        if not is_too_deep(tree):
            with suppress(Exception):  # a library, and any mail: the plain text is the fallback
                _simplify_layout(tree)
                text = to_markdown(tree, escape_asterisks=False, escape_underscores=False)
    except (LxmlError, ValueError):
        return ""
    return _INVISIBLE_CHARS.sub("", text).strip()


def limit_html(html: str) -> tuple[str, bool]:
    """Return the page without scripts, styles and comments, cut to the limits, and whether it was cut."""
    html = html.replace("\0", "")
    for opening, closing in _NOT_TEXT:
        html = "".join(_remove(html, opening, closing))
    html = _INLINE_DATA.sub("data:,", html)
    kept = html[:_MAX_CHARS]
    end = -1
    for _ in range(_MAX_TAGS):
        end = kept.find("<", end + 1)
        if end < 0:
            return kept, len(kept) < len(html)
    return kept[:end], True


def parse_html(html: str) -> "HtmlElement | None":
    """Parse a limited page. None if there is nothing in it."""
    from lxml import etree  # with the next import 150 ms, once, in a thread
    from lxml import html as lxml_html

    try:
        return lxml_html.document_fromstring(html)
    except (etree.ParserError, ValueError):  # empty; or an encoding declaration, which lxml wants in bytes
        try:
            return lxml_html.document_fromstring(html.encode(), parser=lxml_html.HTMLParser(encoding="utf-8"))
        except (etree.ParserError, ValueError):
            return None


def to_markdown(tree: "HtmlElement", **options: Any) -> str:
    """Convert to Markdown; check `is_too_deep` first. `options` are of markdownify."""
    from lxml import html as lxml_html
    from markdownify import markdownify

    _simplify(tree)
    html = lxml_html.tostring(tree, encoding="unicode")
    text = str(markdownify(html, heading_style="ATX", bullets="-", strip=["noscript"], **options))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line.rstrip() for line in text.splitlines()))


def is_too_deep(tree: "HtmlElement") -> bool:
    """Whether only `extract_text` can process it in reasonable time."""
    from lxml.etree import iterwalk

    total = depth = 0
    for event, _ in iterwalk(tree, events=("start", "end")):
        depth += 1 if event == "start" else -1
        total += depth if event == "start" else 0
    return total > _MAX_TOTAL_DEPTH


def extract_text(tree: "HtmlElement") -> str:
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


def _simplify_layout(tree: "HtmlElement") -> None:
    """Turn tables of tables, which only place things, into blocks, and images into their descriptions."""
    for table in [table for table in tree.iter("table") if table.find(".//table") is not None]:
        for part in list(table.iter(*_TABLE_PARTS)):
            if next(part.iterancestors("table"), None) is table:
                part.tag = "div"
        table.tag = "div"
    for image in list(tree.iter("img")):
        image.tag, image.text = "span", f"[{image.get('alt', '').strip()}]" if image.get("alt", "").strip() else ""


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
