"""What a server answered, as a result for the model: texts as one text, pictures as pictures, the rest as files.

https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-result
"""

import asyncio
import base64
import binascii
import hashlib
import json
import mimetypes
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.base import ToolResult
from nanobot.messages.types import ToolFailure
from nanobot.security.opening import Opener
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.text import clip

if TYPE_CHECKING:
    from mcp.types import CallToolResult, ContentBlock, GetPromptResult, ReadResourceResult

LARGEST_FILE = 32 * 1024 * 1024
MOST_BLOCKS = 500
LONGEST_BESIDE = 16_000
"""Characters of a text beside pictures. One that comes alone may be long: the run keeps the whole of it in a file."""
_PICTURES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}


class Received:
    """A folder for what a server sent that is no text. Files are named by what they hold, so none comes twice."""

    def __init__(self, workspace: Path) -> None:
        self._folder = workspace / ".nanobot" / "received"
        self._files = Opener(PathPolicy(workspace))

    async def keep(self, data: str, mime_type: str | None) -> Path | None:
        """Decode it and keep it; None where it is too large, broken, or the disk refuses."""
        return await asyncio.to_thread(self._keep, data, (mime_type or "").split(";")[0].strip().lower())

    def _keep(self, data: str, mime_type: str) -> Path | None:
        if len(data) > LARGEST_FILE * 4 // 3:
            return None
        try:
            content = base64.b64decode(data, validate=False)
            name = hashlib.sha256(content).hexdigest()[:20]
            ending = _PICTURES.get(mime_type) or mimetypes.guess_extension(mime_type) or ".bin"
            path = self._folder / f"{name}{ending}"
            with self._files.own_place(path) as place:
                place.replace(content, PRIVATE_FILE)
        except (OSError, ValueError, binascii.Error, PathDeniedError):
            return None
        return path


async def result_of(answer: "CallToolResult", received: Received) -> ToolResult:
    """What a tool gave back."""
    content = await _content_of(answer.content, received)
    if not content and answer.structured_content is not None:
        content = json.dumps(answer.structured_content, ensure_ascii=False)
    if answer.is_error:
        return ToolResult(content or "Error: the server gave no reason.", error=True, failure=ToolFailure.ENDED_BADLY)
    return ToolResult(content or "The tool ended and returned nothing.")


async def resource_of(answer: "ReadResourceResult", received: Received) -> ToolResult:
    """What a resource holds."""
    parts = [await _resource(one, received) for one in answer.contents[:MOST_BLOCKS]]
    return ToolResult(_joined(parts) or "The resource is empty.")


async def prompt_of(answer: "GetPromptResult", received: Received) -> ToolResult:
    """What a prompt says, each part with whose it is."""
    parts: list[str | dict[str, Any]] = [answer.description] if answer.description else []
    for message in answer.messages[:MOST_BLOCKS]:
        block = await _block(message.content, received)
        parts += [f"{message.role}: {block}"] if isinstance(block, str) else [f"{message.role}:", block]
    return ToolResult(_joined(parts) or "The prompt is empty.")


async def _content_of(blocks: "list[ContentBlock]", received: Received) -> str | list[dict[str, Any]]:
    parts = [await _block(block, received) for block in blocks[:MOST_BLOCKS]]
    if len(blocks) > MOST_BLOCKS:
        parts.append(f"[there are more than {MOST_BLOCKS} parts; the rest is left out]")
    return _joined(parts)


def _joined(parts: Iterable[str | dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text; where there are pictures too, a block for each part. A single text is handed on as it is."""
    parts = list(parts)
    if all(isinstance(part, str) for part in parts):
        return str(parts[0]) if len(parts) == 1 else "\n".join(str(part) for part in parts)
    return [{"type": "text", "text": clip(part, LONGEST_BESIDE)} if isinstance(part, str) else part for part in parts]


async def _block(block: "ContentBlock", received: Received) -> str | dict[str, Any]:
    if block.type == "text":
        return block.text
    if block.type == "image":
        return await _picture(block.data, block.mime_type, received)
    if block.type == "audio":
        return _tag("audio", await received.keep(block.data, block.mime_type))
    if block.type == "resource_link":
        about = " ".join(part for part in (block.title or block.name, block.description) if part)
        return f"[resource: {block.uri}] {about}".rstrip()
    return await _resource(block.resource, received)


async def _resource(resource: Any, received: Received) -> str | dict[str, Any]:
    text = getattr(resource, "text", None)
    if isinstance(text, str):
        return text
    if (resource.mime_type or "") in _PICTURES:
        return await _picture(resource.blob, resource.mime_type, received)
    return _tag("file", await received.keep(resource.blob, resource.mime_type))


async def _picture(data: str, mime_type: str, received: Received) -> str | dict[str, Any]:
    path = await received.keep(data, mime_type)
    if path is None or path.suffix not in _PICTURES.values():
        return _tag("image", path)
    return {"type": "image_url", "image_url": {"url": str(path)}}


def _tag(kind: str, path: Path | None) -> str:
    return f"[{kind}: {path if path is not None else 'could not be kept'}]"
