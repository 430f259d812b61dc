"""Writing so that a crash at any moment leaves either the old file or the new one, whole; and appending for good.

Modes and folder syncs are what POSIX has; where they are absent they are left out, nothing else changes.
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
"""What os.open needs on Windows, so that bytes stay what they are."""


def make_private_folder(folder: Path) -> Path:
    """Make the folder and its missing parents, ours alone to read; a folder that exists keeps its mode."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        place.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    return folder


def open_private(path: Path, flags: int) -> int:
    """Open a file of ours; where it is made, with its folder if need be, it is ours alone to read. Raises OSError."""
    try:
        return os.open(path, flags | O_BINARY, PRIVATE_FILE)
    except FileNotFoundError:
        make_private_folder(path.parent)
        return os.open(path, flags | O_BINARY, PRIVATE_FILE)


def open_lines(path: Path) -> int:
    """Open a file of lines for appending (and reading), made if it is missing. Raises OSError."""
    return open_private(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)


def line_end(descriptor: int) -> bytes:
    """What is missing before a new line can begin: nothing, or a newline behind half a line of a crash."""
    end = os.lseek(descriptor, 0, os.SEEK_END)
    if end == 0:
        return b""
    os.lseek(descriptor, end - 1, os.SEEK_SET)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"


def write_atomic(path: Path, data: bytes | str, *, mode: int | None = None) -> None:
    """Replace the file in one step and see it to the disk: temp file, fsync, rename, fsync of the folder.

    Keeps the mode of a file that exists; a new one gets `mode`, PRIVATE_FILE if none is given. A link is followed, so
    that what it names is replaced and the link stays. What is no plain file (a folder, a device, a pipe) is never
    replaced. Raises OSError, and leaves no temp file behind.
    """
    content = data.encode() if isinstance(data, str) else data
    _check_plain(path)
    path = Path(os.path.realpath(path))
    if mode is None:
        mode = path.stat().st_mode & 0o7777 if path.exists() else PRIVATE_FILE
    temp = path.with_name(f"{_temp_stem(path.name)}{secrets.token_hex(4)}.tmp")
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | O_BINARY, mode)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if os.name != "nt":
            os.chmod(temp, mode)  # the umask had its say at open
        os.replace(temp, path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_in(folder: int, name: str, data: bytes, *, mode: int) -> None:
    """Replace a file of this open folder in one step, as `write_atomic` does, wherever its path leads by now. A link is
    replaced itself. POSIX only. Raises OSError, and leaves no temp file behind."""
    temp = f"{_temp_stem(name)}{secrets.token_hex(4)}.tmp"
    try:
        descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, dir_fd=folder)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(descriptor, mode)  # the umask had its say at open
            os.fsync(descriptor)
        os.replace(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temp, dir_fd=folder)
        raise
    os.fsync(folder)


def remove_old(folder: Path | int, *, older_than_s: float) -> None:
    """Delete the files of a folder, which may be an open one, that were not changed for so long. Raises OSError where
    the folder cannot be read."""
    oldest = time.time() - older_than_s
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.stat(follow_symlinks=False).st_mtime < oldest:
                    os.unlink(entry.path, dir_fd=folder if isinstance(folder, int) else None)


def sweep_temps(path: Path, *, older_than_s: float) -> None:
    """Delete what writes of this file left that were killed so long ago. Never raises: there is a next time."""
    _sweep(path.parent, f"{escape(_temp_stem(path.name))}????????.tmp", older_than_s)


def sweep_all_temps(folder: Path, *, older_than_s: float) -> None:
    """The same for the writes of any file of this folder."""
    _sweep(folder, f"{_temp_stem('*')}????????.tmp", older_than_s)


def _sweep(folder: Path, pattern: str, older_than_s: float) -> None:
    with suppress(OSError):
        for temp in folder.glob(pattern):
            if time.time() - temp.stat().st_mtime > older_than_s:
                temp.unlink()


def _temp_stem(name: str) -> str:
    return f".{name[:80]}."


def _check_plain(path: Path) -> None:
    """Once a device was replaced by a file of its name; root may do even that."""
    if path.exists() and not path.is_file():
        number = errno.EISDIR if path.is_dir() else errno.EINVAL
        raise OSError(number, "Is a folder" if path.is_dir() else "Is a device or a pipe, not a file", str(path))


def write_in_place(path: Path, data: bytes | str) -> None:
    """Write what can be made again: a kill may leave half of it, which its reader must notice, but no temp file.

    Raises OSError.
    """
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_whole(descriptor, data.encode() if isinstance(data, str) else data)
    finally:
        os.close(descriptor)


def append_durable(path: Path, data: bytes) -> None:
    """Append and see it to the disk. Raises OSError."""
    existed = path.exists()
    descriptor = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        write_whole(descriptor, data)
        sync_data(descriptor)
    finally:
        os.close(descriptor)
    if not existed:
        sync_folder(path.parent)


def without_waiting(path: str, flags: int) -> int:
    """An opener for reading, so that a pipe that nobody writes to is empty instead of a wait without end."""
    return os.open(path, flags | O_BINARY | getattr(os, "O_NONBLOCK", 0))


def write_whole(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of it, however little the system takes at once. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def sync_data(descriptor: int) -> None:
    """See the data of an open file to the disk."""
    getattr(os, "fdatasync", os.fsync)(descriptor)


def sync_folder(folder: Path) -> None:
    """See a rename or a new name to the disk, where folders can be opened."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
