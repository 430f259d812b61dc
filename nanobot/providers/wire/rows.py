"""The rows of a session as chat completions messages, without nanobot's own fields, with their images."""

import asyncio
import base64
import errno
import json
import mimetypes
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

from nanobot.messages.types import ChatMessage, ToolCall, ToolSchema, text_of, with_context
from nanobot.utils.files import open_nonblocking
from nanobot.utils.images import ImageError, NoDecoderError, fit_image, image_kind

MAX_IMAGE_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestDialect:
    """What one endpoint accepts for one model."""

    reasoning: bool = False
    """Assistant rows with tool calls must carry `reasoning_content`."""
    extra_content: bool = False
    """Tool calls must carry the `extra_content` they came with."""
    images: bool = True
    merge_users: bool = False
    """Consecutive user rows are rejected."""


def wire_text(row: ChatMessage) -> str:
    """The text of a row as sent: for a user row, with its runtime context."""
    return with_context(text_of(row["content"]), row.get("runtime_context") if row["role"] == "user" else None)


def text_for_model(row: ChatMessage, dialect: RequestDialect) -> str:
    """The text of a row; if the model takes no images, with a note about them, so that it does not invent their
    content.
    """
    text = wire_text(row)
    if dialect.images or not has_files(row) or not (urls := _image_urls(row)):
        return text
    what = "An image was" if len(urls) == 1 else f"{len(urls)} images were"
    return f"{text}\n\n[{what} not delivered: this model takes none. Say so, and do not guess what is in it.]"


def wire_messages(rows: Iterable[ChatMessage], dialect: RequestDialect) -> list[dict[str, Any]]:
    """The rows as chat completions messages. Reads the image files they name: call it in a thread if there are any."""
    messages: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []  # of tool results, which may hold only text: sent as a user message after them
    for row in rows:
        if images and row["role"] != "tool":
            messages.append({"role": "user", "content": images})
            images = []
        message = _message(row, dialect)
        if row["role"] == "tool":
            images += image_blocks(row, dialect)
        if dialect.merge_users and message["role"] == "user" and messages and messages[-1]["role"] == "user":
            messages[-1] = {"role": "user", "content": _join_content(messages[-1]["content"], message["content"])}
        else:
            messages.append(message)
    if images:
        messages.append({"role": "user", "content": images})
    return messages


async def read_messages(rows: Sequence[ChatMessage], dialect: RequestDialect) -> list[dict[str, Any]]:
    """The same, in a thread if that reads files."""
    if dialect.images and has_images(rows):
        return await asyncio.to_thread(wire_messages, rows, dialect)
    return wire_messages(rows, dialect)


async def plain_messages(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The rows for a third-party provider: chat completions without our own fields, runtime context included."""
    dialect = RequestDialect(reasoning=any(row.get("reasoning_content") for row in rows))
    return cast("list[ChatMessage]", await read_messages(rows, dialect))


def has_images(rows: Iterable[ChatMessage]) -> bool:
    """Whether sending these rows requires reading files."""
    return any(map(has_files, rows))


def has_files(row: ChatMessage) -> bool:
    return bool(row.get("media")) or isinstance(row["content"], list)


def _message(row: ChatMessage, dialect: RequestDialect) -> dict[str, Any]:
    role = row["role"]
    if role == "system":
        return {"role": role, "content": wire_text(row)}
    if role == "tool":
        return {"role": role, "tool_call_id": row.get("tool_call_id", ""), "content": text_for_model(row, dialect)}
    if role == "user":
        text, images = text_for_model(row, dialect), image_blocks(row, dialect)
        return {"role": role, "content": [{"type": "text", "text": text}, *images] if images else text}
    message: dict[str, Any] = {"role": role, "content": text_of(row["content"])}
    if calls := row.get("tool_calls"):
        if dialect.reasoning:
            # A row of another model has none, and servers treat an empty one as missing.
            message["reasoning_content"] = row.get("reasoning_content") or " "
        message["content"] = message["content"] or None
        message["tool_calls"] = [_tool_call(call, dialect) for call in calls]
    return message


def _tool_call(call: ToolCall, dialect: RequestDialect) -> dict[str, Any]:
    function = {"name": call["function"]["name"], "arguments": call["function"]["arguments"]}
    sent: dict[str, Any] = {"id": call["id"], "type": "function", "function": function}
    if dialect.extra_content and "extra_content" in call:
        sent["extra_content"] = call["extra_content"]
    return sent


def _join_content(first: str | list[dict[str, Any]], second: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    blocks = [[{"type": "text", "text": part}] if isinstance(part, str) else part for part in (first, second)]
    return blocks[0] + blocks[1]


def image_blocks(row: ChatMessage, dialect: RequestDialect) -> list[dict[str, Any]]:
    """The images of a row as content blocks; a text block replaces an image that cannot be sent. Reads files."""
    return [_image_block(url) for url in _image_urls(row)] if dialect.images else []


def _image_urls(row: ChatMessage) -> list[str]:
    """The distinct image URLs and paths of a row."""
    content = row["content"]
    urls: list[str] = []
    if isinstance(content, list):
        blocks = [block.get("image_url") for block in content if block.get("type") == "image_url"]
        urls = [str(block.get("url", "")) if isinstance(block, dict) else str(block or "") for block in blocks]
    unique_urls = dict.fromkeys([*urls, *row.get("media", [])])

    def is_image(url: str) -> bool:
        if url.startswith(("data:image/", "https://", "http://")):
            return True
        return (mimetypes.guess_type(_path(url).name)[0] or "").startswith("image/")

    return [url for url in unique_urls if url and is_image(url)]


def _path(url: str) -> Path:
    if url.startswith("file://"):
        with suppress(ValueError):  # not a valid URL: no file has this name
            return Path(unquote(urlsplit(url).path))
    return Path(url)


def _image_block(url: str) -> dict[str, Any]:
    """A content block, or a text block if the image is missing or too large."""
    if url.startswith(("data:", "https://", "http://")):
        return {"type": "image_url", "image_url": {"url": url}}
    path = _path(url)
    try:
        state = path.stat()
        if state.st_size > MAX_IMAGE_BYTES:
            return {"type": "text", "text": f"[image: {path}, too large to show]"}
        return {"type": "image_url", "image_url": {"url": _data_url(str(path), state.st_mtime_ns, state.st_size)}}
    except ImageError as error:  # a server would reject it, and with it every later request of the session
        return {"type": "text", "text": f"[image: {path}, not delivered. {error}]"}
    except (OSError, ValueError):  # ValueError: no file can have this name
        return {"type": "text", "text": f"[image: {path}, no longer there]"}


@lru_cache(maxsize=16)
def _data_url(path: str, _mtime_ns: int, _size: int) -> str:  # the last two make the cache notice a change
    with open(path, "rb", opener=_open_image) as file:  # a command may have replaced the file since
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        data = file.read(MAX_IMAGE_BYTES)
    try:
        image = fit_image(data)
        kind, data = image.kind, image.data
    except NoDecoderError:
        if image_kind(data[:32]) is None:
            raise ImageError("It is not an image.") from None
        kind = mimetypes.guess_type(path)[0] or "image/png"
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _open_image(path: str, flags: int) -> int:
    """Open without blocking. Files in `.nanobot/received` are never links: do not follow one that a command made."""
    is_copy = Path(path).parent.parent.name == ".nanobot"
    return open_nonblocking(path, flags | (getattr(os, "O_NOFOLLOW", 0) if is_copy else 0))


def encode(value: object) -> bytes:
    """JSON as UTF-8; a lone surrogate, which UTF-8 cannot encode, becomes a question mark."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


class ToolsEncoder:
    """Encodes tool schemas in a wire's shape. The same schema objects are encoded once."""

    def __init__(self, shape: Callable[[ToolSchema], object] = lambda tool: tool) -> None:
        self._shape = shape
        self._last: tuple[list[ToolSchema], bytes] = ([], b"[]")

    def encode(self, tools: Sequence[ToolSchema]) -> bytes:
        last_tools, encoded = self._last
        if len(last_tools) != len(tools) or any(a is not b for a, b in zip(last_tools, tools, strict=True)):
            encoded = encode([self._shape(tool) for tool in tools])
            self._last = (list(tools), encoded)
        return encoded


class RowsEncoder:
    """Encodes rows and caches their bytes: a chat sends its whole history with every request, and all but the end of it
    was sent before. With 200 rows that takes a twentieth of the time.

    A row must not change after it was encoded, except for its `content`, which is compared.
    """

    def __init__(self, max_bytes: int = 2 << 20) -> None:
        """The limit is enough for a dozen long chats, or hundreds of short ones."""
        self._max_bytes = max_bytes
        self._cached: dict[RequestDialect, dict[int, tuple[ChatMessage, object, bytes]]] = {}
        """By identity: the row (referenced, so that its id is not reused), its content, and its bytes."""
        self._size = 0

    def encode(self, rows: Sequence[ChatMessage], dialect: RequestDialect) -> bytes | None:
        """The JSON of `wire_messages`; None if that needs reading files or merging rows."""
        if dialect.merge_users:
            return None
        if self._size > self._max_bytes:
            self._cached, self._size = {}, 0
        cached = self._cached.setdefault(dialect, {})
        parts = []
        for row in rows:
            entry = cached.get(id(row))
            if entry is None or entry[1] is not row["content"]:
                if dialect.images and has_files(row):
                    return None
                entry = row, row["content"], encode(_message(row, dialect))
                if row["role"] != "system":  # long, and new for every request
                    cached[id(row)] = entry
                    self._size += len(entry[2]) + 200  # what an entry takes beside its text
            parts.append(entry[2])
        return b"[" + b",".join(parts) + b"]"


def request_body(fields: dict[str, Any], tools: bytes | None, messages: bytes, last: str = "messages") -> bytes:
    """The whole body: fields, tools, then the messages under the wire's name for them. So each request of a session
    starts, byte for byte, with the previous one and hits the server's prompt cache.
    """
    parts = [encode(fields)[:-1]]
    if tools is not None:
        parts += [b',"tools":', tools]
    parts += [f',"{last}":'.encode(), messages, b"}"]
    return b"".join(parts)
