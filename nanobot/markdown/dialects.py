"""What each platform understands, as data.

Telegram: text and entities (core.telegram.org/bots/api#formatting-options), so nothing needs escaping and nothing can
be rejected as unparsable. Slack: mrkdwn (docs.slack.dev/messaging/formatting-message-text). Discord: its Markdown
(support.discord.com, "Markdown Text 101"). Feishu: the Markdown of its cards (open.feishu.cn/document, feishu-cards,
card-json-v2-components, rich-text). DingTalk: a part of Markdown (open.dingtalk.com/document/orgapp/message-type), in
which two spaces end a line; QQ: likewise (bot.q.qq.com/wiki/develop/api-v2/server-inter/message/type/markdown).
WeCom: common Markdown (developer.work.weixin.qq.com/document/path/101031); Mochat: likewise. WeChat: a part of
Markdown, in which nothing can be escaped, and `<` ends the text (github.com/Tencent/openclaw-weixin,
markdown-filter.ts).
Teams: Markdown as at DingTalk (learn.microsoft.com/microsoftteams/platform/bots/how-to/format-your-bot-messages).
WhatsApp: its own marks (faq.whatsapp.com, "How to format your messages"). E-mail: plain text and HTML. Matrix:
likewise (spec.matrix.org/latest/client-server-api/#mroommessage-msgtypes).
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

Measure = Callable[[str], int]
"""How long a text is. Every measure counts at least one for each code point."""


def code_points(text: str) -> int:
    """The length as Python and Discord count it."""
    return len(text)


def utf16_units(text: str) -> int:
    """The length as Telegram counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le", "surrogatepass")) // 2


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a platform formats text. The defaults are plain text."""

    name: str
    limit: int | None = 4000
    """The longest message; None for no limit."""
    measure: Measure = code_points
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """What stands before and after bold, italic, underlined and strikethrough text."""
    escape: Callable[[str], str] = str
    """Escape the text of one line. At most five times as long."""
    code: Callable[[str], str] = str
    """Write code within a line."""
    fence: Callable[[str, str], str] = lambda code, _: code
    """Write a block of code in a language."""
    bullet: str = ""
    """Instead of •, ◦ and ▪."""
    quote: str = "> "
    """Before each line of a quote."""
    link: tuple[str, str] | None = None
    """The text around a link's text, with `{url}`; None to write the URL in brackets after the text."""
    schemes: tuple[str, ...] = ("http://", "https://")
    """Of links; the URL of another is text."""
    heading_levels: int = 0
    """Headings down to this level are written with #, others bold."""
    newline: str = "\n"
    """Within and between paragraphs; code keeps its own."""
    edge: str = ""
    """Separates a mark from an adjacent letter, on platforms where marks need a word boundary and end with the line."""
    entities: bool = False
    """Whether entities beside the text format it, instead of marks in it."""
    html: str | None = None
    """The page around an HTML version, with `{}`; None for no such version."""


def utf8_bytes(text: str) -> int:
    """The length as WeCom and Matrix count it."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def json_bytes(text: str) -> int:
    """The length as DingTalk counts it: in bytes, within JSON."""
    return len(json.dumps(text, ensure_ascii=False).encode("utf-8", "surrogatepass")) - 2


_ZERO_WIDTH = "\u200b"
_URL = r"https?://[^\s<>]+"
_DISCORD = re.compile(rf"{_URL}|[\\*~`|]|\b_|_\b|(?:^|(?<=\n))[ \t]*(?:#{{1,3}}(?= )|[->]|\d+(?=\. ))")
_DINGTALK = re.compile(rf"{_URL}|[\\*`<]|\](?=\()|\b_|_\b|(?:^|(?<=\n))[ \t]*(?:#{{1,6}}(?= )|>|[-+](?= )|\d+(?=\. ))")
_FEISHU = re.compile(rf"{_URL}|~~|[&<>*_`\[\]\\]|^#(?=#{{0,5}} )")


def _escape_marks(marks: "re.Pattern[str]", text: str) -> str:
    """Write a backslash before each mark, but not within a URL, and behind the number of a list item."""

    def escape(match: "re.Match[str]") -> str:
        matched = match.group()
        if matched.startswith("http"):
            return matched
        mark = matched.lstrip(" \t")
        return f"{matched}\\" if mark.isdigit() else f"{matched[: len(matched) - len(mark)]}\\{mark}"

    return marks.sub(escape, text)


_discord_escape = partial(_escape_marks, _DISCORD)
_dingtalk_escape = partial(_escape_marks, _DINGTALK)


def _feishu_escape(text: str) -> str:
    """Write special characters as HTML entities, but not in URLs."""

    def escape(match: "re.Match[str]") -> str:
        matched = match.group()
        if matched.startswith("http"):
            return matched
        return f"~{_ZERO_WIDTH}~" if matched == "~~" else f"&#{ord(matched)};"

    return _FEISHU.sub(escape, text)


def _slack_escape(text: str) -> str:
    """Escape what may call somebody, and fences."""
    return _break_fences(text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;"))


def _break_fences(text: str) -> str:
    """Separate the backticks of a fence, which neither platform can escape otherwise."""
    return re.sub("`{3,}", lambda match: _ZERO_WIDTH.join(match.group()), text)


def _fence(code: str, language: str) -> str:
    """A fence of three backticks, as Slack and Discord require."""
    return f"```{language}\n{_break_fences(code)}\n```"


def _code_or(escape: Callable[[str], str], *, escapes_code: bool = False) -> Callable[[str], str]:
    """Write code between backticks, perhaps escaped, too; code with backticks as escaped text."""

    def write(code: str) -> str:
        return escape(code) if "`" in code else f"`{escape(code) if escapes_code else code}`"

    return write


def _discord_code(code: str) -> str:
    return f"`` {code} ``" if "`" in code and "``" not in code else _code_or(_discord_escape)(code)


_COMMON = {"bold": ("**", "**"), "italic": ("*", "*")}
_STRUCK = {**_COMMON, "strikethrough": ("~~", "~~")}
_SINGLE = {"bold": ("*", "*"), "italic": ("_", "_"), "strikethrough": ("~", "~")}

PLAIN = Dialect("plain")
TELEGRAM = Dialect(
    "telegram", 4096, utf16_units, quote="", schemes=("http://", "https://", "tg://", "mailto:"), entities=True
)
SLACK = Dialect(
    "slack",
    marks=_SINGLE,
    escape=_slack_escape,
    code=_code_or(_slack_escape, escapes_code=True),
    fence=lambda code, _: f"```\n{_slack_escape(code)}\n```",  # Slack would show the language as a line of code
    link=("<{url}|", ">"),
    schemes=("http://", "https://", "mailto:"),
    edge=_ZERO_WIDTH,
)
WHATSAPP = Dialect(
    "whatsapp",
    4096,  # it takes longer ones, but folds them
    marks=_SINGLE,
    escape=_break_fences,
    code=_code_or(str),
    fence=lambda code, _: f"```\n{_break_fences(code)}\n```",
    bullet="- ",
    edge=_ZERO_WIDTH,
)
_MARKDOWN = Dialect("", marks=_STRUCK, fence=_fence, bullet="- ", link=("[", "]({url})"))
DISCORD = replace(
    _MARKDOWN,
    name="discord",
    limit=2000,
    marks={**_STRUCK, "underline": ("__", "__")},
    escape=_discord_escape,
    code=_discord_code,
    heading_levels=3,
)
FEISHU = replace(
    _MARKDOWN,
    name="feishu",
    limit=7000,  # a card of 30 kB, of characters of up to four bytes
    escape=_feishu_escape,
    code=_code_or(_feishu_escape),
)
DINGTALK = replace(
    _MARKDOWN,
    name="dingtalk",
    limit=18_000,
    measure=json_bytes,
    marks=_COMMON,
    escape=_dingtalk_escape,
    code=_code_or(_dingtalk_escape),
    heading_levels=6,
    newline="  \n",
)
QQ = replace(DINGTALK, name="qq", limit=4000, measure=code_points, marks=_STRUCK, heading_levels=2)
WECOM = replace(DINGTALK, name="wecom", limit=20_000, measure=utf8_bytes, newline="\n")
MOCHAT = replace(WECOM, name="mochat", limit=4000, measure=code_points)
TEAMS = replace(DINGTALK, name="msteams", limit=20_000, marks=_STRUCK, heading_levels=3)
WEIXIN = replace(
    _MARKDOWN,
    name="weixin",
    limit=1800,
    marks={"bold": ("**", "**")},
    escape=lambda text: text.replace("<", "\uff1c"),
    code=_code_or(lambda text: text.replace("<", "\uff1c")),
    link=None,
    heading_levels=4,
)
EMAIL = Dialect(
    "email",
    None,
    html='<!doctype html>\n<html><body dir="auto" style="font-family: sans-serif">\n{}</body></html>\n',
)
MATRIX = Dialect("matrix", 16_000, utf8_bytes, html="{}")
