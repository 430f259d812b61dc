"""The dialect of each platform: its style, and its rules beyond that.

Telegram: text and entities (core.telegram.org/bots/api#formatting-options), so nothing needs escaping and nothing can
be rejected as unparsable. Slack: mrkdwn (docs.slack.dev/messaging/formatting-message-text). Discord: its Markdown
(support.discord.com, "Markdown Text 101"). E-mail: plain text and HTML.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from nanobot.markdown.measures import Measure, code_points, utf16_units
from nanobot.markdown.parse import paired_tags, parse, parser, safe_tag
from nanobot.markdown.write import Entity, Style, write

_MAX_ENTITIES = 100
_MAX_HTML_CHARS = 100_000
"""A longer mail is sent as plain text, unrendered."""
_DISCORD = re.compile(r"https?://[^\s<>]+|[\\*~`|]|\b_|_\b|(?:^|(?<=\n))[ \t]*(?:#{1,3}(?= )|[->]|\d+(?=\. ))")
_ZERO_WIDTH = "\u200b"


@dataclass(frozen=True, slots=True)
class Rendered:
    """A text in a platform's format."""

    text: str
    entities: tuple[Entity, ...] = ()
    html: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a platform formats text, how it counts its length, and its length limit (None for no limit)."""

    name: str
    render: Callable[[str], Rendered]
    """May raise anything a parser raises; the caller falls back to the plain text."""
    measure: Measure = code_points
    limit: int | None = None


def _telegram(markdown: str) -> Rendered:
    text, entities = write(markdown, _TELEGRAM)
    stripped = text.strip("\n")
    first = text.find(stripped)  # only line breaks before it: one unit each
    last = first + utf16_units(stripped)
    kept = []
    for entity in entities:
        start, end = max(entity.offset, first), min(entity.offset + entity.length, last)
        if end > start:
            kept.append(Entity(entity.type, start - first, end - start, entity.url, entity.language))
    return Rendered(stripped, tuple(_keep_accepted(_split_around_code(kept), stripped)))


def _split_around_code(entities: list[Entity]) -> list[Entity]:
    """Split entities around code, which they must not contain. A link with code in it stays a link."""
    links = [entity for entity in entities if entity.type == "text_link"]
    codes = sorted((entity for entity in entities if entity.type in {"code", "pre"}), key=lambda entity: entity.offset)
    codes = [entity for entity in codes if not any(_contains(link, entity) for link in links)]
    result = [entity for entity in entities if entity.type in {"text_link", "blockquote"}] + codes
    for entity in entities:
        if entity.type in {"text_link", "blockquote", "code", "pre"}:
            continue
        edges = [entity.offset]
        for code in codes:
            if _contains(entity, code):
                edges += [code.offset, code.offset + code.length]
        edges.append(entity.offset + entity.length)
        result += [Entity(entity.type, start, end - start) for start, end in list(pairwise(edges))[::2] if end > start]
    return result


def _contains(outer: Entity, inner: Entity) -> bool:
    return outer.offset <= inner.offset and inner.offset + inner.length <= outer.offset + outer.length


def _keep_accepted(entities: list[Entity], text: str) -> list[Entity]:
    """Keep what Telegram accepts: no blank entities, and at most a hundred, links and code before formatting."""
    units = text.encode("utf-16-le", "surrogatepass")

    def is_blank(entity: Entity) -> bool:
        return not units[2 * entity.offset : 2 * (entity.offset + entity.length)].decode("utf-16-le").strip()

    non_blank = [entity for entity in entities if not is_blank(entity)]
    weight = {"text_link": 0, "pre": 1, "code": 2, "blockquote": 3}
    non_blank.sort(key=lambda entity: weight.get(entity.type, 4))
    return sorted(non_blank[:_MAX_ENTITIES], key=lambda entity: (entity.offset, -entity.length))


def _slack_escape(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _discord_escape(text: str) -> str:
    def escape(match: "re.Match[str]") -> str:
        matched = match.group()
        if matched.startswith("http"):
            return matched
        mark = matched.lstrip(" \t")
        if mark.isdigit():
            return f"{matched}\\"
        return matched[: len(matched) - len(mark)] + "\\" + mark

    return _DISCORD.sub(escape, text)


def _fence(code: str, language: str) -> str:
    """A fence of three backticks, as Slack and Discord require. Zero-width spaces separate backticks in the code."""
    inside = code.replace("```", f"`{_ZERO_WIDTH}`{_ZERO_WIDTH}`")
    return f"```{language}\n{inside}\n```"


def _slack_fence(code: str, _: str) -> str:
    return _fence(code, "")  # Slack would show the language as a line of code


def _slack_code(code: str) -> str:
    return code if "`" in code else f"`{code}`"


def _discord_code(code: str) -> str:
    if "`" not in code:
        return f"`{code}`"
    return f"`` {code} ``" if "``" not in code else code


def _render_with(style: Style) -> Callable[[str], Rendered]:
    def render(markdown: str) -> Rendered:
        return Rendered(write(markdown, style)[0].strip("\n"))

    return render


def _mail(markdown: str) -> Rendered:
    if len(markdown) > _MAX_HTML_CHARS:
        return Rendered(markdown.strip("\n"))
    return Rendered(_render_with(_PLAIN)(markdown).text, html=_html(markdown))


def _html(markdown: str) -> str:
    """The HTML of a mail: without scripts, remote pictures, styles but ours, and links other than web and mail."""
    tokens = parse(markdown)
    for token in tokens:
        children = token.children or []
        tags = paired_tags(children)
        for number, child in enumerate(children):
            if child.type == "softbreak":
                child.type = "hardbreak"
            elif child.type == "image":  # a remote picture would reveal that the mail was read
                child.type, child.nesting = "text", 0
                child.content = f"🖼 {child.content} ({child.attrGet('src')})"
            elif child.type == "html_inline":
                child.content, safe = safe_tag(child.content, number in tags)
                child.type = "html_inline" if safe else "text"
    html_parser = parser()
    body = html_parser.renderer.render(tokens, html_parser.options, {}).replace("<table>", _TABLE)
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
    fence=_fence,
    inline_code=_discord_code,
    heading_marks=True,
)  # fmt: skip

TELEGRAM = Dialect("telegram", _telegram, utf16_units, 4096)
SLACK = Dialect("slack", _render_with(_SLACK), limit=4000)
DISCORD = Dialect("discord", _render_with(_DISCORD_STYLE), limit=2000)
EMAIL = Dialect("email", _mail)
PLAIN = Dialect("plain", _render_with(_PLAIN), limit=4000)
