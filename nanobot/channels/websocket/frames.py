"""Reads, checks and writes the frames of the WebSocket channel (docs/formats.md), and the files they refer to."""

import asyncio
import base64
import binascii
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.channels.media import one_chunk
from nanobot.channels.media_kinds import MediaError
from nanobot.channels.outgoing import CHUNK, Outgoing, open_outgoing, prepare_outgoing, stream_outgoing
from nanobot.channels.websocket.backlog import FrameBacklog
from nanobot.errors import NanobotError
from nanobot.markdown import well_formed

MOST_PARTS = 50_000
"""Most brackets and commas in a frame: the parser is slow for many small parts, not for a long text."""
LARGEST_FILE = 50 * 1024 * 1024
MOST_ATTACHED = 10
MOST_FILES = 200
"""Files of one chat that can be fetched: the newest."""
NAME = re.compile(r"[\w.@+-]{1,64}")
"""Pattern of the names of clients and threads."""
Fields = dict[str, Any]
EXPECTED = "Send JSON objects whose `type` is message, fetch or ping."

_ID = re.compile(r"[!-~]{1,128}")
_TYPES = {OutboundKind.STREAM_DELTA: "delta", OutboundKind.STREAM_END: "delta_end"}
"""Frame types that differ from the name of the kind."""


class FrameError(NanobotError):
    """An invalid frame. The client gets the text; the connection stays open."""


@dataclass(frozen=True, slots=True)
class IncomingFrame:
    """A message from a client."""

    id: str
    text: str
    thread: str | None
    files: Sequence[Fields]

    @classmethod
    def of(cls, frame: Fields) -> "IncomingFrame":
        """Parse a message frame. Raises FrameError."""
        message_id, text, thread = frame.get("id"), frame.get("text", ""), frame.get("thread")
        if not isinstance(message_id, str) or not _ID.fullmatch(message_id):
            raise FrameError("A message needs a unique `id`, so that a duplicate is not answered twice.")
        if not isinstance(text, str):
            raise FrameError("`text` must be a string.")
        if thread is not None and (not isinstance(thread, str) or not NAME.fullmatch(thread)):
            raise FrameError("`thread` must be a name of letters, digits and . _ @ + -, at most 64 characters.")
        files = frame.get("media", [])
        is_list = isinstance(files, list) and all(isinstance(file, dict) for file in files)
        if not is_list or len(files) > MOST_ATTACHED:
            raise FrameError(f"`media` must be a list of at most {MOST_ATTACHED} objects with `data` or `path`.")
        return cls(message_id, well_formed(text), thread, files)


@dataclass(slots=True)
class ChatTarget:
    """The frames for one client, and the files it may fetch."""

    backlog: FrameBacklog = field(default_factory=FrameBacklog)
    files: dict[str, Outgoing] = field(default_factory=dict)

    async def attach(self, sources: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """Make files fetchable. Return their fields in a frame, and a sentence for each that cannot be sent."""
        files, problems = list[Fields](), list[str]()
        for source in sources:
            try:
                file = await prepare_outgoing(source, largest=LARGEST_FILE)
            except MediaError as error:
                problems.append(f"({error})")
                continue
            fields: Fields = {"name": file.name, "kind": file.kind.value}
            if file.url is not None:
                fields["url"] = file.url
            else:
                file_id = secrets.token_urlsafe(12)
                self.files[file_id] = file
                fields |= {"file": file_id, "size": file.size}
            files.append(fields)
        for old in [*self.files][:-MOST_FILES]:
            del self.files[old]
        return files, problems

    async def read_part(self, frame: Fields) -> Fields:
        """The answer to `fetch`. Raises FrameError."""
        file_id, offset = frame.get("file"), frame.get("offset", 0)
        file = self.files.get(file_id) if isinstance(file_id, str) else None
        if file is None or file.path is None:
            raise FrameError("There is no such file. Files can be fetched until the gateway restarts.")
        if not isinstance(offset, int) or not 0 <= offset <= file.size:
            raise FrameError(f"`offset` must be between 0 and {file.size}.")
        try:
            data = await asyncio.to_thread(_read_part, file.path, offset)
        except OSError as error:
            raise FrameError(f"{file.name} can no longer be read ({error.strerror}).") from error
        encoded = base64.b64encode(data).decode()
        return {"type": "data", "file": file_id, "offset": offset, "size": file.size, "data": encoded}


async def open_attachment(fields: Fields, folders: Sequence[str]) -> Callable[[], AsyncIterator[bytes]]:
    """Open an attachment of a message; `folders` are those whose files it may name. Raises FrameError."""
    if isinstance(data := fields.get("data"), str):
        try:
            decoded = await asyncio.to_thread(base64.b64decode, data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise FrameError(f"`data` of an attachment is not base64 ({error}).") from error
        return lambda: one_chunk(decoded)
    path = await asyncio.to_thread(_resolve_within, str(fields.get("path", "")), folders)
    return lambda: stream_outgoing(path)


def parse_frame(raw: str | bytes) -> Fields:
    """Parse a client's frame. Raises FrameError unless it is a text frame with a JSON object of limited size."""
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
    """The JSON of a frame, without lone surrogates."""
    return well_formed(json.dumps(frame, ensure_ascii=False, separators=(",", ":")))


def frame_of(message: OutboundMessage, frame_id: str | None, files: list[Fields]) -> str:
    """The JSON of a message frame without its number; empty fields are left out."""
    fields = {
        "id": frame_id,
        "turn": message.turn_id,
        "thread": message.thread_id,
        "reply_to": message.reply_to,
        "text": message.content,
        "files": files,
        "buttons": [{"label": button.label, "value": button.value} for button in message.buttons],
    }
    return encode_frame({"type": _TYPES.get(message.kind, message.kind.value)} | {k: v for k, v in fields.items() if v})


def frame_id_of(message: OutboundMessage) -> str:
    """The frame id of a message: the same for each attempt, and with a journal also after a crash."""
    if message.sent_ids:
        return message.sent_ids[0]
    if message.journal_id is None:
        return secrets.token_hex(12)
    parts = (message.journal_id, message.turn_id, message.thread_id, message.content, message.media)
    return sha256(json.dumps(parts).encode()).hexdigest()[:24]


def _resolve_within(name: str, folders: Sequence[str]) -> Path:
    """Resolve a path that must be in one of these folders. Raises FrameError."""
    try:
        path = Path(name).resolve(strict=True)
        inside = any(path.is_relative_to(Path(folder).expanduser().resolve()) for folder in folders)
    except (OSError, ValueError):
        inside = False
    if not inside:
        raise FrameError(
            "An attachment needs `data` (base64), or the `path` of a file in one of channels.websocket.mediaFolders."
        )
    return path


def _read_part(path: Path, offset: int) -> bytes:
    with open_outgoing(path) as file:
        file.seek(offset)
        return file.read(CHUNK)
