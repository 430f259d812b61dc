"""Opens exactly the file that a path names: no part of it may be a link.

Checking a path and opening it afterwards is a race: a folder in it may be replaced by a link in between. Here that is
an error. Linux has a system call for it (openat2, since 5.6); elsewhere, and in containers that forbid it, each folder
is opened from its parent. Windows has neither: there the path is checked again after opening.

Paths are absolute without `..`, or relative to an open folder. All functions raise OSError: ELOOP, or ENOTDIR for a
link.

The `own` functions open nanobot's own files below a workspace (`sessions`, `cron`): where Landlock is the only sandbox,
a command can put a link there, and following it would write outside of the sandbox.
"""

import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath

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

_OPENAT2 = 437
"""System call number, the same on all architectures except Alpha: man 2 openat2."""
_RESOLVE_NO_LINKS = 0x02 | 0x04
"""RESOLVE_NO_MAGICLINKS and RESOLVE_NO_SYMLINKS, from linux/openat2.h."""
_RESOLVE_BENEATH = 0x08
_AT_FDCWD = -100
"""Relative to the working directory."""
_RETRIES = 100
_FOLDER_FLAGS = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY)) | getattr(os, "O_DIRECTORY", 0)
_NOFOLLOW_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

_OpenAt2 = Callable[[int, bytes, int, int, int], int]


def open_no_follow(path: str | os.PathLike[str], flags: int, *, beneath: int | None = None) -> int:
    """Open a file or folder without following any link. Blocking.

    A relative path starts at the open folder `beneath`. A file created by O_CREAT is readable by its owner only.
    """
    text = os.fspath(path)
    flags |= _NOFOLLOW_FLAGS | O_BINARY
    if os.name == "nt":
        return _open_and_verify(text, flags)
    call = _openat2() if sys.platform == "linux" else None
    if call is not None:
        resolve = _RESOLVE_NO_LINKS if beneath is None else _RESOLVE_NO_LINKS | _RESOLVE_BENEATH
        mode = PRIVATE_FILE if flags & os.O_CREAT else 0
        return call(_AT_FDCWD if beneath is None else beneath, os.fsencode(text), flags, mode, resolve)
    return open_by_steps(text, flags, beneath)


def open_folder(path: str | os.PathLike[str], *, beneath: int | None = None) -> int:
    """Open exactly this folder, to list it or to create files in it."""
    return open_no_follow(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0), beneath=beneath)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> int:
    """Open exactly this folder, creating it and its parents if missing. POSIX only."""
    try:
        return open_folder(path)
    except FileNotFoundError:
        parent = make_folder(os.path.dirname(path), mode)  # noqa: PTH120 text only; no file access
        try:
            name = os.path.basename(path)  # noqa: PTH119
            with suppress(FileExistsError):  # created concurrently; if it is not a folder, the next line raises
                os.mkdir(name, mode, dir_fd=parent)
                os.fsync(parent)
            return open_folder(name, beneath=parent)
        finally:
            os.close(parent)


def open_by_steps(path: str, flags: int, beneath: int | None = None) -> int:
    """Without the system call: open each folder from its parent, and the last part with these flags."""
    parts = [part for part in PurePath(path).parts if part not in ("/", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    flags |= _NOFOLLOW_FLAGS
    parent = os.dup(beneath) if beneath is not None else os.open("/", _FOLDER_FLAGS)
    try:
        for part in parts[:-1]:
            child = os.open(part, _FOLDER_FLAGS | _NOFOLLOW_FLAGS, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.open(parts[-1] if parts else ".", flags, PRIVATE_FILE, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(parent)


def _open_and_verify(path: str, flags: int) -> int:
    descriptor = os.open(path, flags, PRIVATE_FILE)
    if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return descriptor


@cache
def _openat2() -> _OpenAt2 | None:
    """The system call; None if the kernel or a container does not allow it."""
    import ctypes  # slow import (5 ms)

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(at: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
        how = struct.pack("=QQQ", flags, mode, resolve)
        for again in range(_RETRIES, -1, -1):
            descriptor: int = syscall(
                ctypes.c_long(_OPENAT2),
                ctypes.c_int(at),
                ctypes.c_char_p(path),
                ctypes.c_char_p(how),
                ctypes.c_size_t(len(how)),
            )
            if descriptor >= 0:
                return descriptor
            number = ctypes.get_errno()
            if number not in (errno.EAGAIN, errno.EINTR) or not again:  # concurrent renames may interrupt it
                raise OSError(number, os.strerror(number), os.fsdecode(path))
        raise AssertionError("the last attempt raised")

    try:
        os.close(call(_AT_FDCWD, b"/", _FOLDER_FLAGS | os.O_CLOEXEC, 0, _RESOLVE_NO_LINKS))
    except OSError:
        return None
    return call


def open_own(path: Path, flags: int) -> int:
    """Open a regular file of ours without following links; O_CREAT creates it and missing folders, private to us."""
    flags |= getattr(os, "O_NONBLOCK", 0)  # a pipe in its place must not block us
    try:
        descriptor = open_no_follow(path, flags)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        with own_folder(path.parent):
            descriptor = open_no_follow(path, flags)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise (
            OSError(errno.EISDIR, "Is a folder")
            if stat.S_ISDIR(mode)
            else OSError(errno.EINVAL, "Is not a regular file")
        )
    return descriptor


def read_own(path: Path) -> bytes:
    """The content of a file of ours."""
    with open(open_own(path, os.O_RDONLY), "rb") as file:
        return file.read()


def append_own(path: Path, data: bytes) -> None:
    """Append to a file of ours, created if missing, and sync it."""
    descriptor = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        is_new = os.fstat(descriptor).st_size == 0
        write_whole(descriptor, data)
        sync_data(descriptor)
    finally:
        os.close(descriptor)
    if is_new:
        sync_folder(path.parent)


def replace_own(path: Path, data: bytes | str) -> None:
    """Replace a file of ours atomically, like `write_atomic`; a link in its place is an error."""
    try:
        descriptor = open_own(path, os.O_RDONLY)
        mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
        os.close(descriptor)
    except FileNotFoundError:
        mode = PRIVATE_FILE
    content = data.encode() if isinstance(data, str) else data
    with own_folder(path.parent) as folder:
        if folder is None:
            write_atomic(path, content, mode=mode)
        else:
            replace_in(folder, path.name, content, mode=mode)


def rename_own(path: Path, target: Path) -> None:
    """Rename a file of ours durably, replacing the target."""
    with own_folder(path.parent) as source_folder, own_folder(target.parent) as target_folder:
        os.replace(
            _name_in(path, source_folder),
            _name_in(target, target_folder),
            src_dir_fd=source_folder,
            dst_dir_fd=target_folder,
        )
        for folder in (target_folder, source_folder):  # in this order: after a power cut the file is in one of them
            if folder is not None:
                os.fsync(folder)


def move_in(file: Path, target: Path) -> None:
    """Move a file into a folder of ours, also from another file system."""
    with own_folder(target.parent) as folder:
        try:
            os.replace(file, _name_in(target, folder), dst_dir_fd=folder)
            if folder is not None:
                os.fsync(folder)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            replace_own(target, file.read_bytes())
            file.unlink()
    sync_folder(file.parent)


def unlink_own(path: Path) -> None:
    """Delete a file of ours. Raises FileNotFoundError."""
    with own_folder(path.parent) as folder:
        os.unlink(_name_in(path, folder), dir_fd=folder)


@contextmanager
def own_folder(folder: Path) -> Iterator[int | None]:
    """Open a folder of ours, creating it and its parents if missing. Yields None on Windows."""
    if os.name == "nt":
        make_private_folder(folder)
        yield None
        return
    descriptor = make_folder(folder, PRIVATE_FOLDER)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _name_in(path: Path, folder: int | None) -> str:
    return str(path) if folder is None else path.name
