"""Files of the page's chats: uploads, and what messages carry."""

import asyncio
import hashlib
import mimetypes
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from nanobot.channels.media import Attachment, MediaLimits
from nanobot.channels.media_kinds import MediaKind, detect_file_kind, kind_by_suffix
from nanobot.security.http_access import HttpError, route
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.text import human_size
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

_MAX_KNOWN = 20_000
_DAY_S = 86_400
_INLINE = (".avif", ".bmp", ".gif", ".jpg", ".jpeg", ".png", ".webp")
"""Pictures that a browser may show. An SVG can hold scripts."""


def is_inline_picture(name: str) -> bool:
    """Whether a browser may show the file of this name as a picture."""
    return name.lower().endswith(_INLINE)


class FilesView(WebView):
    """Uploads and downloads. Only files that a message names, or that were uploaded, have an id."""

    def __init__(self, services: WebServices) -> None:
        super().__init__(services)
        self._known: dict[str, Path] = {}
        self._unused: dict[Path, float] = {}
        """Uploads that no message has named yet, and when they came."""

    def describe(self, path: str) -> dict[str, Any]:
        """A file as the page shows it: `{id, name, kind, size}`, or `{url, name}` for a file elsewhere."""
        if path.startswith(("https://", "http://")):
            return {"url": path, "name": path.rpartition("/")[2] or path}
        file = Path(path)
        file_id = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        put_bounded(self._known, file_id, file, _MAX_KNOWN)
        shown = {"name": file.name, "kind": kind_by_suffix(file.suffix.lower()) or MediaKind.FILE}
        try:
            return {"id": file_id, **shown, "size": file.stat().st_size}
        except OSError:
            return {**shown, "is_gone": True}

    def attachment(self, file_id: str) -> Attachment:
        """The file of this id, as an attachment. Raises HttpError."""
        path = self._path(file_id)
        self._unused.pop(path, None)
        kind = detect_file_kind(path, kind_by_suffix(path.suffix.lower()) or MediaKind.FILE)
        return Attachment(kind, is_here=True, path=str(path))

    def _path(self, file_id: str) -> Path:
        path = self._known.get(file_id)
        if path is None or not path.is_file():
            raise HttpError(404, "This file is not kept any more. Attach it again.")
        return path

    @route("POST", "/api/files", status=201)
    async def upload(self, request: Request) -> Any:
        """Store the body of the request as a file."""
        headers, largest = request.headers, MediaLimits().largest
        name, content_type = unquote(headers.get("x-file-name", ""))[:200] or None, headers.get("content-type", "")
        size = int(length) if (length := headers.get("content-length", "")).isdecimal() else None
        if size is not None and size > largest:
            raise HttpError(413, f"A file may have at most {human_size(largest)}.")
        attachment = Attachment(MediaKind.of_type(content_type), name=name, content_type=content_type, size=size)
        stored = await self.services.channel.services.media.store(attachment, request.stream)
        if stored.path is None:
            raise HttpError(400, "The file could not be stored: it is empty, too large, or the disk refuses it.")
        await asyncio.to_thread(self._add_unused, stored.path)
        return {**self.describe(str(stored.path)), "kind": stored.kind}

    def _add_unused(self, path: Path) -> None:
        """Note an upload, and delete those that were not used for a day."""
        now = self.runtime.clock.now().timestamp()
        for old in [each for each, came_at in self._unused.items() if now - came_at > _DAY_S]:
            old.unlink(missing_ok=True)
            del self._unused[old]
        self._unused[path] = now

    @route("GET", "/api/files/{file}")
    def download(self, file: str) -> Response:
        """A file. What could run scripts in the page's origin is only offered for saving."""
        path = self._path(file)
        content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        is_inline = is_inline_picture(path.name) or content_type.startswith(("audio/", "video/"))
        return FileResponse(
            path,
            filename=path.name,
            media_type=content_type if is_inline else "application/octet-stream",
            content_disposition_type="inline" if is_inline else "attachment",
            headers={
                "Cache-Control": "private, max-age=86400",
                "Content-Security-Policy": "sandbox; default-src 'none'",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
            },
        )
