"""From rows of a session to the body of a chat completions request. Fields that are ours stay home.

The messages come last and everything is in a fixed order, so that each request of a session is, byte for byte, the head
of the next. Tool schemas are encoded once and spliced in; so are rows (`encoded_rows`).
"""

import asyncio
import base64
import errno
import json
import mimetypes
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from nanobot.messages.types import ChatMessage, ToolCall, ToolSchema, text_of, with_context
from nanobot.utils.files import without_waiting
from nanobot.utils.pictures import NoDecoderError, PictureError, fitted, picture_kind

LARGEST_IMAGE = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Dialect:
    """What one endpoint takes for one model."""

    reasoning: bool = False
    """It wants its `reasoning_content` back on assistant rows with tool calls, and refuses them without."""
    extra_content: bool = False
    """It wants back what it put beside a call."""
    images: bool = True
    merge_users: bool = False
    """It refuses two user rows in a row."""


def wire_text(row: ChatMessage) -> str:
    """The words of a row as they go out: a user's with the runtime context that was sent with them."""
    return with_context(text_of(row["content"]), row.get("runtime_context") if row["role"] == "user" else None)


def words_of(row: ChatMessage, dialect: Dialect) -> str:
    """The same, with a word on the images that this model is not shown: else it would make up what is in them."""
    text = wire_text(row)
    if dialect.images or not reads_files(row) or not (images := _images_of(row)):
        return text
    what = "An image was" if len(images) == 1 else f"{len(images)} images were"
    return f"{text}\n\n[{what} not delivered: this model takes none. Say so, and do not guess what is to be seen.]"


def wire_messages(rows: Iterable[ChatMessage], dialect: Dialect) -> list[dict[str, Any]]:
    """The rows as chat completions has them. Reads the images they name: not for the event loop if there are any."""
    out: list[dict[str, Any]] = []
    pictures: list[dict[str, Any]] = []  # of tool results, which may hold only text: they follow as a user's row
    for row in rows:
        if pictures and row["role"] != "tool":
            out.append({"role": "user", "content": pictures})
            pictures = []
        message = _MAPPERS[row["role"]](row, dialect)
        if row["role"] == "tool":
            pictures += pictures_of(row, dialect)
        if dialect.merge_users and message["role"] == "user" and out and out[-1]["role"] == "user":
            out[-1] = {"role": "user", "content": _joined(out[-1]["content"], message["content"])}
        else:
            out.append(message)
    if pictures:
        out.append({"role": "user", "content": pictures})
    return out


async def plain_messages(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The rows as any provider knows them: chat completions without fields of ours, runtime context in its place."""
    dialect = Dialect(reasoning=any(row.get("reasoning_content") for row in rows))
    plain = asyncio.to_thread(wire_messages, rows, dialect) if has_images(rows) else None
    return cast("list[ChatMessage]", await plain if plain else wire_messages(rows, dialect))


def has_images(rows: Iterable[ChatMessage]) -> bool:
    """Whether sending these rows means reading files."""
    return any(map(reads_files, rows))


def reads_files(row: ChatMessage) -> bool:
    """Whether sending this row means reading files."""
    return bool(row.get("media")) or isinstance(row["content"], list)


def _system(row: ChatMessage, _dialect: Dialect) -> dict[str, Any]:
    return {"role": "system", "content": wire_text(row)}


def _user(row: ChatMessage, dialect: Dialect) -> dict[str, Any]:
    pictures = pictures_of(row, dialect)
    text = words_of(row, dialect)
    if not pictures:
        return {"role": "user", "content": text}
    return {"role": "user", "content": [{"type": "text", "text": text}, *pictures]}


def _assistant(row: ChatMessage, dialect: Dialect) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text_of(row["content"])}
    calls = row.get("tool_calls")
    if not calls:
        return message
    if dialect.reasoning:
        # A row of another model has none, and an empty one counts as missing.
        message["reasoning_content"] = row.get("reasoning_content") or " "
    message["content"] = message["content"] or None
    message["tool_calls"] = [_call(call, dialect) for call in calls]
    return message


def _call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
    sent: dict[str, Any] = {"id": call["id"], "type": "function", "function": function}
    if dialect.extra_content and "extra_content" in call:
        sent["extra_content"] = call["extra_content"]
    return sent


def _tool(row: ChatMessage, dialect: Dialect) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": row.get("tool_call_id", ""), "content": words_of(row, dialect)}


_MAPPERS = {"system": _system, "user": _user, "assistant": _assistant, "tool": _tool}


def _joined(first: str | list[dict[str, Any]], second: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_blocks(first), *_blocks(second)]


def _blocks(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def pictures_of(row: ChatMessage, dialect: Dialect) -> list[dict[str, Any]]:
    """The images of a row as blocks; one that cannot be shown leaves a text block. Reads files."""
    return [_picture(url) for url in _images_of(row)] if dialect.images else []


def _images_of(row: ChatMessage) -> list[str]:
    """Where the images of a row are, each once."""
    content = row["content"]
    urls: list[str] = []
    if isinstance(content, list):
        blocks = [block.get("image_url") for block in content if block.get("type") == "image_url"]
        urls = [str(block.get("url", "")) if isinstance(block, dict) else str(block or "") for block in blocks]
    seen = dict.fromkeys([*urls, *row.get("media", [])])
    return [url for url in seen if url and _is_image(url)]


def _is_image(url: str) -> bool:
    if url.startswith(("data:image/", "https://", "http://")):
        return True
    return (mimetypes.guess_type(_path(url).name)[0] or "").startswith("image/")


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path)) if url.startswith("file://") else Path(url)


def _picture(url: str) -> dict[str, Any]:
    """A block the wire takes. An image that is gone or too large leaves a word in its place."""
    if url.startswith(("data:", "https://", "http://")):
        return {"type": "image_url", "image_url": {"url": url}}
    path = _path(url)
    try:
        found = path.stat()
        if found.st_size > LARGEST_IMAGE:
            return {"type": "text", "text": f"[image: {path}, too large to show]"}
        return {"type": "image_url", "image_url": {"url": _data_url(str(path), found.st_mtime_ns, found.st_size)}}
    except OSError:
        return {"type": "text", "text": f"[image: {path}, no longer there]"}
    except PictureError as error:  # a server would refuse it, and every later request of the session with it
        return {"type": "text", "text": f"[image: {path}, not delivered. {error}]"}


@lru_cache(maxsize=16)
def _data_url(path: str, _mtime_ns: int, _size: int) -> str:  # the last two are there to notice a change
    with open(path, "rb", opener=_plainly) as file:  # by now a command may have put something else there
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(errno.ENOENT, "no plain file", path)
        data = file.read(LARGEST_IMAGE)
    try:
        picture = fitted(data)
        kind, data = picture.kind, picture.data
    except NoDecoderError:
        if picture_kind(data[:32]) is None:
            raise PictureError("It is no picture.") from None
        kind = mimetypes.guess_type(path)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _plainly(path: str, flags: int) -> int:
    """Open what is there, without waiting. A copy of ours is no link: what a command put in its place is not shown."""
    ours = Path(path).parent.parent.name == ".nanobot"
    return without_waiting(path, flags | (getattr(os, "O_NOFOLLOW", 0) if ours else 0))


def encode(value: object) -> bytes:
    """JSON as every server reads it; half a surrogate pair, which UTF-8 cannot hold, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class ToolsEncoder:
    """Tool schemas as bytes, in the shape that a wire has for them. The same schema objects are encoded once."""

    def __init__(self, shape: Callable[[ToolSchema], object] = lambda tool: tool) -> None:
        self._shape = shape
        self._last: tuple[list[ToolSchema], bytes] = ([], b"[]")

    def encode(self, tools: Sequence[ToolSchema]) -> bytes:
        """The list of tools as JSON."""
        known, encoded = self._last
        if len(known) != len(tools) or any(a is not b for a, b in zip(known, tools, strict=True)):
            encoded = encode([self._shape(tool) for tool in tools])
            self._last = (list(tools), encoded)
        return encoded


def request_body(fields: dict[str, Any], tools: bytes | None, messages: bytes, last: str = "messages") -> bytes:
    """The whole body: fields, tools, then the messages under the name that the wire has for them."""
    parts = [encode(fields)[:-1]]
    if tools is not None:
        parts += [b',"tools":', tools]
    parts += [f',"{last}":'.encode(), messages, b"}"]
    return b"".join(parts)
