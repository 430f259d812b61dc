"""Attachments, both ways: what arrives is kept within bounds, what goes out is looked at first.

Nothing the sender wrote becomes a path: a file is named by us, and its end says what its first bytes are. A file lies
in its place whole or not at all. Old files go: see MediaStore.
"""

import asyncio
import hashlib
import logging
import os
import re
import secrets
import stat
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from io import BufferedReader
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Protocol
from urllib.parse import urlsplit

from nanobot.errors import NanobotError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import O_BINARY, PRIVATE_FILE, make_private_folder, write_whole
from nanobot.utils.no_links import open_exactly
from nanobot.utils.text import human_size, in_a_tag

log = logging.getLogger(__name__)

EMPTY_MESSAGE = "[empty message]"
_PARTIAL = ".part"
_HOUR_S = 3600.0
_AT_ONCE = 256 * 1024
_HEAD = 64


class MediaKind(StrEnum):
    """What an attachment is to a person."""

    IMAGE = "image"
    VOICE = "voice"
    AUDIO = "audio"
    VIDEO = "video"
    FILE = "file"

    @classmethod
    def of_type(cls, content_type: str | None) -> "MediaKind":
        """By what a platform says of it, such as `image/png`; a voice no content type tells."""
        main = (content_type or "").partition("/")[0].lower()
        return cls(main) if main in (cls.IMAGE, cls.AUDIO, cls.VIDEO) else cls.FILE


class MediaError(NanobotError):
    """An attachment cannot be sent. The text says why, and what to do."""


class Transcriber(Protocol):
    """Who makes text of a recording. Raises a NanobotError where that fails."""

    async def transcribe(self, path: Path) -> str:
        """What is said in it."""
        ...


Chunks = Callable[[], AsyncIterator[bytes]]
"""Opens a download: called once, read to its end or closed."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What a platform says of an attachment, none of it trusted. `id` is the platform's name for the very file.

    (At Telegram that is `file_unique_id`: a `file_id` is another one each time.)
    """

    kind: MediaKind
    id: str | None = None
    name: str | None = None
    content_type: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """What became of an attachment: its path, or none where it could not be had."""

    kind: MediaKind
    path: Path | None

    @property
    def tag(self) -> str:
        """How the message says it to the model."""
        return f"[{self.kind}: {self.path or 'download failed'}]"


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """How much is taken, and how long it is kept."""

    largest: int = 50 * 1024 * 1024
    download_s: float = 120.0
    keep_s: float = 30 * 24 * _HOUR_S
    folder_bytes: int = 2 * 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Type:
    suffix: str
    kind: MediaKind


_MAGIC: tuple[tuple["re.Pattern[bytes]", _Type], ...] = (
    (re.compile(rb"\x89PNG\r\n\x1a\n"), _Type(".png", MediaKind.IMAGE)),
    (re.compile(rb"\xff\xd8\xff"), _Type(".jpg", MediaKind.IMAGE)),
    (re.compile(rb"GIF8[79]a"), _Type(".gif", MediaKind.IMAGE)),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), _Type(".webp", MediaKind.IMAGE)),
    (re.compile(rb"....ftyp(?:heic|heix|mif1)", re.DOTALL), _Type(".heic", MediaKind.IMAGE)),
    (re.compile(rb"....ftypavif", re.DOTALL), _Type(".avif", MediaKind.IMAGE)),
    (re.compile(rb"BM....\x00\x00\x00\x00", re.DOTALL), _Type(".bmp", MediaKind.IMAGE)),
    (re.compile(rb"OggS"), _Type(".ogg", MediaKind.AUDIO)),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), _Type(".wav", MediaKind.AUDIO)),
    (re.compile(rb"fLaC"), _Type(".flac", MediaKind.AUDIO)),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), _Type(".mp3", MediaKind.AUDIO)),
    (re.compile(rb"#!AMR"), _Type(".amr", MediaKind.AUDIO)),
    (re.compile(rb"....ftypM4A", re.DOTALL), _Type(".m4a", MediaKind.AUDIO)),
    (re.compile(rb"....ftypqt", re.DOTALL), _Type(".mov", MediaKind.VIDEO)),
    (re.compile(rb"....ftyp", re.DOTALL), _Type(".mp4", MediaKind.VIDEO)),
    (re.compile(rb"\x1a\x45\xdf\xa3"), _Type(".webm", MediaKind.VIDEO)),
    (re.compile(rb"%PDF-"), _Type(".pdf", MediaKind.FILE)),
)
"""How files begin whose form nothing else shares; Office files are zips, and keep the end of their name."""
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


class MediaStore:
    """The attachments of one channel, in a folder of its own (`media/<channel>/` of the data folder).

    Files above `limits.largest`, and downloads that take longer than `limits.download_s`, are given up. A file is
    deleted `keep_s` after it came, or earlier, oldest first, when the folder holds more than `folder_bytes`.
    """

    def __init__(self, folder: Path, *, limits: MediaLimits | None = None, clock: Clock | None = None) -> None:
        self._folder = folder
        self._limits = limits or MediaLimits()
        self._clock = clock or SystemClock()
        self._swept_at: float | None = None
        self._under_way: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def keep(self, attachment: Attachment, chunks: Chunks) -> Kept:
        """Download it, unless the very file is here already. A failure is a result too: only cancelling gets out.

        Whatever ends it, no half of a file stays.
        """
        await self._sweep_sometimes()
        stem = _stem(attachment)
        lock = self._under_way.setdefault(stem, asyncio.Lock())
        async with lock:
            try:
                here = await asyncio.to_thread(self._find, stem)
                path = here or await self._download(attachment, stem, chunks)
            except Exception as error:  # the wall of a connection: an SDK's download may fail in any way
                log.warning("a %s could not be downloaded: %s", attachment.kind, _reason(error))
                return Kept(attachment.kind, None)
        return Kept(await asyncio.to_thread(_kind_of, path, attachment.kind), path)

    async def sweep(self) -> None:
        """Delete what is too old or too much, and what a crash left half done. Never raises: there is a next time."""
        self._swept_at = self._clock.monotonic()
        await asyncio.to_thread(_sweep, self._folder, self._limits, self._clock.now().timestamp())

    async def _sweep_sometimes(self) -> None:
        if self._swept_at is None or self._clock.monotonic() - self._swept_at > _HOUR_S:
            await self.sweep()

    def _find(self, stem: str) -> Path | None:
        found = [path for path in self._folder.glob(f"{stem}*") if path.suffix != _PARTIAL and path.is_file()]
        for path in found[:1]:
            os.utime(path, (now := self._clock.now().timestamp(), now))  # it was sent again: it is young again
        return found[0] if found else None

    async def _download(self, attachment: Attachment, stem: str, chunks: Chunks) -> Path:
        self._check(attachment.size or 0)
        partial = self._folder / f"{stem}{_PARTIAL}"
        descriptor = await asyncio.to_thread(_open_partial, partial)
        try:
            head = await self._receive(descriptor, chunks)
            path = self._folder / f"{stem}{_suffix(attachment, head)}"
        except BaseException:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
        os.close(descriptor)
        os.replace(partial, path)
        return path

    async def _receive(self, descriptor: int, chunks: Chunks) -> bytes:
        """Write all of it; returns how it begins. Raises MediaError if it is too much, TimeoutError if too slow."""
        waiting, size, head = bytearray(), 0, b""
        stream = chunks()
        try:
            async with asyncio.timeout(self._limits.download_s):
                async for chunk in stream:
                    size += len(chunk)
                    self._check(size)
                    waiting += chunk
                    head = head or (bytes(waiting[:_HEAD]) if len(waiting) >= _HEAD else b"")
                    if len(waiting) >= _AT_ONCE:
                        await finish(asyncio.to_thread(write_whole, descriptor, bytes(waiting)))
                        waiting.clear()
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
        if not size:
            raise MediaError("the platform sent an empty file")
        head = head or bytes(waiting[:_HEAD])
        await finish(asyncio.to_thread(write_whole, descriptor, bytes(waiting)))
        return head

    def _check(self, size: int) -> None:
        if size > self._limits.largest:
            raise MediaError(f"it is larger than {human_size(self._limits.largest)}, which is the most that is taken")


async def one_chunk(data: bytes) -> AsyncIterator[bytes]:
    """A download that is here already: `lambda: one_chunk(data)`."""
    yield data


async def as_content(text: str, kept: Sequence[Kept], transcriber: Transcriber | None = None) -> str:
    """What the message says to the model: the words, a tag for each attachment, and what is said in a recording.

    Where nobody could hear one, its tag says why, so that the person can be told.
    """
    parts = [text.strip()]
    for one in kept:
        parts.append(one.tag)
        if one.path is not None and one.kind in {MediaKind.VOICE, MediaKind.AUDIO} and transcriber is not None:
            try:
                said = (await transcriber.transcribe(one.path)).strip()
            except NanobotError as error:
                log.warning("a recording stays without its words: %s", error)
                said = f"failed, {error}"
            if said:
                parts.append(f"[transcription: {in_a_tag(said)}]")
    return "\n".join(part for part in parts if part) or EMPTY_MESSAGE


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Something to send: a file that was looked at, or an address that the platform (never we) may fetch."""

    kind: MediaKind
    name: str
    path: Path | None = None
    url: str | None = None
    size: int = field(default=0)


async def outgoing(named: str, *, largest: int) -> Outgoing:
    """What a message wants to send along: a path without links, or an http(s) address (stickers may have one).

    Which paths the agent may name at all is for its tools to say. Raises MediaError, fit for the agent to
    read, where there is no such file, where it is none, empty or too large.
    """
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", named):
        return _remote(named)
    return await asyncio.to_thread(_local, named, largest)


def _remote(url: str) -> Outgoing:
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme.lower() not in {"http", "https"}:
        raise MediaError(f"{url} cannot be sent. Name a file, or an http or https address.")
    name = PurePosixPath(parts.path).name or host
    return Outgoing(_kind_by_suffix(PurePosixPath(name).suffix.lower()) or MediaKind.FILE, name, url=url)


def open_still(path: Path) -> BufferedReader:
    """A file that a message names, opened for its bytes. Who named it has followed its links: one that was put in its
    place while the message waited leads to what nobody meant to send. Blocking; raises OSError.
    """
    return os.fdopen(open_exactly(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")


def _local(named: str, largest: int) -> Outgoing:
    path = Path(named)
    try:
        with open_still(path) as file:
            told = os.fstat(file.fileno())
            if not stat.S_ISREG(told.st_mode):
                raise MediaError(f"{named} is no file that can be sent. Name a plain file.")
            head = file.read(_HEAD)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError) or _is_folder(path):
            raise MediaError(f"{named} is a folder. Pack it into an archive, or name the files in it.") from error
        raise MediaError(
            f"{named} cannot be read ({_reason(error)}). Check the path, or make the file first."
        ) from error
    if not told.st_size:
        raise MediaError(f"{named} is empty; platforms refuse empty files. Write something into it first.")
    if told.st_size > largest:
        raise MediaError(
            f"{named} has {human_size(told.st_size)}; the most that can be sent here is {human_size(largest)}. "
            "Make it smaller, or say where it lies."
        )
    return Outgoing(_kind_of_head(head, path.suffix.lower(), MediaKind.FILE), path.name, path, size=told.st_size)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _reason(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return "it took too long"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _stem(attachment: Attachment) -> str:
    """A name of ours: the same for the same id, else one that nobody had."""
    if attachment.id:
        return hashlib.sha256(attachment.id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return secrets.token_hex(12)


def _suffix(attachment: Attachment, head: bytes) -> str:
    for magic, is_type in _MAGIC:
        if magic.match(head):
            if is_type.suffix == ".webm" and (attachment.content_type or "").startswith("audio/"):
                return ".webm"
            return is_type.suffix
    named = PureWindowsPath(attachment.name or "").suffix.lower()  # takes both kinds of slashes for what they are
    if _SAFE_SUFFIX.match(named) and named != _PARTIAL:
        return named
    said = (attachment.content_type or "").partition(";")[0].strip().lower()
    return _CONTENT_TYPES.get(said, ".bin")


def _kind_of(path: Path, said: MediaKind) -> MediaKind:
    """What it really is. A voice stays one where it is sound; a "picture" that is none is a file."""
    try:
        with open(path, "rb") as file:
            return _kind_of_head(file.read(_HEAD), path.suffix.lower(), said)
    except OSError:
        return said


def _kind_of_head(head: bytes, suffix: str, said: MediaKind) -> MediaKind:
    found = next((one.kind for magic, one in _MAGIC if magic.match(head)), _kind_by_suffix(suffix))
    if found is None:
        return MediaKind.FILE if said is MediaKind.IMAGE else said
    if said in {MediaKind.VOICE, MediaKind.AUDIO} and found in {MediaKind.AUDIO, MediaKind.VIDEO}:
        return said  # a recording may come in a film's box
    return said if said is MediaKind.VIDEO and found is MediaKind.IMAGE else found  # a moving picture may be a GIF


def _kind_by_suffix(suffix: str) -> MediaKind | None:
    return next((one.kind for _, one in _MAGIC if one.suffix == suffix), _BY_SUFFIX.get(suffix))


def _open_partial(path: Path) -> int:
    make_private_folder(path.parent)
    path.unlink(missing_ok=True)  # of a crash: who downloads it now is alone with this name
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, PRIVATE_FILE)


def _sweep(folder: Path, limits: MediaLimits, now: float) -> None:
    found: list[tuple[float, int, Path]] = []
    with suppress(OSError):
        for path in folder.iterdir():
            with suppress(OSError):
                told = path.lstat()
                if stat.S_ISREG(told.st_mode):
                    found.append((told.st_mtime, told.st_size, path))
    half_done_s = max(_HOUR_S, 2 * limits.download_s)
    kept = []
    for changed_at, size, path in sorted(found):
        if now - changed_at > (half_done_s if path.suffix == _PARTIAL else limits.keep_s):
            with suppress(OSError):
                path.unlink()
        else:
            kept.append((size, path))
    total = sum(size for size, _ in kept)
    for size, path in kept:
        if total > limits.folder_bytes and path.suffix != _PARTIAL:
            with suppress(OSError):
                path.unlink()
                total -= size
