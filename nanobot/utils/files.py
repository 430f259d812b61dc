"""Durable file writes: after a crash either the old or the new content is there; and appending.

Modes and folder syncs are skipped where the system lacks them.
"""

import errno
import os
import secrets
import time
from contextlib import suppress
from glob import escape
from pathlib import Path

PRIVATE_FILE = 0o600
PRIVATE_FOLDER = 0o700
O_BINARY = getattr(os, "O_BINARY", 0)
"""For os.open on Windows, so that bytes are not translated."""
O_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)


def make_private_folder(folder: Path) -> Path:
    """Create the folder and its missing parents, mode 0700, and sync them; an existing one keeps its mode."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    for parent in reversed(missing):
        parent.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
        with suppress(PermissionError):  # a parent that we may enter but not read
            sync_folder(parent.parent)
    return folder


def open_private(path: Path, flags: int) -> int:
    """Open a file, creating it and its folder with private modes if the flags say so. Raises OSError."""
    try:
        return os.open(path, flags | O_BINARY, PRIVATE_FILE)
    except FileNotFoundError:
        make_private_folder(path.parent)
        return os.open(path, flags | O_BINARY, PRIVATE_FILE)


def open_for_append(path: Path) -> int:
    """Open a file for appending and reading, created if missing. Raises OSError."""
    return open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def missing_newline(descriptor: int) -> bytes:
    """What to write before a new line: nothing, or a newline after a partial line left by a crash."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end == 0:
        return b""
    os.lseek(descriptor, end - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace the file atomically and durably: temp file, fsync, rename, fsync of the folder.

    An existing file keeps its mode; a new one gets `mode`, by default PRIVATE_FILE. A symlink is followed, so its
    target is replaced. Folders, devices and pipes are never replaced. Raises OSError and leaves no temp file.
    """
    content = data.encode() if isinstance(data, str) else data
    if path.exists() and not path.is_file():  # as root, even a device could be replaced
        number = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(number, "Is a folder" if path.is_dir() else "Is a device or a pipe, not a file", str(path))
    path = Path(os.path.realpath(path))
    if mode is None:
        mode = path.stat().st_mode & 0o7777 if path.exists() else PRIVATE_FILE
    _replace(str(path), content, mode)
    sync_folder(path.parent)


def replace_in(folder: int, name: str, data: bytes, *, mode: int) -> None:
    """Replace a file in this open folder atomically, like `write_atomic`, even if its path has changed. A link itself
    is replaced. POSIX only. Raises OSError and leaves no temp file.
    """
    _replace(name, data, mode, folder)
    os.fsync(folder)


def _replace(path: str, data: bytes, mode: int, folder: int | None = None) -> None:
    """Replace a file, of this open folder if given, by a synced temp file beside it."""
    parent, name = os.path.split(path)
    temp = os.path.join(parent, f"{_temp_stem(name)}{secrets.token_hex(4)}.tmp")  # noqa: PTH118
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, mode, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if os.name != "nt":
                os.fchmod(descriptor, mode)  # os.open applied the umask
            os.fsync(descriptor)
        os.replace(temp, path, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder)
        raise


def remove_old_files(folder: Path | int, *, older_than_s: float) -> None:
    """Delete the files of a folder, given as path or descriptor, that were not changed for this long. Raises OSError if
    the folder cannot be read.
    """
    oldest = time.time() - older_than_s
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path, dir_fd=folder if isinstance(folder, int) else None)


def remove_stale_temps(path: Path, *, older_than_s: float) -> None:
    """Delete temp files of this file that killed writes left this long ago. Never raises."""
    with suppress(OSError):
        for temp in path.parent.glob(f"{escape(_temp_stem(path.name))}????????.tmp"):
            if time.time() - temp.stat().st_mtime > older_than_s:
                temp.unlink()


def _temp_stem(name: str) -> str:
    return f".{name[:80]}."


def write_in_place(path: Path, data: bytes | str) -> None:
    """Write a file that can be regenerated: a crash may leave part of it, which readers must detect, but no temp file.

    Raises OSError.
    """
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_whole(descriptor, data.encode() if isinstance(data, str) else data)
    finally:
        os.close(descriptor)


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """A value that changes with the file; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def open_nonblocking(path: str, flags: int) -> int:
    """An opener that does not block: a pipe without a writer reads as empty."""
    return os.open(path, flags | O_BINARY | getattr(os, "O_NONBLOCK", 0))


def write_whole(descriptor: int, data: bytes | memoryview) -> None:
    """Write all data, in as many system calls as needed. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_data(descriptor: int) -> None:
    """Flush the data of an open file to disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush a rename or a new name to disk, where folders can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
