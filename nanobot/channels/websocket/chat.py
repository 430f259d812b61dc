"""Frames (docs/formats.md), and what one client gets: numbered frames and files, from where each connection stopped.

Bounded: transient frames (progress) are dropped first, then the oldest delivered ones; undelivered frames stay. A
connection that continues too late is told that there is a gap.
"""

import asyncio
import base64
import binascii
import json
import re
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from nanobot.bus.events import OutboundKind, OutboundMessage
from nanobot.channels.incoming import Incoming, Payload
from nanobot.channels.media import MediaError, one_chunk
from nanobot.channels.outgoing import CHUNK, Outgoing, open_outgoing, prepare_outgoing, stream_outgoing
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
MOST_FRAMES = 500
MOST_CHARACTERS = 2_000_000
LARGEST_FILE = 50 * 1024 * 1024
MOST_FILES = 200
"""Files of one client that can be fetched: the newest."""


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


@dataclass(eq=False, slots=True)
class StoredFrame:
    """A frame. `text` is its JSON as sent."""

    seq: int
    text: str
    id: str | None = None
    """Its id, the same after a restart of the gateway; None for a transient frame."""
    has_arrived: bool = False
    """Whether a connection has it."""

    @property
    def is_undelivered(self) -> bool:
        """Whether it must be delivered and is not yet."""
        return self.id is not None and not self.has_arrived


class ClientChat:
    """The frames of one client, numbered from 1 without repeats, and the files that they name."""

    def __init__(self, name: str, *, most_frames: int | None = None, most_characters: int | None = None) -> None:
        self.name = name
        self.connections = 0
        """How many are open."""
        self.last = 0
        """The number of the newest frame; 0 before the first."""
        self._most = (most_frames or MOST_FRAMES, most_characters or MOST_CHARACTERS)
        self._frames: deque[StoredFrame] = deque()
        self._characters = 0
        self._last_dropped = 0
        self._files: dict[str, Outgoing] = {}
        self._changed = asyncio.Event()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        """Wait until this is true of the frames or connections. Safe to cancel."""
        while not condition():
            await self._changed.wait()

    @contextmanager
    def connection(self) -> Iterator[None]:
        """Count a connection as open while this block runs."""
        self.connections += 1
        self._wake()
        try:
            yield
        finally:
            self.connections -= 1

    def find(self, frame_id: str) -> StoredFrame | None:
        """The frame with this id, if it is kept."""
        return next((frame for frame in self._frames if frame.id == frame_id), None)

    def add(self, text: str, frame_id: str | None = None) -> StoredFrame:
        """Add a frame. The text is a JSON object without its number."""
        self.last += 1
        frame = StoredFrame(self.last, f'{{"seq":{self.last},{text[1:]}', frame_id)
        self._frames.append(frame)
        self._characters += len(frame.text)
        self._drop_excess()
        self._wake()
        return frame

    def drop(self, frame: StoredFrame) -> None:
        """Remove a frame that need not be delivered any more."""
        if frame in self._frames:
            self._frames.remove(frame)
            self._characters -= len(frame.text)

    def before_undelivered(self) -> int:
        """The number before the first undelivered frame: where a new connection starts."""
        return next((frame.seq for frame in self._frames if frame.is_undelivered), self.last + 1) - 1

    def after(self, seq: int) -> list[StoredFrame]:
        """The kept frames after this number."""
        return [frame for frame in self._frames if frame.seq > seq]

    def has_gap(self, seq: int) -> bool:
        """Whether a frame with an id after this number was dropped."""
        return seq < self._last_dropped

    def confirm(self, seq: int) -> None:
        """Record that a connection has everything up to this number."""
        for frame in self._frames:
            frame.has_arrived = frame.has_arrived or frame.seq <= seq
        self._drop_excess()  # delivered frames may be dropped now
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _drop_excess(self) -> None:
        while len(self._frames) > self._most[0] or self._characters > self._most[1]:
            older = list(self._frames)[:-1]
            dropped = next((frame for frame in older if frame.id is None), None)
            dropped = dropped or next((frame for frame in older if not frame.is_undelivered), None)
            if dropped is None:
                return
            if dropped.id is not None:
                self._last_dropped = max(self._last_dropped, dropped.seq)
            self.drop(dropped)

    # files

    async def attach(self, sources: Sequence[str]) -> tuple[list[Fields], list[str]]:
        """Make files fetchable. Return their fields in a frame, and a sentence for each that cannot be sent."""
        files, problems = list[Fields](), list[str]()
        for source in sources:
            try:
                file = await prepare_outgoing(source, largest=LARGEST_FILE)
            except MediaError as error:
                problems.append(f"({error})")
                continue
            place: Fields = {"url": file.url}
            if file.url is None:
                place = {"file": secrets.token_urlsafe(12), "size": file.size}
                self._files[place["file"]] = file
            files.append({"name": file.name, "kind": file.kind.value} | place)
        for old in [*self._files][:-MOST_FILES]:
            del self._files[old]
        return files, problems

    async def read_part(self, frame: Payload) -> Fields:
        """The answer to `fetch`. Raises FrameError."""
        file_id, offset = frame.text("file"), frame.get("offset", 0)
        file = self._files.get(file_id)
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


def _read_part(path: Path, offset: int) -> bytes:
    with open_outgoing(path) as file:
        file.seek(offset)
        return file.read(CHUNK)
