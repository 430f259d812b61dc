"""How each platform writes: a table of styles, and what each platform's own rules ask beyond it.

Telegram: text and entities (core.telegram.org/bots/api#formatting-options), so nothing needs an escape and nothing can
be refused as unparsable. Slack: mrkdwn (docs.slack.dev/messaging/formatting-message-text). Discord: its Markdown
(support.discord.com, "Markdown Text 101"). E-mail: plain words, and HTML beside them.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from nanobot.markdown.measures import Measure, code_points, utf16_units
from nanobot.markdown.parse import paired_tags, parse, parser, safe_tag
from nanobot.markdown.write import Entity, Style, write

_MOST_ENTITIES = 100
_LARGEST_PAGE = 100_000
"""A longer mail goes out as it is written; nobody reads it for its looks."""
_HTTP = re.compile(r"https?://[^\s<>]+")
_DISCORD = re.compile(r"https?://[^\s<>]+|[\\*~`|]|\b_|_\b|(?:^|(?<=\n))[ \t]*(?:#{1,3}(?= )|[->]|\d+(?=\. ))")
_ZERO_WIDTH = "\u200b"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text as a platform takes it."""

    text: str
    entities: tuple[Entity, ...] = ()
    html: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A platform's way to write, how it counts, and how much it takes at once (None: whatever comes)."""

    name: str
    render: Callable[[str], Rendered]
    """Raises whatever a parser may raise; who calls has the plain text to fall back on."""
    measure: Measure = code_points
    limit: int | None = None


def _telegram(markdown: str) -> Rendered:
    text, entities = write(markdown, _TELEGRAM)
    shown = text.strip("\n")
    first = text.find(shown)  # line ends: one unit each
    last = first + utf16_units(shown)
    within = []
    for one in entities:
        start, end = max(one.offset, first), min(one.offset + one.length, last)
        if end > start:
            within.append(Entity(one.type, start - first, end - start, one.url, one.language))
    return Rendered(shown, tuple(_legal(_without_holes(within), shown)))


def _without_holes(entities: list[Entity]) -> list[Entity]:
    """Bold cannot hold code: it ends before it and goes on behind it. A link with code in it stays a link."""
    links = [one for one in entities if one.type == "text_link"]
    codes = sorted((one for one in entities if one.type in {"code", "pre"}), key=lambda one: one.offset)
    codes = [one for one in codes if not any(_holds(link, one) for link in links)]
    kept = [one for one in entities if one.type in {"text_link", "blockquote"}] + codes
    for one in entities:
        if one.type in {"text_link", "blockquote", "code", "pre"}:
            continue
        edges = [one.offset]
        for code in codes:
            if _holds(one, code):
                edges += [code.offset, code.offset + code.length]
        edges.append(one.offset + one.length)
        kept += [Entity(one.type, a, b - a) for a, b in list(pairwise(edges))[::2] if b > a]
    return kept


def _holds(outer: Entity, inner: Entity) -> bool:
    return outer.offset <= inner.offset and inner.offset + inner.length <= outer.offset + outer.length


def _legal(entities: list[Entity], text: str) -> list[Entity]:
    """What Telegram takes: a hundred, and none that is only blanks. The ones that carry more than looks come first."""
    units = text.encode("utf-16-le", "surrogatepass")
    told = [
        one for one in entities if units[2 * one.offset : 2 * (one.offset + one.length)].decode("utf-16-le").strip()
    ]
    weight = {"text_link": 0, "pre": 1, "code": 2, "blockquote": 3}
    told.sort(key=lambda one: weight.get(one.type, 4))
    return sorted(told[:_MOST_ENTITIES], key=lambda one: (one.offset, -one.length))


def _slack_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord_escape(text: str) -> str:
    def escaped(found: "re.Match[str]") -> str:
        said = found.group()
        if said.startswith("http"):
            return said
        head = said.lstrip(" \t")
        if head.isdigit():
            return f"{said}\\"
        return said[: len(said) - len(head)] + "\\" + head

    return _DISCORD.sub(escaped, text)


def _fenced(code: str, language: str) -> str:
    """Both Slack and Discord know three backticks only: those within are parted by a blank without width."""
    inside = code.replace("```", f"`{_ZERO_WIDTH}`{_ZERO_WIDTH}`")
    return f"```{language}\n{inside}\n```"


def _slack_fence(code: str, _: str) -> str:
    return _fenced(code, "")  # Slack would show the language as a line of code


def _slack_code(code: str) -> str:
    return code if "`" in code else f"`{code}`"


def _discord_code(code: str) -> str:
    if "`" not in code:
        return f"`{code}`"
    return f"`` {code} ``" if "``" not in code else code


def _marked(write_in: Style) -> Callable[[str], Rendered]:
    def render(markdown: str) -> Rendered:
        return Rendered(write(markdown, write_in)[0].strip("\n"))

    return render


def _mail(markdown: str) -> Rendered:
    if len(markdown) > _LARGEST_PAGE:
        return Rendered(markdown.strip("\n"))
    return Rendered(_marked(_PLAIN)(markdown).text, html=_html(markdown))


def _html(markdown: str) -> str:
    """A page for a mail: no script, no style but ours, no picture that is fetched, no link but to web and mail."""
    tokens = parse(markdown)
    for token in tokens:
        children = token.children or []
        tags = paired_tags(children)
        for number, child in enumerate(children):
            if child.type == "softbreak":
                child.type = "hardbreak"
            elif child.type == "image":  # a picture from afar tells its owner who read the mail, and when
                child.type, child.nesting = "text", 0
                child.content = f"🖼 {child.content} ({child.attrGet('src')})"
            elif child.type == "html_inline":
                child.content, safe = safe_tag(child.content, number in tags)
                child.type = "html_inline" if safe else "text"
    made = parser()
    body = made.renderer.render(tokens, made.options, {}).replace("<table>", _TABLE)
    return f'<!doctype html>\n<html><body dir="auto" style="font-family: sans-serif">\n{body}</body></html>\n'


_TABLE = '<table border="1" cellpadding="4" style="border-collapse: collapse">'
_TELEGRAM = Style(entities=True, quote="", schemes=("http://", "https://", "tg://", "mailto:"))
_PLAIN = Style()
_SLACK = Style(
    marks={"bold": ("*", "*"), "italic": ("_", "_"), "strikethrough": ("~", "~"), "mono": ("`", "`")},
    escape=_slack_escape,
    escape_code=_slack_escape,
    link=("<{url}|", ">"),
    schemes=("http://", "https://", "mailto:"),
    fence=_slack_fence,
    inline_code=_slack_code,
    edge=_ZERO_WIDTH,
)
_DISCORD_STYLE = Style(
    marks={
        "bold": ("**", "**"), "italic": ("*", "*"), "underline": ("__", "__"), "strikethrough": ("~~", "~~"),
        "mono": ("`", "`"),
    },
    escape=_discord_escape,
    bullets=("- ",),
    link=("[", "]({url})"),
    fence=_fenced,
    inline_code=_discord_code,
    heading_marks=True,
)  # fmt: skip

TELEGRAM = Dialect("telegram", _telegram, utf16_units, 4096)
SLACK = Dialect("slack", _marked(_SLACK), limit=4000)
DISCORD = Dialect("discord", _marked(_DISCORD_STYLE), limit=2000)
EMAIL = Dialect("email", _mail)
PLAIN = Dialect("plain", _marked(_PLAIN), limit=4000)
DIALECTS = {dialect.name: dialect for dialect in (TELEGRAM, SLACK, DISCORD, EMAIL, PLAIN)}
