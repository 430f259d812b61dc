"""The files of the page: in memory, compressed once, under a path that changes with them; and the document itself."""

import base64
import gzip
import hashlib
import json
import mimetypes
import posixpath
import re
import tomllib
from pathlib import Path
from string import Template

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from nanobot.security.credentials import Credential
from nanobot.security.http_access import HEADERS, Endpoint, Requires

_FOLDER = Path(__file__).parent / "static"
DOCUMENTS = Path(__file__).parent / "documents"
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
        self._document = Template((DOCUMENTS / "index.html").read_text(encoding="utf-8")).substitute(
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
        """The endpoints."""
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
