"""What a message wants to send along, looked at before it goes: a plain file within bounds, or an address."""

import asyncio
import os
import re
import stat
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from nanobot.channels.media_kinds import HEAD, MediaError, MediaKind, kind_by_suffix, kind_of_head, reason_of
from nanobot.utils.no_links import open_exactly
from nanobot.utils.text import human_size


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
    return Outgoing(kind_by_suffix(PurePosixPath(name).suffix.lower()) or MediaKind.FILE, name, url=url)


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
            head = file.read(HEAD)
    except (OSError, ValueError) as error:
        if isinstance(error, IsADirectoryError) or _is_folder(path):
            raise MediaError(f"{named} is a folder. Pack it into an archive, or name the files in it.") from error
        raise MediaError(
            f"{named} cannot be read ({reason_of(error)}). Check the path, or make the file first."
        ) from error
    if not told.st_size:
        raise MediaError(f"{named} is empty; platforms refuse empty files. Write something into it first.")
    if told.st_size > largest:
        raise MediaError(
            f"{named} has {human_size(told.st_size)}; the most that can be sent here is {human_size(largest)}. "
            "Make it smaller, or say where it lies."
        )
    return Outgoing(kind_of_head(head, path.suffix.lower(), MediaKind.FILE), path.name, path, size=told.st_size)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
