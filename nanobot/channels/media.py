"""Attachments: detects the kind of a file, stores what arrives, and describes it to the model.

A kind follows from the first bytes, then from the name, then from the declared content type.
Each file is in a folder of its own and keeps the name that the sender gave it, without characters that mean something
to a path, a shell or a tag; its suffix follows its first bytes. Files appear atomically.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import stat
import unicodedata
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PureWindowsPath
from typing import Protocol

from nanobot.channels.errors import NotConnectedError
from nanobot.errors import NanobotError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import O_BINARY, PRIVATE_FILE, PRIVATE_FOLDER, make_private_folder, write_whole
from nanobot.utils.text import escape_brackets, human_size

log = logging.getLogger(__name__)

HEAD_BYTES = 64
"""How many bytes the detection needs."""
PARTIAL_SUFFIX = ".part"
"""Suffix of an unfinished download."""


class MediaKind(StrEnum):
    IMAGE = "image"
    VOICE = "voice"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"

    @property
    def may_quote_others(self) -> bool:
        """Whether the model reads content that may not be the sender's own. A voice message is the sender's."""
        return self in (MediaKind.IMAGE, MediaKind.AUDIO)

    @classmethod
    def of_type(cls, content_type: str | None) -> "MediaKind":
        """The kind for a declared content type, such as `image/png`; never VOICE."""
        main = (content_type or "").partition("/")[0].lower()
        return cls(main) if main in (cls.IMAGE, cls.AUDIO, cls.VIDEO) else cls.FILE


class MediaError(NanobotError):
    """An attachment cannot be stored or sent. The text says why."""


_MAGIC: tuple[tuple["re.Pattern[bytes]", str, MediaKind], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), ".png", MediaKind.IMAGE),
    (re.compile(rb"\xff\xd8\xff"), ".jpg", MediaKind.IMAGE),
    (re.compile(rb"GIF8[79]a"), ".gif", MediaKind.IMAGE),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), ".webp", MediaKind.IMAGE),
    (re.compile(rb"....ftyp(?:heic|heix|mif1)", re.DOTALL), ".heic", MediaKind.IMAGE),
    (re.compile(rb"....ftypavif", re.DOTALL), ".avif", MediaKind.IMAGE),
    (re.compile(rb"BM....\x00\x00\x00\x00", re.DOTALL), ".bmp", MediaKind.IMAGE),
    (re.compile(rb"OggS"), ".ogg", MediaKind.AUDIO),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), ".wav", MediaKind.AUDIO),
    (re.compile(rb"fLaC"), ".flac", MediaKind.AUDIO),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), ".mp3", MediaKind.AUDIO),
    (re.compile(rb"#!AMR"), ".amr", MediaKind.AUDIO),
    (re.compile(rb"....ftypM4A", re.DOTALL), ".m4a", MediaKind.AUDIO),
    (re.compile(rb"....ftypqt", re.DOTALL), ".mov", MediaKind.VIDEO),
    (re.compile(rb"....ftyp", re.DOTALL), ".mp4", MediaKind.VIDEO),
    (re.compile(rb"\x1a\x45\xdf\xa3"), ".webm", MediaKind.VIDEO),
    (re.compile(rb"%PDF-"), ".pdf", MediaKind.FILE),
)
"""First bytes of formats that are unambiguous. Office files are zip files and keep the suffix of their name."""
_CONTENT_TYPES = {
    "image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg",
    "audio/ogg": ".ogg", "audio/mpeg": ".mp3", "audio/mp4": ".m4a", "audio/wav": ".wav", "audio/webm": ".webm",
    "audio/aac": ".aac", "audio/amr": ".amr", "video/mp4": ".mp4", "video/webm": ".webm", "video/quicktime": ".mov",
    "application/pdf": ".pdf", "application/json": ".json", "application/zip": ".zip", "text/plain": ".txt",
    "text/markdown": ".md", "text/csv": ".csv", "text/html": ".html", "text/calendar": ".ics",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": ".docx",
    "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet": ".xlsx",
    "application/vnd.openxmlformats-officedocument.presentationml.presentation": ".pptx",
}  # fmt: skip
_BY_SUFFIX = {".svg": MediaKind.IMAGE, ".aac": MediaKind.AUDIO, ".opus": MediaKind.AUDIO}
_SAFE_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}\Z")


def detect_suffix(head: bytes, name: str | None, content_type: str | None) -> str:
    """Return the suffix for a file with these first bytes, name and declared content type; `.bin` if unknown."""
    for magic, known_suffix, _ in _MAGIC:
        if magic.match(head):
            return known_suffix
    suffix = PureWindowsPath(name or "").suffix.lower()  # splits at both kinds of slashes
    if is_suffix(suffix):
        return suffix
    declared = (content_type or "").partition(";")[0].strip().lower()
    return _CONTENT_TYPES.get(declared, ".bin")


def is_suffix(suffix: str) -> bool:
    """Whether this is a suffix that a stored file may have."""
    return bool(_SAFE_SUFFIX.match(suffix)) and suffix.lower() != PARTIAL_SUFFIX


def detect_file_kind(path: Path, declared: MediaKind) -> MediaKind:
    """`detect_kind` of a file; `declared` if it cannot be read. Blocking."""
    try:
        with open(path, "rb") as file:
            return detect_kind(file.read(HEAD_BYTES), path.suffix.lower(), declared)
    except OSError:
        return declared


def detect_kind(head: bytes, suffix: str, declared: MediaKind) -> MediaKind:
    """Return the kind of a file with these first bytes and this suffix; `declared` is what the sender says.

    A declared voice message stays one if the file has sound; a declared image that is none becomes FILE.
    """
    kind = next((kind for magic, _, kind in _MAGIC if magic.match(head)), kind_by_suffix(suffix))
    if kind is None:
        return MediaKind.FILE if declared is MediaKind.IMAGE else declared
    if declared in {MediaKind.VOICE, MediaKind.AUDIO} and kind in {MediaKind.AUDIO, MediaKind.VIDEO}:
        return declared  # recordings may use a video container
    return declared if declared is MediaKind.VIDEO and kind is MediaKind.IMAGE else kind  # a GIF may be a video


def kind_by_suffix(suffix: str) -> MediaKind | None:
    """The kind by the suffix alone, or None if unknown."""
    return next((kind for _, known_suffix, kind in _MAGIC if known_suffix == suffix), _BY_SUFFIX.get(suffix))


def describe_reason(error: BaseException) -> str:
    """Why a file could not be read or downloaded, in a few words."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


_UNSAFE = re.compile(r"[^\w .,()+@~-]")
"""What a file name does not keep: it could end a tag, or mean something to a shell."""
_RESERVED = re.compile(r"(?:con|prn|aux|nul|(?:com|lpt)\d)(?:\..*)?", re.IGNORECASE)
"""Names of devices on Windows."""
_MAX_NAME_BYTES = 150
EMPTY_MESSAGE = "[empty message]"
_HOUR_S = 3600.0
_WRITE_BYTES = 256 * 1024
_SLOWEST_DOWNLOAD = 128 * 1024
"""Assumed download rate, in bytes a second: a large file on a slow line takes longer than `MediaLimits.download_s`."""


class Transcriber(Protocol):
    async def transcribe(self, path: Path) -> str:
        """Return the text of a recording. Raises NanobotError."""
        ...


Chunks = Callable[[], AsyncIterator[bytes]]
"""Opens a download. Called once; the iterator is exhausted or closed."""


@dataclass(frozen=True, slots=True)
class StoredAttachment:
    """An attachment on disk; `path` is None if the download failed."""

    kind: MediaKind
    path: Path | None

    @property
    def tag(self) -> str:
        """The attachment as the model sees it in the message."""
        return f"[{self.kind}: {self.path or 'download failed'}]"


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attachment as the platform describes it; none of it is trusted. Journaled as JSON until it is downloaded.

    `id` identifies the file's content, where the platform has such an id: the same file has the same id each time (at
    Telegram `file_unique_id`, not `file_id`).
    """

    kind: MediaKind
    id: str | None = None
    name: str | None = None
    content_type: str | None = None
    size: int | None = None
    source: str = ""
    """What `BaseChannel.download` needs: a URL or a platform id."""
    is_here: bool = False
    """Whether it arrived with its message, so that there is nothing to download."""
    path: str | None = None
    """Its file, if it arrived with its message and could be stored."""

    @classmethod
    def from_stored(cls, stored: StoredAttachment) -> "Attachment":
        """An attachment that arrived with its message."""
        return cls(stored.kind, is_here=True, path=None if stored.path is None else str(stored.path))


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Limits in bytes and seconds."""

    largest: int = 50 * 1024 * 1024
    download_s: float = 120.0
    """Timeout of a download, without the time for its bytes."""
    keep_s: float = 30 * 24 * _HOUR_S
    folder_bytes: int = 2 * 1024 * 1024 * 1024


class MediaStore:
    """The attachments of one channel, in `media/<channel>/<id>/<name>` of the data folder.

    Aborts downloads larger than `limits.largest` or slower than `limits.download_s`. Deletes a file `keep_s` after it
    arrived, or earlier, oldest first, while the folder holds more than `folder_bytes`.
    """

    def __init__(self, folder: Path, *, limits: MediaLimits | None = None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._limits = limits or MediaLimits()
        self._clock = clock or SystemClock()
        self._swept_at: float | None = None
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def store(self, attachment: Attachment, chunks: Chunks) -> StoredAttachment:
        """Download an attachment, unless its file is stored already. Leaves no partial file.

        After a failure the result has no path. Raises NotConnectedError; safe to cancel.
        """
        if self._swept_at is None or self._clock.monotonic() - self._swept_at > _HOUR_S:
            await self.sweep()
        stem = secrets.token_hex(12)
        if attachment.id:
            stem = hashlib.sha256(attachment.id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
        lock = self._locks.setdefault(stem, asyncio.Lock())
        async with lock:
            try:
                stored = await asyncio.to_thread(self._find, stem)
                path = stored or await self._download(attachment, stem, chunks)
            except NotConnectedError:
                raise
            except Exception as error:  # an SDK's download may raise anything
                log.warning("a %s could not be downloaded: %s", attachment.kind, describe_reason(error))
                return StoredAttachment(attachment.kind, None)
        return StoredAttachment(await asyncio.to_thread(detect_file_kind, path, attachment.kind), path)

    async def sweep(self) -> None:
        """Delete old files, files over the folder's limit, and partial files of a crash. Never raises."""
        self._swept_at = self._clock.monotonic()
        await asyncio.to_thread(_sweep, self._folder, self._limits, self._clock.now().timestamp())

    def _find(self, stem: str) -> Path | None:
        paths = [path for path in (self._folder / stem).glob("*") if path.is_file()]
        for path in paths[:1]:
            os.utime(path, (now := self._clock.now().timestamp(), now))  # its age counts from the last time it was sent
        return paths[0] if paths else None

    async def _download(self, attachment: Attachment, stem: str, chunks: Chunks) -> Path:
        self._check(attachment.size or 0)
        partial = self._folder / f"{stem}{PARTIAL_SUFFIX}"
        make_private_folder(self._folder)  # not in a thread: a file could come to be after this was cancelled
        partial.unlink(missing_ok=True)  # left by a crash; the caller holds the lock of this name
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, PRIVATE_FILE)
        try:
            head = await self._receive(descriptor, chunks)
            path = self._folder / stem / file_name(attachment, head)
            path.parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        except BaseException:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        os.close(descriptor)
        os.replace(partial, path)
        return path

    async def _receive(self, descriptor: int, chunks: Chunks) -> bytes:
        """Write the download to the file. Return its first bytes. Raises MediaError if too large, TimeoutError."""
        buffer, size, head = bytearray(), 0, b""
        stream = chunks()
        timeout_at = asyncio.get_running_loop().time() + self._limits.download_s
        try:
            async with asyncio.timeout_at(timeout_at) as timeout:
                async for chunk in stream:
                    size += len(chunk)
                    self._check(size)
                    timeout.reschedule(timeout_at + size / _SLOWEST_DOWNLOAD)
                    buffer += chunk
                    head = head or (bytes(buffer[:HEAD_BYTES]) if len(buffer) >= HEAD_BYTES else b"")
                    if len(buffer) >= _WRITE_BYTES:
                        await finish(asyncio.to_thread(write_whole, descriptor, bytes(buffer)))
                        buffer.clear()
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
        if not size:
            raise MediaError("the platform sent an empty file")
        head = head or bytes(buffer[:HEAD_BYTES])
        await finish(asyncio.to_thread(write_whole, descriptor, bytes(buffer)))
        return head

    def _check(self, size: int) -> None:
        if size > self._limits.largest:
            raise MediaError(f"it is larger than {human_size(self._limits.largest)}, which is the most that is taken")


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    """Data in memory as a download: `lambda: one_chunk(data)`."""
    yield data


async def attachment_text(stored: StoredAttachment, transcriber: Transcriber | None = None) -> str:
    """Return the text for the message: the attachment's tag and, for a recording, its transcription.

    If the transcription fails, the text has the reason, so that the model can tell the user.
    """
    if stored.path is None or stored.kind not in {MediaKind.VOICE, MediaKind.AUDIO} or transcriber is None:
        return stored.tag
    try:
        text = (await transcriber.transcribe(stored.path)).strip()
    except NanobotError as error:
        log.warning("a recording could not be transcribed: %s", error)
        text = f"failed, {error}"
    return f"{stored.tag}\n[transcription: {escape_brackets(text)}]" if text else stored.tag


def file_name(attachment: Attachment, head: bytes) -> str:
    """The sender's name for a file with these first bytes, fit for a path; its kind if it has none."""
    suffix = detect_suffix(head, attachment.name, attachment.content_type)
    name = PureWindowsPath(attachment.name or "").name  # splits at both kinds of slashes
    name = re.sub(r"\s+", " ", _UNSAFE.sub("_", unicodedata.normalize("NFC", name)))
    if is_suffix(own := PureWindowsPath(name).suffix):
        name = name.removesuffix(own)
    name = name.encode("utf-8", "ignore")[:_MAX_NAME_BYTES].decode("utf-8", "ignore").strip(" ._")
    if not name or _RESERVED.fullmatch(name):
        name = f"{attachment.kind}{f' {name}' if name else ''}"
    return f"{name}{suffix}"


def _sweep(folder: Path, limits: MediaLimits, now: float) -> None:
    """Delete what is too old or too much. The original has its files in the folder itself."""
    files: list[tuple[float, int, Path]] = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    files.append((status.st_mtime, status.st_size, path))
                elif stat.S_ISDIR(status.st_mode):
                    inside = [(each.lstat(), each) for each in path.iterdir()]
                    files += [(each.st_mtime, each.st_size, path) for each, path in inside]
                    if not inside and now - status.st_mtime > _HOUR_S:
                        path.rmdir()
    partial_s = max(_HOUR_S, 2 * limits.download_s)
    kept = []
    for changed_at, size, path in sorted(files):
        if now - changed_at > (partial_s if path.suffix == PARTIAL_SUFFIX else limits.keep_s):
            with suppress(OSError):
                _delete(path, folder)
        else:
            kept.append((size, path))
    total = sum(size for size, _ in kept)
    for size, path in kept:
        if total > limits.folder_bytes and path.suffix != PARTIAL_SUFFIX:
            with suppress(OSError):
                _delete(path, folder)
                total -= size


def _delete(path: Path, folder: Path) -> None:
    """Delete a file, and the folder that it has for itself."""
    path.unlink()
    if path.parent != folder:
        path.parent.rmdir()
