"""Checks the files and URLs that a message wants to send."""

import asyncio
import os
import re
import stat
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from nanobot.channels.errors import UndeliverableError
from nanobot.channels.media import HEAD_BYTES, MediaError, MediaKind, describe_reason, detect_kind, kind_by_suffix
from nanobot.utils.open_no_follow import open_no_follow
from nanobot.utils.text import human_size

CHUNK = 256 * 1024
SLOWEST_UPLOAD = 128 * 1024
"""Assumed upload rate, in bytes a second: the timeout of sending a file goes by its size."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A checked file, or a URL that the platform (never nanobot) may fetch."""

    kind: MediaKind
    name: str
    path: Path | None = None
    url: str | None = None
    size: int = field(default=0)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix.lower()


async def prepare_outgoing(source: str, *, largest: int) -> Outgoing:
    """Check a path (symlinks already resolved) or an http(s) URL. `largest` is in bytes.

    The agent's tools decide which paths it may name. Raises MediaError, with a text for the model, if the file is
    missing, not a regular file, empty or too large.
    """
    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", source):
        return await asyncio.to_thread(_prepare_file, source, largest)
    try:
        parts = urlsplit(source)
        host = parts.hostname
    except ValueError:
        host = None
    if not host or parts.scheme.lower() not in {"http", "https"}:
        raise MediaError(f"{source} cannot be sent. Name a file, or an http or https URL.")
    name = PurePosixPath(parts.path).name or host
    return Outgoing(kind_by_suffix(PurePosixPath(name).suffix.lower()) or MediaKind.FILE, name, url=source)


def open_outgoing(path: Path) -> BufferedReader:
    """Open a file that a message names, without following symlinks. Blocking; raises OSError.

    The tools resolved its links already: a link that replaced the file since leads to what nobody approved.
    """
    return os.fdopen(open_no_follow(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")


async def stream_outgoing(path: Path) -> AsyncIterator[bytes]:
    """The content of a file, in chunks. Raises MediaError if it is no file, OSError."""
    with await asyncio.to_thread(open_outgoing, path) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise MediaError(f"{path.name} is not a regular file")
        while chunk := await asyncio.to_thread(file.read, CHUNK):
            yield chunk


async def read_outgoing(file: Outgoing) -> bytes:
    """The content of a checked file. Raises UndeliverableError."""

    def read(path: Path) -> bytes:
        with open_outgoing(path) as opened:
            return opened.read(file.size)

    assert file.path is not None  # noqa: S101 a URL is not read
    try:
        return await asyncio.to_thread(read, file.path)
    except OSError as error:
        raise UndeliverableError(f"{file.path} can no longer be read ({error.strerror})") from error


def _prepare_file(source: str, largest: int) -> Outgoing:
    path = Path(source)
    try:
        with open_outgoing(path) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise MediaError(f"{source} is not a regular file and cannot be sent.")
            head = file.read(HEAD_BYTES)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError) or os.path.isdir(source):  # noqa: PTH112 it raises nothing
            raise MediaError(f"{source} is a folder. Pack it into an archive, or name the files in it.") from error
        raise MediaError(
            f"{source} cannot be read ({describe_reason(error)}). Check the path, or create the file first."
        ) from error
    if not status.st_size:
        raise MediaError(f"{source} is empty; platforms refuse empty files. Write something into it first.")
    if status.st_size > largest:
        raise MediaError(
            f"{source} has {human_size(status.st_size)}; the limit here is {human_size(largest)}. "
            "Make it smaller, or tell the user where it is."
        )
    return Outgoing(detect_kind(head, path.suffix.lower(), MediaKind.FILE), path.name, path, size=status.st_size)
