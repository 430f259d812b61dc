"""The frames of the WebSocket channel (docs/formats.md): read, checked and written; and the files that go with them."""

import asyncio
import base64
import binascii
import json
import re
import secrets
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os import fstat
from pathlib import Path
from typing import Any

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.channels.media import one_chunk
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import Outgoing, open_outgoing, prepare_outgoing
from nanobot.channels.websocket.backlog import FrameBacklog
from nanobot.errors import NanobotError
from nanobot.markdown.chunks import well_formed

MOST_PARTS = 50_000
"""Of a frame, by its brackets and commas. The parser is fast with a long text, and slow with many small parts."""
LARGEST_FILE = 50 * 1024 * 1024
PART = 256 * 1024
"""How much of a file goes in one frame."""
MOST_ATTACHED = 10
MOST_FILES = 200
"""Files of one chat that can be fetched: the newest."""
NAME = re.compile(r"[\w.@+-]{1,64}")
"""Of a client, and of a thread."""
Fields = dict[str, Any]
EXPECTED = "Send JSON objects whose `type` is message, fetch or ping."

_ID = re.compile(r"[!-~]{1,128}")
_TYPES = {OutboundKind.STREAM_DELTA: "delta", OutboundKind.STREAM_END: "delta_end"}
"""Where the word on the wire is not that of the bus."""


class FrameError(NanobotError):
    """A client sent what cannot be used. The text goes to it; the connection stays."""


@dataclass(frozen=True, slots=True)
class IncomingFrame:
    """A message of a client."""

    id: str
    text: str
    thread: str | None
    files: Sequence[Fields]

    @classmethod
    def of(cls, frame: Fields) -> "IncomingFrame":
        """What the frame says. Raises FrameError."""
        message_id, text, thread = frame.get("id"), frame.get("text", ""), frame.get("thread")
        if not isinstance(message_id, str) or not _ID.fullmatch(message_id):
            raise FrameError("A message needs a unique `id`, so that a duplicate is not answered twice.")
        if not isinstance(text, str):
            raise FrameError("`text` must be a string.")
        if thread is not None and (not isinstance(thread, str) or not NAME.fullmatch(thread)):
            raise FrameError("`thread` must be a name of letters, digits and . _ @ + -, at most 64 characters.")
        files = frame.get("media", [])
        if not isinstance(files, list) or len(files) > MOST_ATTACHED or not all(isinstance(one, dict) for one in files):
            raise FrameError(f"`media` must be a list of at most {MOST_ATTACHED} objects with `data` or `path`.")
        return cls(message_id, well_formed(text), thread, files)


@dataclass(slots=True)
class ChatTarget:
    """What is said to one client, and which files it may fetch."""

    backlog: FrameBacklog = field(default_factory=FrameBacklog)
    files: dict[str, Outgoing] = field(default_factory=dict)

    async def attach(self, named: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """How a frame names these files, ready to be fetched; and a word about each that cannot be sent."""
        files, problems = list[Fields](), list[str]()
        for one in named:
            try:
                found = await prepare_outgoing(one, largest=LARGEST_FILE)
            except MediaError as error:
                problems.append(f"({error})")
                continue
            told: Fields = {"name": found.name, "kind": found.kind.value}
            if found.url is not None:
                told["url"] = found.url
            else:
                file_id = secrets.token_urlsafe(12)
                self.files[file_id] = found
                told |= {"file": file_id, "size": found.size}
            files.append(told)
        for old in [*self.files][:-MOST_FILES]:
            del self.files[old]
        return files, problems

    async def part_of_file(self, frame: Fields) -> Fields:
        """The answer to `fetch`. Raises FrameError."""
        file_id, offset = frame.get("file"), frame.get("offset", 0)
        found = self.files.get(file_id) if isinstance(file_id, str) else None
        if found is None or found.path is None:
            raise FrameError("There is no such file. Files can be fetched until the gateway restarts.")
        if not isinstance(offset, int) or not 0 <= offset <= found.size:
            raise FrameError(f"`offset` must be between 0 and {found.size}.")
        try:
            data = await asyncio.to_thread(_part, found.path, offset)
        except OSError as error:
            raise FrameError(f"{found.name} can no longer be read ({error.strerror}).") from error
        encoded = base64.b64encode(data).decode()
        return {"type": "data", "file": file_id, "offset": offset, "size": found.size, "data": encoded}


async def opened(told: Fields, folders: Sequence[str]) -> Callable[[], AsyncIterator[bytes]]:
    """What came with a message, to be read; `folders` are those whose files may be named. Raises FrameError."""
    if isinstance(data := told.get("data"), str):
        try:
            decoded = await asyncio.to_thread(base64.b64decode, data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FrameError(f"`data` of an attachment is not base64 ({error}).") from error
        return lambda: one_chunk(decoded)
    path = await asyncio.to_thread(_within, str(told.get("path", "")), folders)
    return lambda: _read(path)


def parse_frame(raw: str | bytes) -> Fields:
    """What a client sent. Raises FrameError where it is no JSON object in a text frame, or one of too many parts."""
    if isinstance(raw, str) and sum(raw.count(mark) for mark in "[{,") > MOST_PARTS:
        raise FrameError(f"A frame may have at most {MOST_PARTS} brackets and commas. Send a long text as a file.")
    try:
        frame = json.loads(raw) if isinstance(raw, str) else None
    except (ValueError, RecursionError):
        frame = None
    if not isinstance(frame, dict):
        raise FrameError(EXPECTED)
    return frame


def encode_frame(frame: Fields) -> str:
    """As it goes over the wire, which takes no halves of characters."""
    return well_formed(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))


def frame_of(message: OutboundMessage, frame_id: str | None, files: list[Fields]) -> str:
    """What goes over the wire, but for its number; what is empty is left out."""
    told = {
        "id": frame_id,
        "turn": message.turn_id,
        "thread": message.thread_id,
        "reply_to": message.reply_to,
        "text": message.content,
        "files": files,
        "buttons": [{"label": one.label, "value": one.value} for one in message.buttons],
    }
    return encode_frame({"type": _TYPES.get(message.kind, message.kind.value)} | {k: v for k, v in told.items() if v})


def id_of(message: OutboundMessage) -> str:
    """The same for each try of a message, and where there is a journal, also after a crash."""
    if message.sent_ids:
        return message.sent_ids[0]
    if message.journal_id is None:
        return secrets.token_hex(12)
    parts = (message.journal_id, message.turn_id, message.thread_id, message.content, message.media)
    return sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _within(named: str, folders: Sequence[str]) -> Path:
    """The path without links, in a folder whose files clients may name. Raises FrameError."""
    try:
        path = Path(named).resolve(strict=True)
        inside = any(path.is_relative_to(Path(folder).expanduser().resolve()) for folder in folders)
    except (OSError, ValueError):
        inside = False
    if not inside:
        raise FrameError(
            "An attachment needs `data` (base64), or the `path` of a file in one of channels.websocket.mediaFolders."
        )
    return path


async def _read(path: Path) -> AsyncIterator[bytes]:
    """The bytes of exactly this file: a link that was put in its place, or above it, is not followed."""
    with await asyncio.to_thread(open_outgoing, path) as file:
        if not stat.S_ISREG(fstat(file.fileno()).st_mode):
            raise MediaError(f"{path.name} is not a regular file")
        while data := await asyncio.to_thread(file.read, PART):
            yield data


def _part(path: Path, offset: int) -> bytes:
    with open_outgoing(path) as file:
        file.seek(offset)
        return file.read(PART)
