"""Reads, checks and writes frames (docs/formats.md), and opens the files that they name."""

import asyncio
import base64
import binascii
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import one_chunk
from nanobot.channels.outgoing import stream_outgoing
from nanobot.errors import NanobotError
from nanobot.markdown import well_formed

MOST_PARTS = 50_000
"""Most brackets and commas in a frame: the parser is slow for many small parts, not for a long text."""
MOST_ATTACHED = 10
NAME = re.compile(r"[\w.@+-]{1,64}")
"""Pattern of the names of clients and threads."""
Fields = dict[str, Any]
EXPECTED = "Send JSON objects whose `type` is message, fetch or ping."

_ID = re.compile(r"[!-~]{1,128}")
_TYPES = {OutboundKind.STREAM_DELTA: "delta", OutboundKind.STREAM_END: "delta_end"}
"""Frame types that differ from the name of the kind."""


class FrameError(NanobotError):
    """An invalid frame. The client gets the text; the connection stays open."""


def parse_frame(raw: str | bytes) -> Payload:
    """Parse a client's frame. Raises FrameError unless it is a text frame with a JSON object of limited size."""
    if isinstance(raw, str) and sum(raw.count(mark) for mark in "[{,") > MOST_PARTS:
        raise FrameError(f"A frame may have at most {MOST_PARTS} brackets and commas. Send a long text as a file.")
    if isinstance(raw, str) and (frame := Payload.parse(raw)):
        return frame
    raise FrameError(EXPECTED)


def read_message(client: str, frame: Payload) -> Incoming:
    """A message of this client, without its files. Raises FrameError."""
    if not _ID.fullmatch(message_id := frame.text("id")):
        raise FrameError("A message needs a unique `id`, so that a duplicate is not answered twice.")
    if not isinstance(frame.get("text", ""), str):
        raise FrameError("`text` must be a string.")
    if frame.get("thread") is not None and not NAME.fullmatch(frame.text("thread")):
        raise FrameError("`thread` must be a name of letters, digits and . _ @ + -, at most 64 characters.")
    media = frame.get("media", [])
    if not isinstance(media, list) or not len(frame.parts("media")) == len(media) <= MOST_ATTACHED:
        raise FrameError(f"`media` must be a list of at most {MOST_ATTACHED} objects with `data` or `path`.")
    return Incoming(client, client, well_formed(frame.text("text")), message_id, frame.text("thread") or None)


async def open_attachment(file: Payload, folders: Sequence[str]) -> Callable[[], AsyncIterator[bytes]]:
    """Open an attachment of a message; `folders` are those whose files it may name. Raises FrameError."""
    if "data" in file:
        try:
            decoded = await asyncio.to_thread(base64.b64decode, file.text("data"), validate=True)
        except (binascii.Error, ValueError) as error:
            raise FrameError(f"`data` of an attachment is not base64 ({error}).") from error
        return lambda: one_chunk(decoded)
    path = await asyncio.to_thread(_resolve_within, file.text("path"), folders)
    return lambda: stream_outgoing(path)


def _resolve_within(name: str, folders: Sequence[str]) -> Path:
    """Resolve a path that must be in one of these folders. Raises FrameError."""
    try:
        path = Path(name).resolve(strict=True)
        if any(path.is_relative_to(Path(folder).expanduser().resolve()) for folder in folders):
            return path
    except (OSError, ValueError):
        pass
    raise FrameError(
        "An attachment needs `data` (base64), or the `path` of a file in one of channels.websocket.mediaFolders."
    )


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
