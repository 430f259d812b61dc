"""Open the files that tools touch: resolve the path, check it by the policy, open exactly what was checked.

A folder may be replaced by a link between check and open. So the resolved path is opened without following links
(`utils/open_no_follow`); if a link appeared meanwhile, the path is checked again. Files are read and replaced through
the descriptor of their folder, so both happen in the same place. On Windows, which has no such call, the path is
checked again after opening.

Devices, pipes and sockets are refused before they can block, and so are hard links to secret files.
"""

import errno
import hashlib
import os
import stat
import sys
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import PRIVATE_FOLDER, remove_old_files
from nanobot.utils.open_no_follow import PinnedFolder, check_regular, open_folder, open_no_follow

_MAX_CHECKS = 200
"""Checks of a path that keeps changing. One change is an accident, this many are an attack."""
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_T = TypeVar("_T")


Stamp = tuple[int, int, int]
"""Inode, mtime and size: changes when the file does."""


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_ino, status.st_mtime_ns, status.st_size


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What was written. The stamp is None if the file was gone again at once."""

    real: Path
    sha256: bytes
    stamp: Stamp | None

    def read_again(self) -> "WrittenFile | None":
        """Return what is there now, None if nothing. Raises OSError, also if it is no plain file. Blocks."""
        try:
            with open(open_no_follow(self.real, _READ), "rb") as file:
                status = os.fstat(file.fileno())
                _check_kind(self.real, status, self.real)
                return WrittenFile(self.real, hashlib.file_digest(file, "sha256").digest(), stamp_of(status))
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a folder. A link is neither folder nor file; `link_target` is its target."""

    name: str
    is_dir: bool
    is_file: bool
    size: int | None = None
    link_target: str | None = None


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens files for one tool call, within the policy and the call's grants. Methods block.

    Raises PathDeniedError for a path that may not be touched, OSError for failures of the file system.
    """

    policy: PathPolicy
    granted: Collection[str] = frozenset()

    def read(self, path: str | Path) -> BinaryIO:
        """Open a plain file for reading bytes."""
        return self.open(path)[1]

    def open(self, path: str | Path) -> tuple[Path, BinaryIO]:
        """Open a plain file for reading bytes; return its real path too."""
        return self._with_checked(path, self.policy.resolve_readable, lambda real: self._open(path, real))

    def descriptor(self, path: str, flags: int = 0) -> int:
        """Open a file as an `opener` of Python's `open`: PathDeniedError becomes PermissionError."""
        del flags
        try:
            with self.read(path) as file:
                return os.dup(file.fileno())
        except PathDeniedError as error:
            raise PermissionError(errno.EACCES, str(error), path) from error

    def resolve_sendable(self, path: str | Path) -> Path:
        """Return the real path of a plain file that may be sent to a chat."""
        real, file = self._with_checked(
            path, lambda path, _: self.policy.resolve_sendable(path), lambda real: self._open(path, real)
        )
        file.close()
        return real

    def folder(self, path: str | Path) -> "AbstractContextManager[OpenFolder]":
        """Hold a folder open for listing, within a `with` block."""
        return closing(self._with_checked(path, self.policy.resolve_listable, lambda real: OpenFolder(self, real)))

    def place(self, path: str | Path, *, make: bool = False) -> "AbstractContextManager[FileLocation]":
        """Hold the location of a file, existing or new, open for reading and replacing. `make` missing folders."""
        locate = partial(FileLocation, self, path, make=0o777 if make else None)
        return closing(self._with_checked(path, self.policy.resolve_writable, locate))

    def own_location(self, path: str | Path) -> "AbstractContextManager[FileLocation]":
        """The location of a workspace file that nanobot itself writes; missing folders are made private."""
        locate = partial(FileLocation, self, path, make=PRIVATE_FOLDER)
        return closing(self._with_checked(path, lambda path, _: self.policy.resolve_own(path), locate))

    def _open(self, path: str | Path, real: Path) -> tuple[Path, BinaryIO]:
        _check_kind(path, real.lstat(), real)
        return real, self.check_descriptor(path, real, open_no_follow(real, _READ))

    def _with_checked(
        self, path: str | Path, check: Callable[[str | Path, Collection[str]], Path], use: Callable[[Path], _T]
    ) -> _T:
        """Apply `use` to the checked path; check again if the path changed in between."""
        before = None
        for _ in range(_MAX_CHECKS):
            real = check(path, self.granted)
            try:
                return use(real)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR) or real == before:
                    raise
                before = real
        raise PathDeniedError(
            f"{path} keeps changing while it is opened. Nothing was read or written. Try again later."
        )

    def check_descriptor(self, path: str | Path, real: Path, descriptor: int) -> BinaryIO:
        """Return the open file if it is a plain file and no hard link to a secret one."""
        try:
            status = os.fstat(descriptor)
            _check_kind(path, status, real)
            other_name = self.policy.other_name_of(status)
            if other_name is not None and not self.policy.admits(Path(other_name), self.granted):
                raise PathDeniedError(f"{path} is a hard link to a file that holds secrets; tools may not read it.")
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


class FileLocation:
    """The location of a file: its folder, held open, and its name. `make` missing folders with this mode."""

    def __init__(self, opener: Opener, path: str | Path, real: Path, *, make: int | None = None) -> None:
        self.real = real
        self._opener = opener
        self._path = path
        self._folder = PinnedFolder(real.parent, make=make)
        self.close = self._folder.close

    def read(self) -> BinaryIO:
        """Open the file for reading bytes. Raises FileNotFoundError if it does not exist yet."""
        self._stat()
        return self._opener.check_descriptor(self._path, self.real, self._folder.open(self.real.name, _READ))

    def check_permission(self) -> None:
        """Raise OSError for a read-only file, since replacing it would ignore its mode, or one on a read-only disk."""
        name, folder = self._folder.name(self.real.name), self._folder.descriptor
        with suppress(FileNotFoundError):
            self._stat()
            if not os.access(name, os.W_OK, dir_fd=folder):
                is_read_only_disk = sys.platform != "win32" and bool(os.statvfs(self.real).f_flag & os.ST_RDONLY)
                code = errno.EROFS if is_read_only_disk else errno.EACCES
                raise OSError(code, os.strerror(code), str(self.real))

    def replace(self, data: bytes, new_mode: int) -> WrittenFile:
        """Write the file atomically and durably; an existing one keeps its mode."""
        try:
            mode = stat.S_IMODE(self._stat().st_mode)
        except FileNotFoundError:
            mode = new_mode
        self._folder.replace(self.real.name, data, mode)
        stamp = None
        with suppress(OSError):
            stamp = stamp_of(self._folder.stat(self.real.name))
        return WrittenFile(self.real, hashlib.sha256(data).digest(), stamp)

    def append(self, data: bytes) -> None:
        """Append durably; the file is made if it is missing."""
        self._folder.append(self.real.name, data)

    def remove(self) -> None:
        """Delete the file."""
        self._stat()
        os.unlink(self._folder.name(self.real.name), dir_fd=self._folder.descriptor)

    def remove_old_neighbours(self, older_than_s: float) -> None:
        """Delete files of the same folder that were not modified for this long."""
        folder = self._folder.descriptor
        remove_old_files(self._folder.path if folder is None else folder, older_than_s=older_than_s)

    def _stat(self) -> os.stat_result:
        status = self._folder.stat(self.real.name)
        _check_kind(self._path, status, self.real)
        return status


class OpenFolder:
    """A folder held open, for listing it and the folders below it."""

    def __init__(self, opener: Opener, real: Path) -> None:
        self.real = real
        self._opener = opener
        self._folder = PinnedFolder(real)
        self.close = self._folder.close

    def entries(self, relative: str = "", *, in_full: bool = False) -> list[Entry]:
        """List the folder, or one below it, in no order; `in_full` with sizes and link targets.

        Links on the way are not followed. Raises PathDeniedError for what may not be read, else OSError.
        """
        below = self.real / relative
        if relative and not self._opener.policy.admits(below, self._opener.granted):
            raise PathDeniedError(f"{below} may not be listed.")
        if self._folder.descriptor is None:
            with os.scandir(below) as scan:
                return [_entry(entry, str(below), None, in_full=in_full) for entry in scan]
        descriptor = open_folder(relative or ".", beneath=self._folder.descriptor)
        try:
            with os.scandir(descriptor) as scan:
                return [_entry(entry, "", descriptor, in_full=in_full) for entry in scan]
        finally:
            os.close(descriptor)


def _check_kind(path: str | Path, status: os.stat_result, real: Path) -> None:
    try:
        check_regular(status, real)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        problem = f"{path} is a device, pipe or socket, not a file. It cannot be read or edited."
        raise PathDeniedError(problem) from error


def _entry(entry: os.DirEntry[str], folder: str, descriptor: int | None, *, in_full: bool) -> Entry:
    """Describe an entry; one that vanished or cannot be read has a name only."""
    try:
        is_dir, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
        if not in_full or is_dir:
            return Entry(entry.name, is_dir, is_file)
        if entry.is_symlink():
            leads_to = os.readlink(os.path.join(folder, entry.name), dir_fd=descriptor)  # noqa: PTH118
            return Entry(entry.name, is_dir=False, is_file=False, link_target=leads_to)
        return Entry(entry.name, is_dir, is_file, entry.stat(follow_symlinks=False).st_size if is_file else None)
    except OSError:
        return Entry(entry.name, is_dir=False, is_file=True)
