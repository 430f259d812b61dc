"""Converts an HTML mail to text. What is hidden from a person is hidden from the model."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser

_SKIPPED = {"script", "style", "head", "title", "template", "noscript", "object", "svg", "math", "select", "textarea"}
_VOID = {"br", "hr", "img", "meta", "link", "input", "wbr", "area", "base", "col", "embed", "source", "track", "param"}
_LINES = {"p": 2, "h1": 2, "h2": 2, "h3": 2, "h4": 2, "h5": 2, "h6": 2, "ul": 2, "ol": 2, "table": 2, "pre": 2,
          "blockquote": 2, "div": 1, "tr": 1, "li": 1, "section": 1, "article": 1, "header": 1, "footer": 1,
          "dt": 1, "dd": 1, "address": 1, "body": 1, "html": 1}  # fmt: skip
"""Block elements, with the number of line breaks around them."""
_HIDDEN = re.compile(
    r"display\s*:\s*none|visibility\s*:\s*hidden|(?<![-\w])(?:font-size|max-height|opacity)\s*:\s*0(?![.\d]*[1-9])|mso-hide\s*:\s*all",
    re.IGNORECASE,
)
_INVISIBLE = re.compile("[\u00ad\u034f\u200b-\u200f\u2060-\u2064\ufeff]")
_MOST_OPEN = 500
_DEEPEST_QUOTE = 10
_INVISIBLE_MARKUP = re.compile(r"<!--|<(script|style|template|textarea|title)\b[^<>]*+>|<[!?][^<>]*+>", re.IGNORECASE)
"""Markup removed before parsing: the parser takes hours for thousands of unclosed ones, or fails."""
_NO_TAG = re.compile(r"<(?!/?[a-z][^<>]*+>)", re.IGNORECASE)


def text_of_html(html: str) -> str:
    """The text of a page. Never raises, whatever the input."""
    reader = _HtmlReader()
    reader.feed(_NO_TAG.sub("&lt;", "".join(_visible(html))))
    reader.close()
    return reader.text()


def _visible(html: str) -> Iterator[str]:
    """The page without comments, declarations and scripts; an unclosed one hides the rest, as in a browser."""
    position = 0
    while match := _INVISIBLE_MARKUP.search(html, position):
        yield html[position : match.start()]
        end = _end_of(match)
        if end is None:
            return
        position = end.end()
    yield html[position:]


def _end_of(match: "re.Match[str]") -> "re.Match[str] | None":
    """The end of the markup that begins here."""
    if match.group() == "<!--":
        return re.compile("-->").search(match.string, match.start() + 2)
    if match[1] is None:
        return match
    return re.compile(rf"</{match[1]}\b[^<>]*+>", re.IGNORECASE).search(match.string, match.end())


class _HtmlReader(HTMLParser):
    """Collects the text while parsing."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._lines: list[str] = [""]
        self._open: list[str] = []
        self._hidden_from: int | None = None
        """Number of open tags at the start of a hidden element."""
        self._links: list[tuple[str, int, int]] = []
        self._quotes = 0
        self._pre = 0

    def text(self) -> str:
        """The collected text."""
        lines = (line.rstrip() for line in self._lines)
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """HTMLParser callback."""
        attributes = {name: value or "" for name, value in attrs}
        if tag not in _VOID:
            if len(self._open) >= _MOST_OPEN:
                return
            if self._hidden_from is None and self._hides(tag, attributes):
                self._hidden_from = len(self._open)
            self._open.append(tag)
        if self._hidden_from is not None:
            return
        if tag in _LINES:
            self._break(_LINES[tag])
        match tag:
            case "br":
                self._lines.append(self._prefix())
            case "hr":
                self._break(1)
                self._put("---")
                self._break(1)
            case "img" if attributes.get("alt", "").strip():
                self._put(f"[{attributes['alt'].strip()}]")
            case "a":
                self._links.append((attributes.get("href", "").strip(), len(self._lines), len(self._lines[-1])))
            case "li":
                self._put("- ")
            case "td" | "th" if self._lines[-1].strip("> "):
                self._put("  ")
            case "blockquote":
                self._quotes += 1
                self._lines.append(self._prefix())
            case "pre":
                self._pre += 1

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """HTMLParser callback. In HTML, the slash of `<div/>` has no meaning."""
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        """HTMLParser callback. Closes unclosed tags inside it, too."""
        if tag not in self._open:
            return
        while self._open:
            closed_tag = self._open.pop()
            if self._hidden_from is None:
                self._close_tag(closed_tag)
            elif len(self._open) <= self._hidden_from:
                self._hidden_from = None
            if closed_tag == tag:
                return

    def handle_data(self, data: str) -> None:
        """HTMLParser callback."""
        if self._hidden_from is not None:
            return
        data = _INVISIBLE.sub("", data)
        if self._pre:
            first, *more = data.split("\n")
            self._lines[-1] += first
            self._lines += [self._prefix() + line for line in more]
            return
        text = re.sub(r"\s+", " ", data)
        if self._lines[-1] == self._prefix() or self._lines[-1].endswith(" "):
            text = text.lstrip(" ")
        self._put(text)

    def _hides(self, tag: str, attributes: dict[str, str]) -> bool:
        return tag in _SKIPPED or "hidden" in attributes or bool(_HIDDEN.search(attributes.get("style", "")))

    def _close_tag(self, tag: str) -> None:
        match tag:
            case "a" if self._links:
                self._end_link(*self._links.pop())
            case "blockquote":
                self._quotes -= 1
            case "pre":
                self._pre -= 1
        if tag in _LINES:
            self._break(_LINES[tag])

    def _end_link(self, href: str, line: int, column: int) -> None:
        """Add the URL of a link after its text, unless the text contains it."""
        text = "".join([self._lines[line - 1][column:], *self._lines[line:]]).strip()
        if not href.lower().startswith(("http://", "https://", "mailto:")):
            return
        bare = re.sub(r"^(?:https?://|mailto:)", "", href, flags=re.IGNORECASE).rstrip("/")
        if text and bare not in text:
            self._put(f" ({href})")

    def _prefix(self) -> str:
        return "> " * min(self._quotes, _DEEPEST_QUOTE)

    def _put(self, text: str) -> None:
        self._lines[-1] += text

    def _break(self, lines: int) -> None:
        """Start a new line, with this many line breaks, counting existing blank lines."""
        blank = 0
        for line in reversed(self._lines[-3:]):  # `lines` is at most 2
            if line.strip("> "):
                break
            blank += 1
        if blank == len(self._lines):
            self._lines[-1] = self._prefix()
            return
        self._lines += [self._prefix()] * max(lines - blank, 0)
        self._lines[-1] = self._prefix()
