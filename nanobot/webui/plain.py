"""The chats without JavaScript: a list, and each as HTML, for text browsers and readers' modes."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nanobot.security.http_access import HEADERS, HttpError
from nanobot.session.reader import session_title
from nanobot.webui.chat import ChatView
from nanobot.webui.files import is_inline_picture
from nanobot.webui.services import WebServices
from nanobot.webui.static_files import StaticFiles
from nanobot.webui.view import View, route

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

_ROWS = 100
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {**HEADERS, "Content-Security-Policy": _POLICY, "Vary": "Accept-Language"}
Words = Mapping[str, str]


class PlainView(View):
    """The list of chats and a chat, as documents."""

    def __init__(self, services: WebServices, static: StaticFiles, chat: ChatView) -> None:
        super().__init__(services)
        self._static = static
        self._chat = chat
        self.error = lambda error: self._document(
            "en", "nanobot", '<a href="/">nanobot</a>', f'<p class="error">{escape(str(error))}</p>', error.status
        )

    @route("GET", "/s")
    def list_all(self, request: Request) -> Response:
        """Links to all chats, newest first."""
        language, words = self._words(request)
        links = [
            f'<li class="entry" dir="auto"><a href="{_address(row["name"])}">'
            f"{escape(self._title(row['name'], row['metadata']))}</a></li>"
            for row in self.sessions.list_sessions()
        ]
        body = f"<ul>{''.join(links)}</ul>" if links else f"<p>{escape(words['chats_none'])}</p>"
        return self._document(language, words["view_chats"], f'<a href="/">{escape(words["with_script"])}</a>', body)

    @route("GET", "/s/{key:path}")
    def show(self, request: Request, key: str, before: int | None = None) -> Response:
        """The newest messages of a chat, or those before the number `before`."""
        language, words = self._words(request)
        session = self.sessions.read(key)
        if session is None:
            raise HttpError(404, f"There is no chat {key!r}.")
        first, rows = session.page(before, _ROWS)
        older = f'<p><a href="{_address(key)}?before={first}">{escape(words["older"])}</a></p>' if first else ""
        body = older + _messages([self._chat.row(first + at, row) for at, row in enumerate(rows)], words)
        links = f'<a href="/s">{escape(words["view_chats"])}</a> <a href="/">{escape(words["with_script"])}</a>'
        return self._document(language, self._title(key, session.metadata), links, body)

    def _title(self, name: str, metadata: Mapping[str, Any]) -> str:
        """The title of a session, else its first words, else its name."""
        path = self.sessions.find(name)
        return (path and session_title(path, metadata)) or name

    def _words(self, request: Request) -> tuple[str, Words]:
        language = "zh" if request.headers.get("accept-language", "").lower().startswith("zh") else "en"
        return language, self._static.words(language)

    def _document(self, language: str, title: str, links: str, body: str, status: int = 200) -> Response:
        document = (
            f'<!doctype html>\n<html lang="{"zh-Hans" if language == "zh" else "en"}">\n<head>\n'
            '<meta charset="utf-8">\n<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n{self._static.styles}\n'
            f'</head>\n<body class="plain">\n<header class="column"><nav>{links}</nav>'
            f'<h1 dir="auto">{escape(title)}</h1></header>\n<main class="column">\n{body}\n</main>\n</body>\n</html>\n'
        )
        return HTMLResponse(document, status, _HEADERS)


def _address(key: str) -> str:
    return f"/s/{quote(key, safe='')}"


def _messages(rows: Sequence[dict[str, Any]], words: Words) -> str:
    """What people wrote, and what each turn did and answered. The result of a call stands with the call."""
    results = {row["tool_call_id"]: row["text"] for row in rows if row["role"] == "tool" and "tool_call_id" in row}
    articles = []
    for role, group in groupby((row for row in rows if row["role"] != "tool"), key=lambda row: row["role"]):
        is_user = role == "user"
        shown = [row for row in group if not (is_user and row.get("continues"))]
        text = "".join(_user(row) if is_user else _turn(row, results, words) for row in shown)
        if text:
            kind, name = ("user", words["you"]) if is_user else ("turn", words["answer"])
            head = f'<article class="message {kind}"><h2 class="hidden">{escape(name)}</h2>'
            articles.append(f'<div class="entry">{head}{text}{_time(shown[-1])}</article></div>')
    return "\n".join(articles) or f"<p>{escape(words['no_messages'])}</p>"


def _time(row: Mapping[str, Any]) -> str:
    if "timestamp" not in row:
        return ""
    at = datetime.fromisoformat(row["timestamp"])
    return f'<p class="meta"><time datetime="{escape(row["timestamp"])}">{at:%Y-%m-%d %H:%M}</time></p>'


def _user(row: Mapping[str, Any]) -> str:
    parts = [f'<p class="own-text" dir="auto">{escape(row["text"])}</p>'] if row.get("text") else []
    parts += [f'<p class="transcript" dir="auto">{escape(text)}</p>' for text in row.get("transcripts", ())]
    return f'<div class="bubble">{"".join(parts)}{_files(row)}</div>' if parts or row.get("files") else ""


def _turn(row: Mapping[str, Any], results: Mapping[str, str], words: Words) -> str:
    parts = [_markdown(row["text"], words)] if row.get("text") else []
    if row.get("error"):
        parts.append(f'<p class="error" dir="auto">{escape(row.get("reply") or row["error"])}</p>')
    for call in row.get("calls", ()):
        posted = call.get("posted") or {}
        detail = json.dumps(call["arguments"], ensure_ascii=False, indent=1)
        output = results.get(call["call_id"], "")
        parts.append(
            f'<details class="step"><summary>{escape(call["name"].replace("_", " "))}</summary><div class="step-body">'
            f"<pre>{escape(detail)}</pre>{f'<pre>{escape(output)}</pre>' if output else ''}</div></details>"
        )
        parts += [_markdown(str(posted["text"]), words)] if posted.get("text") else []
        parts.append(_files(posted))
    return "".join(parts) + _files(row)


def _files(row: Mapping[str, Any]) -> str:
    items = []
    for file in row.get("files", ()):
        name, address = escape(file["name"]), f"/api/files/{file['id']}" if "id" in file else file.get("url")
        if "id" in file and is_inline_picture(file["name"]):
            name = f'<img src="{escape(str(address))}" alt="{name}">'
        items.append(f'<li><a href="{escape(str(address))}">{name}</a></li>' if address else f"<li>{name}</li>")
    return f'<ul class="files">{"".join(items)}</ul>' if items else ""


def _markdown(text: str, words: Words) -> str:
    return f'<div class="markdown" dir="auto">{_parser().render(text, {"words": words})}</div>'


@cache
def _parser() -> "MarkdownIt":
    """Markdown to HTML as the page shows it: no HTML, links to http, https and mailto only, pictures as links."""
    from markdown_it import MarkdownIt  # 100 ms that only the first such page pays for

    parser = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])

    def is_safe(url: str) -> bool:
        return url.lower().startswith(("http://", "https://", "mailto:"))

    def link_open(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        url = tokens[index].attrGet("href") or ""
        return f'<a href="{escape(url)}" rel="noopener noreferrer">' if is_safe(url) else "<a>"

    def image(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        url, name = token.attrGet("src") or "", token.content or env["words"]["picture"]
        if not is_safe(url) or "//" not in url:
            return escape(name)
        shown = env["words"]["picture_on"].replace("{name}", name).replace("{host}", url.split("/")[2])
        return f'<a href="{escape(url)}" rel="noopener noreferrer">{escape(shown)}</a>'

    def heading(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        """The document has an h1, each message an h2."""
        level = min(max(int(tokens[index].tag[1]) + 1, 3), 6)
        return f"<{'/' if tokens[index].nesting < 0 else ''}h{level}>"

    def cell(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        """The policy of the document allows no style of an element."""
        align = str(tokens[index].attrGet("style") or "").removeprefix("text-align:")
        return f'<{tokens[index].tag} class="{align}">' if align else f"<{tokens[index].tag}>"

    rules = {"link_open": link_open, "image": image, "th_open": cell, "td_open": cell}
    for name, rule in {**rules, "heading_open": heading, "heading_close": heading}.items():
        parser.add_render_rule(name, rule)
    return parser
