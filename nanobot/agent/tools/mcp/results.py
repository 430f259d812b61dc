"""Converts a server's answers to results for the model: texts joined, images as blocks, the rest as files.

https://modelcontextprotocol.io/specification/2025-11-25/server/tools#tool-result
"""

import asyncio
import base64
import hashlib
import json
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanobot.agent.tools.base import ToolResult
from nanobot.messages.types import ToolFailure
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.text import clip

if TYPE_CHECKING:
    from mcp.types import BlobResourceContents, CallToolResult, ContentBlock, GetPromptResult, TextResourceContents

MAX_FILE_BYTES = 32 * 1024 * 1024
MAX_BLOCKS = 500
MAX_TEXT_BESIDE_IMAGES = 16_000
"""Characters of a text beside images. A text alone may be longer: the run saves all of it in a file."""
_IMAGES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}

Part = str | dict[str, Any]
"""A text, or an image block."""


class ReceivedFiles:
    """A folder for files from servers. They are named by their content, so none is stored twice."""

    def __init__(self, workspace: Path) -> None:
        self._folder = workspace / ".nanobot" / "received"
        self._files = Opener(PathPolicy(workspace))

    async def save(self, data: str, mime_type: str | None) -> Path | None:
        """Decode and save the data; None if it is too large, broken, or cannot be written."""
        return await asyncio.to_thread(self._save, data, (mime_type or "").split(";")[0].strip().lower())

    def _save(self, data: str, mime_type: str) -> Path | None:
        if len(data) > MAX_FILE_BYTES * 4 // 3:
            return None
        try:
            content = base64.b64decode(data, validate=False)
            name = hashlib.sha256(content).hexdigest()[:20]
            path = self._folder / f"{name}{_IMAGES.get(mime_type) or mimetypes.guess_extension(mime_type) or '.bin'}"
            with self._files.own_location(path) as place:
                place.replace(content, PRIVATE_FILE)
        except (OSError, ValueError, PathDeniedError):
            return None
        return path

    async def part(self, kind: str, data: str, mime_type: str | None) -> Part:
        """Save the data, and return the image block, or a text that names the file."""
        path = await self.save(data, mime_type)
        if path is not None and path.suffix in _IMAGES.values():
            return {"type": "image_url", "image_url": {"url": str(path)}}
        return f"[{kind}: {path if path is not None else 'could not be saved'}]"


async def convert_result(answer: "CallToolResult", received: ReceivedFiles) -> ToolResult:
    """Convert a tool's result."""
    parts = [await _convert_block(block, received) for block in answer.content[:MAX_BLOCKS]]
    if len(answer.content) > MAX_BLOCKS:
        parts.append(f"[there are more than {MAX_BLOCKS} parts; the rest is left out]")
    content = _join(parts)
    if not content and answer.structured_content is not None:
        content = json.dumps(answer.structured_content, ensure_ascii=False)
    if answer.is_error:
        return ToolResult(content or "Error: the server gave no reason.", error=True, failure=ToolFailure.ENDED_BADLY)
    return ToolResult(content or "The tool ended and returned nothing.")


async def convert_resource(
    contents: "list[TextResourceContents | BlobResourceContents]", received: ReceivedFiles
) -> ToolResult:
    """Convert the content of a resource."""
    parts = [await _convert_resource(content, received) for content in contents[:MAX_BLOCKS]]
    return ToolResult(_join(parts) or "The resource is empty.")


async def convert_prompt(answer: "GetPromptResult", received: ReceivedFiles) -> ToolResult:
    """Convert a prompt, each part with its role."""
    parts: list[Part] = [answer.description] if answer.description else []
    for message in answer.messages[:MAX_BLOCKS]:
        block = await _convert_block(message.content, received)
        parts += [f"{message.role}: {block}"] if isinstance(block, str) else [f"{message.role}:", block]
    return ToolResult(_join(parts) or "The prompt is empty.")


def _join(parts: list[Part]) -> str | list[dict[str, Any]]:
    """Join to one text; with images, a block for each part."""
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) == len(parts):
        return "\n".join(texts)
    return [
        {"type": "text", "text": clip(part, MAX_TEXT_BESIDE_IMAGES)} if isinstance(part, str) else part
        for part in parts
    ]


async def _convert_block(block: "ContentBlock", received: ReceivedFiles) -> Part:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return await received.part(block.type, block.data, block.mime_type)
        case "resource_link":
            about = " ".join(part for part in (block.title or block.name, block.description) if part)
            return f"[resource: {block.uri}] {about}".rstrip()
    return await _convert_resource(block.resource, received)


async def _convert_resource(resource: "TextResourceContents | BlobResourceContents", received: ReceivedFiles) -> Part:
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        return text
    kind = "image" if resource.mime_type in _IMAGES else "file"
    return await received.part(kind, getattr(resource, "blob", ""), resource.mime_type)
