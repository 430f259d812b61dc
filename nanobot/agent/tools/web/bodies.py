"""Pictures and documents of the web, read as those in files are: by the very same readers, within the same bounds."""

import asyncio
import tempfile
from typing import Any, BinaryIO, cast

from nanobot.agent.tools.base import ToolResult
from nanobot.agent.tools.documents import Documents, document_kind
from nanobot.agent.tools.images import shown_picture
from nanobot.messages.types import text_of
from nanobot.security.opening import Opener
from nanobot.security.paths import PathPolicy
from nanobot.utils.pictures import picture_kind

_NAME = "What came"


class Bodies:
    """A `BodyReader`. Copies of pictures lie in the workspace, where sessions find them again."""

    def __init__(self, paths: PathPolicy) -> None:
        self._paths = paths
        self._documents = Documents()

    async def read(self, body: bytes, content_type: str) -> str | list[dict[str, Any]] | None:
        """By what is in it, whatever it is called. Cancelling leaves no child and no file."""
        with tempfile.TemporaryFile() as held:
            file = cast("BinaryIO", held)
            kind = await asyncio.to_thread(_written, file, body)
            if kind is not None:
                found = await self._documents.text(_NAME, file, kind)
                return text_of(found.content) if isinstance(found, ToolResult) else found.text
            if picture_kind(body[:64]) is None:
                return None
            return (await asyncio.to_thread(shown_picture, Opener(self._paths), _NAME, file)).content


def _written(file: BinaryIO, body: bytes) -> str | None:
    """Write it there; the kind of document that it is."""
    file.write(body)
    file.seek(0)
    return document_kind(file)
