"""Attachments that arrive: kept within bounds, and told to the model.

Nothing the sender wrote becomes a path: a file is named by us, and its end says what its first bytes are. A file lies
in its place whole or not at all. Old files go: see MediaStore.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import stat
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nanobot.channels.media_kinds import HEAD, PARTIAL, MediaError, MediaKind, kind_of_file, reason_of, suffix_of
from nanobot.errors import NanobotError
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import O_BINARY, PRIVATE_FILE, make_private_folder, write_whole
from nanobot.utils.text import human_size, in_a_tag

log = logging.getLogger(__name__)

EMPTY_MESSAGE = "[empty message]"
_HOUR_S = 3600.0
_AT_ONCE = 256 * 1024


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
                log.warning("a %s could not be downloaded: %s", attachment.kind, reason_of(error))
                return Kept(attachment.kind, None)
        return Kept(await asyncio.to_thread(kind_of_file, path, attachment.kind), path)

    async def sweep(self) -> None:
        """Delete what is too old or too much, and what a crash left half done. Never raises: there is a next time."""
        self._swept_at = self._clock.monotonic()
        await asyncio.to_thread(_sweep, self._folder, self._limits, self._clock.now().timestamp())

    async def _sweep_sometimes(self) -> None:
        if self._swept_at is None or self._clock.monotonic() - self._swept_at > _HOUR_S:
            await self.sweep()

    def _find(self, stem: str) -> Path | None:
        found = [path for path in self._folder.glob(f"{stem}*") if path.suffix != PARTIAL and path.is_file()]
        for path in found[:1]:
            os.utime(path, (now := self._clock.now().timestamp(), now))  # it was sent again: it is young again
        return found[0] if found else None

    async def _download(self, attachment: Attachment, stem: str, chunks: Chunks) -> Path:
        self._check(attachment.size or 0)
        partial = self._folder / f"{stem}{PARTIAL}"
        descriptor = await asyncio.to_thread(_open_partial, partial)
        try:
            head = await self._receive(descriptor, chunks)
            path = self._folder / f"{stem}{suffix_of(head, attachment.name, attachment.content_type)}"
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
                    head = head or (bytes(waiting[:HEAD]) if len(waiting) >= HEAD else b"")
                    if len(waiting) >= _AT_ONCE:
                        await finish(asyncio.to_thread(write_whole, descriptor, bytes(waiting)))
                        waiting.clear()
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
        if not size:
            raise MediaError("the platform sent an empty file")
        head = head or bytes(waiting[:HEAD])
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


def _stem(attachment: Attachment) -> str:
    """A name of ours: the same for the same id, else one that nobody had."""
    if attachment.id:
        return hashlib.sha256(attachment.id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return secrets.token_hex(12)


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
        if now - changed_at > (half_done_s if path.suffix == PARTIAL else limits.keep_s):
            with suppress(OSError):
                path.unlink()
        else:
            kept.append((size, path))
    total = sum(size for size, _ in kept)
    for size, path in kept:
        if total > limits.folder_bytes and path.suffix != PARTIAL:
            with suppress(OSError):
                path.unlink()
                total -= size
