"""Opening exactly what a path says: no part of it may be a link, neither now nor a moment later.

Who judges a path and opens it afterwards has judged something else if a folder of it has become a link in between. Here
that ends in an error. Linux has a system call for it (openat2, since 5.6); elsewhere, and where a container forbids it,
each folder is opened from the one before. Windows can do neither: there the path is looked at once more after opening.

Paths are absolute and have no `..`, or begin at an open folder. All raise OSError: ELOOP, or ENOTDIR, where there is a
link.
"""

import errno
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import PurePath

from nanobot.utils.files import O_BINARY

_OPENAT2 = 437
"""The number of the system call, the same on every kind of machine but one that nobody has: man 2 openat2."""
_NO_LINKS = 0x02 | 0x04
"""RESOLVE_NO_MAGICLINKS and RESOLVE_NO_SYMLINKS, from linux/openat2.h."""
_BENEATH = 0x08
_HERE = -100
"""AT_FDCWD."""
_TRIES = 100
_ONE_FOLDER = getattr(os, "O_PATH", getattr(os, "O_SEARCH", os.O_RDONLY)) | getattr(os, "O_DIRECTORY", 0)
_NOT_A_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)

_Call = Callable[[int, bytes, int, int, int], int]


def open_exactly(path: str | os.PathLike[str], flags: int, *, beneath: int | None = None) -> int:
    """A descriptor of the file or folder that this path is, without following any link. Blocking.

    `beneath` is an open folder that a relative path begins at.
    """
    text = os.fspath(path)
    flags |= _NOT_A_LINK | O_BINARY
    if os.name == "nt":
        return _looked_at_twice(text, flags)
    call = _openat2() if sys.platform == "linux" else None
    if call is not None:
        resolve = _NO_LINKS if beneath is None else _NO_LINKS | _BENEATH
        return call(_HERE if beneath is None else beneath, os.fsencode(text), flags, 0, resolve)
    return open_by_steps(text, flags, beneath)


def open_folder(path: str | os.PathLike[str], *, beneath: int | None = None) -> int:
    """A descriptor of exactly this folder, to look into and to make files in."""
    return open_exactly(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0), beneath=beneath)


def make_folder(path: str | os.PathLike[str], mode: int = 0o777) -> int:
    """A descriptor of exactly this folder; it is made, and those above it, where it is missing. POSIX only."""
    try:
        return open_folder(path)
    except FileNotFoundError:
        above = make_folder(os.path.dirname(path), mode)  # noqa: PTH120 - a path as text, and no links looked at
        try:
            name = os.path.basename(path)  # noqa: PTH119
            with suppress(FileExistsError):  # somebody was quicker; if it is no folder, the next line says so
                os.mkdir(name, mode, dir_fd=above)
            return open_folder(name, beneath=above)
        finally:
            os.close(above)


def open_by_steps(path: str, flags: int, beneath: int | None = None) -> int:
    """The same without the system call: each folder is opened from the one before, the last part with these flags."""
    parts = [part for part in PurePath(path).parts if part not in ("/", ".")]
    if ".." in parts:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    flags |= _NOT_A_LINK
    at = os.dup(beneath) if beneath is not None else os.open("/", _ONE_FOLDER)
    try:
        for part in parts[:-1]:
            below = os.open(part, _ONE_FOLDER | _NOT_A_LINK, dir_fd=at)
            os.close(at)
            at = below
        return os.open(parts[-1] if parts else ".", flags, dir_fd=at)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(at)


def _looked_at_twice(path: str, flags: int) -> int:
    descriptor = os.open(path, flags)
    if os.path.normcase(os.path.realpath(path)) != os.path.normcase(path):
        os.close(descriptor)
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    return descriptor


@cache
def _openat2() -> _Call | None:
    """The system call; None where the kernel or a container does not have it."""
    import ctypes  # 5 ms that only who opens files this way waits for

    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long

    def call(at: int, path: bytes, flags: int, mode: int, resolve: int) -> int:
        how = struct.pack("=QQQ", flags, mode, resolve)
        for again in range(_TRIES, -1, -1):
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
            if number not in (errno.EAGAIN, errno.EINTR) or not again:  # renames elsewhere may disturb it
                raise OSError(number, os.strerror(number), os.fsdecode(path))
        raise AssertionError("the last try has raised")

    try:
        os.close(call(_HERE, b"/", _ONE_FOLDER | os.O_CLOEXEC, 0, _NO_LINKS))
    except OSError:
        return None
    return call
