"""The documents: the page, whose files are in memory, compressed once, under a path that changes with them; and without
JavaScript the list of chats, and each of them, as HTML for text browsers and readers' modes.
"""

import base64
import gzip
import hashlib
import json
import mimetypes
import posixpath
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nanobot.security.credentials import Credential
from nanobot.security.http_access import HEADERS, Endpoint, HttpError, Requires, route
from nanobot.session.file import session_title
from nanobot.webui.chat import INLINE_PICTURES, ChatView
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

if TYPE_CHECKING:
    from jinja2 import Template
    from markdown_it import MarkdownIt

_FOLDER = Path(__file__).parent / "static"
_DOCUMENTS = Path(__file__).parent / "documents"
_SUFFIXES = (".css", ".js", ".svg")
_STYLES = ("tokens", "base", "parts")
_ENTRY = "app/main.js"
_IMPORT = re.compile(r'^(?:import|export)\b[^;"=]*\bfrom "([^"]+)"', re.MULTILINE)
"""A static import. What `import(...)` names is loaded later."""
_VENDORED_IMPORT = re.compile(r'\b(?:import|from)"([^"]+)"')

_WORD = re.compile(r'^  (\w+): ("(?:[^"\\]|\\.)*"),$', re.MULTILINE)
"""A line of words/*.js."""

_POLICY = (
    "default-src 'none'; script-src 'self' '{import_map}'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src 'self' blob:; font-src 'self'; connect-src 'self'; manifest-src 'self'; worker-src 'self'; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_HEADERS = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), payment=(), usb=(), display-capture=()",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

_ROWS = 100
_PLAIN_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
_PLAIN_HEADERS = {**HEADERS, "Content-Security-Policy": _PLAIN_POLICY, "Vary": "Accept-Language"}
_CONTENTS = ("text", "transcripts", "files", "error", "calls")


class StaticFiles:
    """The page's files, read once."""

    def __init__(self) -> None:
        names = sorted(path.relative_to(_FOLDER).as_posix() for path in _FOLDER.rglob("*") if path.suffix in _SUFFIXES)
        self._files = {name: (_FOLDER / name).read_bytes() for name in names}
        digest = hashlib.sha256(b"".join(name.encode() + data for name, data in self._files.items())).hexdigest()
        self._base = f"/static/{digest[:16]}"
        self._compressed = {name: gzip.compress(data, mtime=0) for name, data in self._files.items()}
        vendored = tomllib.loads((_FOLDER / "vendor" / "vendor.toml").read_text(encoding="utf-8"))
        self._vendored = {name: f"vendor/{entry['file']}" for name, entry in vendored.items()}
        import_map = json.dumps({"imports": {name: f"{self._base}/{file}" for name, file in self._vendored.items()}})
        hash_of_map = base64.b64encode(hashlib.sha256(import_map.encode()).digest()).decode()
        self._policy = _POLICY.format(import_map=f"sha256-{hash_of_map}")
        self.styles = "\n".join(f'<link rel="stylesheet" href="{self._base}/style/{name}.css">' for name in _STYLES)
        """The links to the styles, for a document."""
        self._document = string.Template((_DOCUMENTS / "index.html").read_text(encoding="utf-8")).substitute(
            base=self._base,
            entry=_ENTRY,
            import_map=import_map,
            styles=self.styles,
            without_script="\n".join(
                f'<p lang="{tag}">{words["no_script"]} <a href="/s">{words["view_chats"]}</a></p>'
                for tag, words in (("en", self.words("en")), ("zh-Hans", self.words("zh")))
            ),
            preloads="\n".join(
                f'<link rel="modulepreload" href="{self._base}/{name}">' for name in self._first_modules()
            ),
        )

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("/", self.shell, Requires.NOTHING),
            Endpoint("/static/{build}/{name:path}", self.file, Requires.NOTHING),
        ]

    def words(self, language: str) -> dict[str, str]:
        """The words of the page in `en` or `zh`, by key."""
        return {key: json.loads(text) for key, text in _WORD.findall(self._source(f"app/words/{language}.js"))}

    async def shell(self, request: Request, caller: Credential | None) -> Response:
        """The page without any data: a link from another site brings no cookie, so everybody may have it."""
        headers = {**_HEADERS, "Content-Security-Policy": self._policy, "Cache-Control": "no-cache"}
        return HTMLResponse(self._document, headers=headers)

    async def file(self, request: Request, caller: Credential | None) -> Response:
        """A file of this build. One of another build is gone: the page loads anew then."""
        name = request.path_params["name"]
        if name not in self._files or not request.url.path.startswith(f"{self._base}/"):
            return Response("There is no such file.", 404, HEADERS)
        is_gzip = "gzip" in request.headers.get("accept-encoding", "")
        headers = {
            **_HEADERS,
            "Cache-Control": "public, max-age=31536000, immutable",
            "ETag": f'"{self._base[-16:]}"',
            "Vary": "Accept-Encoding",
        }
        if is_gzip:
            headers["Content-Encoding"] = "gzip"
        content_type = mimetypes.types_map.get(Path(name).suffix, "text/javascript")
        return Response((self._compressed if is_gzip else self._files)[name], headers=headers, media_type=content_type)

    def _first_modules(self) -> list[str]:
        """The modules that the page loads first, with all that they import, from the entry on."""
        modules = [_ENTRY]
        for name in modules:  # grows meanwhile
            for imported in (_VENDORED_IMPORT if name.startswith("vendor/") else _IMPORT).findall(self._source(name)):
                beside = posixpath.normpath(posixpath.join(posixpath.dirname(name), imported))
                path = self._vendored.get(imported, beside)
                if path not in modules:
                    modules.append(path)
        return modules

    def _source(self, name: str) -> str:
        return self._files[name].decode()


class PlainView(WebView):
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
        return HTMLResponse(_template().render(styles=styles, **values), status, _PLAIN_HEADERS)


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

    environment = Environment(
        loader=FileSystemLoader(_DOCUMENTS), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals |= {
        "markdown": markdown,
        "is_picture": lambda name: name.lower().endswith(INLINE_PICTURES),
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
