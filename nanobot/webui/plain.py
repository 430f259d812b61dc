"""The chats without JavaScript: a list, and each as HTML, for text browsers and readers' modes."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nanobot.security.http_access import HEADERS, HttpError, route
from nanobot.session.reader import session_title
from nanobot.webui.chat import ChatView
from nanobot.webui.files import is_inline_picture
from nanobot.webui.services import WebServices
from nanobot.webui.static_files import DOCUMENTS, StaticFiles
from nanobot.webui.view import WebView

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt

_ROWS = 100
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {**HEADERS, "Content-Security-Policy": _POLICY, "Vary": "Accept-Language"}
_CONTENTS = ("text", "transcripts", "files", "error", "calls")


class PlainView(WebView):
    """The list of chats and a chat, as documents."""

    def __init__(self, services: WebServices, static: StaticFiles, chat: ChatView) -> None:
        super().__init__(services)
        self._static = static
        self._chat = chat
        self.error = lambda error: self._document(None, "nanobot", error.status, problem=str(error))

    @route("GET", "/s")
    def list_all(self, request: Request) -> Response:
        """Links to all chats, newest first."""
        sessions = self.sessions.list_sessions()
        chats = [(_address(row["name"]), self._title(row["name"], row["metadata"])) for row in sessions]
        return self._document(request, "", chats=chats)

    @route("GET", "/s/{key:path}")
    def show(self, request: Request, key: str, before: int | None = None) -> Response:
        """The newest messages of a chat, or those before the number `before`."""
        session = self.sessions.read(key)
        if session is None:
            raise HttpError(404, f"There is no chat {key!r}.")
        first, page = session.page(before, _ROWS)
        rows = [self._chat.row(first + at, row) for at, row in enumerate(page)]
        return self._document(
            request,
            self._title(key, session.metadata),
            key=key,
            older=f"{_address(key)}?before={first}" if first else "",
            messages=_messages(rows),
            results={
                row["tool_call_id"]: row["text"] for row in rows if row["role"] == "tool" and "tool_call_id" in row
            },
        )

    def _title(self, name: str, metadata: Mapping[str, Any]) -> str:
        """The title of a session, else its first words, else its name."""
        path = self.sessions.find(name)
        return (path and session_title(path, metadata)) or name

    def _document(self, request: Request | None, title: str, status: int = 200, **values: Any) -> Response:
        languages = request.headers.get("accept-language", "") if request is not None else ""
        is_chinese = languages.lower().startswith("zh")
        words, styles = self._static.words("zh" if is_chinese else "en"), self._static.styles
        values |= {"title": title or words["view_chats"], "language": "zh-Hans" if is_chinese else "en", "words": words}
        return HTMLResponse(_template().render(styles=styles, **values), status, _HEADERS)


def _address(key: str) -> str:
    return f"/s/{quote(key, safe='')}"


def _messages(rows: Sequence[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """What people wrote, and what each turn did and answered, by role. Results of calls stand with their calls."""
    is_shown = [
        row
        for row in rows
        if row["role"] != "tool"
        and any(row.get(name) for name in _CONTENTS)
        and not (row["role"] == "user" and row.get("continues"))
    ]
    return [(role, [*group]) for role, group in groupby(is_shown, key=lambda row: str(row["role"]))]


@cache
def _template() -> "Template":
    from jinja2 import Environment, FileSystemLoader, pass_context  # only such pages need it

    @pass_context
    def markdown(context: Any, text: str) -> str:
        return f'<div class="markdown" dir="auto">{_parser().render(text, {"words": context["words"]})}</div>'

    environment = Environment(loader=FileSystemLoader(DOCUMENTS), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.globals |= {
        "markdown": markdown,
        "is_picture": is_inline_picture,
        "pretty": lambda value: json.dumps(value, ensure_ascii=False, indent=1),
    }
    return environment.get_template("plain.html")


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
