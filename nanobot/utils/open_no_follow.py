"""Opens exactly the file that a path names: no part of it may be a link.

Checking a path and opening it afterwards is a race: a folder in it may be replaced by a link in between. Here that is
an error: each folder is opened from its parent, without following links. Windows cannot do that: there the path is
checked again after opening.

Paths are absolute without `..`, or relative to an open folder. All functions raise OSError: ELOOP, or ENOTDIR for a
link.

The `own` functions open nanobot's own files below a workspace (`sessions`, `cron`): where Landlock is the only sandbox,
a command can put a link there, and following it would write outside of the sandbox.
"""

import errno
import os
import stat
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from nanobot.utils.files import (
    O_BINARY,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    make_private_folder,
    replace_in,
    sync_data,
    sync_folder,
    write_atomic,
    write_whole,
)

_NONBLOCK = getattr(os, "O_NONBLOCK", 0)
"""A pipe in the place of a file must not block us."""
_FOLDER_FLAGS = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY)) | getattr(os, "O_DIRECTORY", 0)
_NOFOLLOW_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)


def open_no_follow(path: str | os.PathLike[str], flags: int, *, beneath: int | None = None) -> int:
    """Open a file or folder without following any link. Blocking.

    A relative path starts at the open folder `beneath`. A file created by O_CREAT is readable by its owner only.
    """
    text = os.fspath(path)
    flags |= _NOFOLLOW_FLAGS | O_BINARY
    if os.name == "nt":
        descriptor = os.open(text, flags, PRIVATE_FILE)
        if os.path.normcase(os.path.realpath(text)) != os.path.normcase(text):
            os.close(descriptor)
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), text)
        return descriptor
    *folders, name = [part for part in text.split("/") if part not in ("", ".")] or ["."]
    if ".." in (*folders, name):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), text)
    parent = os.dup(beneath) if beneath is not None else os.open("/", _FOLDER_FLAGS)
    try:
        for folder in folders:
            child = os.open(folder, _FOLDER_FLAGS | _NOFOLLOW_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(name, flags, PRIVATE_FILE, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, text) from error
    finally:
        os.close(parent)


def open_folder(path: str | os.PathLike[str], *, beneath: int | None = None, make: int | None = None) -> int:
    """Open exactly this folder, to list it or to create files in it. `make` it and its parents with this mode if they
    are missing. POSIX only.
    """
    try:
        return open_no_follow(path, os.O_RDONLY | os.O_DIRECTORY, beneath=beneath)
    except FileNotFoundError:
        if make is None:
            raise
    folder, name = os.path.split(path)
    parent = open_folder(folder, make=make)
    try:
        with suppress(FileExistsError):  # created concurrently; if it is not a folder, the next line raises
            os.mkdir(name, make, dir_fd=parent)
            os.fsync(parent)
        return open_folder(name, beneath=parent)
    finally:
        os.close(parent)


class PinnedFolder(AbstractContextManager["PinnedFolder"]):
    """A folder held open, whose files are reached through it whatever becomes of its path (on Windows by path)."""

    def __init__(self, path: Path, *, make: int | None = None) -> None:
        """`make` the folder and its parents with this mode if they are missing. Raises OSError, as all methods."""
        self.path = path
        self.descriptor: int | None = None
        if os.name != "nt":
            self.descriptor = open_folder(path, make=make)
        elif make is not None:
            make_private_folder(path)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)

    def name(self, file: str) -> str:
        """The name of a file for calls with this `descriptor`."""
        return file if self.descriptor is not None else str(self.path / file)

    def open(self, file: str, flags: int) -> int:
        flags |= _NOFOLLOW_FLAGS | _NONBLOCK | O_BINARY
        return os.open(self.name(file), flags, PRIVATE_FILE, dir_fd=self.descriptor)

    def stat(self, file: str) -> os.stat_result:
        return os.stat(self.name(file), dir_fd=self.descriptor, follow_symlinks=False)

    def replace(self, file: str, data: bytes, mode: int) -> None:
        """Write a file atomically and durably."""
        if self.descriptor is None:
            write_atomic(self.path / file, data, mode=mode)
        else:
            replace_in(self.descriptor, file, data, mode=mode)

    def append(self, file: str, data: bytes) -> None:
        """Append to a regular file durably; it is made if it is missing."""
        descriptor = self.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            check_regular(os.fstat(descriptor), self.path / file)
            write_whole(descriptor, data)
            sync_data(descriptor)
        finally:
            os.close(descriptor)
        self.sync()

    def sync(self) -> None:
        """Make new names durable."""
        if self.descriptor is not None:
            os.fsync(self.descriptor)


def check_regular(status: os.stat_result, path: Path) -> None:
    """Raise OSError unless this is the status of a regular file."""
    if stat.S_ISREG(status.st_mode):
        return
    number = errno.ELOOP if stat.S_ISLNK(status.st_mode) else errno.EINVAL
    number = errno.EISDIR if stat.S_ISDIR(status.st_mode) else number
    raise OSError(number, "Is not a regular file" if number == errno.EINVAL else os.strerror(number), str(path))


def own_folder(folder: Path) -> PinnedFolder:
    """Open a folder of ours, creating it and its parents if missing."""
    return PinnedFolder(folder, make=PRIVATE_FOLDER)


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of ours without following links; O_CREAT creates it and missing folders, private to us."""
    try:
        descriptor = open_no_follow(path, flags | _NONBLOCK)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        with own_folder(path.parent):
            descriptor = open_no_follow(path, flags | _NONBLOCK)
    try:
        check_regular(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_own(path: Path) -> bytes:
    """The content of a file of ours."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()


def replace_own(path: Path, data: bytes | str) -> None:
    """Replace a file of ours atomically, like `write_atomic`; a link in its place is an error."""
    with own_folder(path.parent) as folder:
        mode = PRIVATE_FILE
        with suppress(FileNotFoundError):
            status = folder.stat(path.name)
            check_regular(status, path)
            mode = stat.S_IMODE(status.st_mode)
        folder.replace(path.name, data.encode() if isinstance(data, str) else data, mode)


def rename_own(path: Path, target: Path) -> None:
    """Rename a file of ours durably, replacing the target."""
    with own_folder(path.parent) as source, own_folder(target.parent) as folder:
        names = source.name(path.name), folder.name(target.name)
        os.replace(*names, src_dir_fd=source.descriptor, dst_dir_fd=folder.descriptor)
        folder.sync()  # in this order: after a power cut the file is in one of them
        source.sync()


def move_in(file: Path, target: Path) -> None:
    """Move a file into a folder of ours, also from another file system."""
    with own_folder(target.parent) as folder:
        try:
            os.replace(file, folder.name(target.name), dst_dir_fd=folder.descriptor)
            folder.sync()
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            replace_own(target, file.read_bytes())
            file.unlink()
    sync_folder(file.parent)


def unlink_own(path: Path) -> None:
    """Delete a file of ours. Raises FileNotFoundError."""
    with own_folder(path.parent) as folder:
        os.unlink(folder.name(path.name), dir_fd=folder.descriptor)
