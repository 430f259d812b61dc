"""Every file a tool touches is opened here: resolved, judged by the policy, then opened exactly where it was judged.

Between judging and opening somebody may put a link where a folder was. So what is opened has no link in it any more
(`utils/no_links`): one that came in between ends the attempt, and the path is judged anew. Files are kept hold of by
their open folder, so that what was read and what is replaced are the same place. On Windows, which has no such call,
the path is looked at once more after opening.

What is no plain file (a device, a pipe, a socket) is refused before it can block or do something, and so is a file that
is a secret by another name (a hard link).
"""

import errno
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.files import (
    O_BINARY,
    PRIVATE_FILE,
    PRIVATE_FOLDER,
    remove_old,
    replace_in,
    sync_data,
    write_atomic,
    write_whole,
)
from nanobot.utils.no_links import make_folder, open_exactly, open_folder

_TRIES = 200
"""How often a path that changes under our hands is judged anew. One change is an accident, this many are an attack."""
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)

_T = TypeVar("_T")


Stamp = tuple[int, int, int]
"""What changes when a file does."""


def stamp_of(found: os.stat_result) -> Stamp:
    """The stamp of a file that was looked at."""
    return found.st_ino, found.st_mtime_ns, found.st_size


@dataclass(frozen=True, slots=True)
class Entry:
    """What stands in a folder. A link is neither folder nor file, and leads somewhere."""

    name: str
    is_dir: bool
    is_file: bool
    size: int | None = None
    leads_to: str | None = None


@dataclass(frozen=True, slots=True)
class Opener:
    """Opens what a call may touch: what the policy gives, and what was granted to it. All of it is blocking.

    What may not be touched raises PathDeniedError, what the disk refuses OSError.
    """

    policy: PathPolicy
    granted: Collection[str] = frozenset()

    def read(self, path: str | Path) -> BinaryIO:
        """A plain file, open for reading its bytes."""
        return self.open(path)[1]

    def open(self, path: str | Path) -> tuple[Path, BinaryIO]:
        """The same, after where it really lies."""
        return self._settled(path, self.policy.readable, lambda real: self._opened(path, real))

    def descriptor(self, path: str, flags: int = 0) -> int:
        """The same as an opener for the `open` of Python, for who knows only errors of the disk."""
        del flags
        try:
            with self.read(path) as file:
                return os.dup(file.fileno())
        except PathDeniedError as error:
            raise PermissionError(errno.EACCES, str(error), path) from error

    def to_send(self, path: str | Path) -> Path:
        """Where a plain file really lies that may go to a chat."""
        real, file = self._settled(path, lambda path, _: self.policy.sendable(path), lambda at: self._opened(path, at))
        file.close()
        return real

    def _opened(self, path: str | Path, real: Path) -> tuple[Path, BinaryIO]:
        _check_kind(path, real.lstat(), str(real))
        return real, self._checked(path, real, open_exactly(real, _READ))

    def folder(self, path: str | Path) -> "AbstractContextManager[OpenFolder]":
        """A folder to look into, as long as the block lasts."""
        return _closing(lambda: self._settled(path, self.policy.listable, self._folder))

    def place(self, path: str | Path, *, make: bool = False) -> "AbstractContextManager[Place]":
        """Where a file is, or will be, to be read and replaced as long as the block lasts. `make` missing folders."""
        return self._place(path, self.policy.writable, make=make)

    def own_place(self, path: str | Path) -> "AbstractContextManager[Place]":
        """The same of a file that nanobot itself keeps in the workspace; missing folders are made, ours alone."""
        return self._place(path, lambda path, _: self.policy.kept(path), make=True, mode=PRIVATE_FOLDER)

    def _place(
        self,
        path: str | Path,
        judge: Callable[[str | Path, Collection[str]], Path],
        *,
        make: bool,
        mode: int = 0o777,
    ) -> "AbstractContextManager[Place]":
        def placed(real: Path) -> Place:
            if os.name == "nt":
                if make:
                    real.parent.mkdir(mode, parents=True, exist_ok=True)
                return Place(self, path, real, None)
            return Place(self, path, real, make_folder(real.parent, mode) if make else open_folder(real.parent))

        return _closing(lambda: self._settled(path, judge, placed))

    def _folder(self, real: Path) -> "OpenFolder":
        return OpenFolder(self, real, None if os.name == "nt" else open_folder(real))

    def _settled(
        self, path: str | Path, judge: Callable[[str | Path, Collection[str]], Path], use: Callable[[Path], _T]
    ) -> _T:
        """What comes of a path that was judged and is still the same when it is used."""
        for attempt in range(_TRIES):
            real = judge(path, self.granted)
            try:
                return use(real)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise
                if _is_circle(real) or (error.errno == errno.ENOTDIR and not _has_link(real)):
                    raise  # so it was before: nothing has changed
            if attempt > 10:
                time.sleep(0.001)
        raise PathDeniedError(f"{path} changes while it is opened. Nothing was read or written. Try again later.")

    def _checked(self, path: str | Path, real: Path, descriptor: int) -> BinaryIO:
        """The open file, if it is a plain one and no secret by another name."""
        try:
            found = os.fstat(descriptor)
            _check_kind(path, found, str(real))
            if (name := self.policy.other_name_of(found)) is not None and not self._is_granted(name):
                raise PathDeniedError(f"{path} is another name of a file that holds secrets; tools may not read it.")
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise

    def _is_granted(self, name: str) -> bool:
        return self.policy.admits(Path(name), self.granted)


class Place:
    """A file's place: its folder, held open, and its name."""

    def __init__(self, opener: Opener, path: str | Path, real: Path, folder: int | None) -> None:
        self.real = real
        """Where it really is."""
        self._opener = opener
        self._path = path
        self._folder = folder

    def read(self) -> BinaryIO:
        """The file, open for reading its bytes. Raises FileNotFoundError where there is none yet."""
        _check_kind(self._path, self._stat(), str(self.real))
        flags = _READ | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | O_BINARY
        descriptor = os.open(self._name, flags, dir_fd=self._folder)
        return self._opener._checked(self._path, self.real, descriptor)  # noqa: SLF001 - one file, two classes

    def check_permission(self) -> None:
        """Respect a file that its owner made read-only: replacing it as a whole would not ask. Raises OSError."""
        try:
            _check_kind(self._path, self._stat(), str(self.real))
        except FileNotFoundError:
            return
        if not os.access(self._name, os.W_OK, dir_fd=self._folder):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self.real))

    def replace(self, data: bytes, new_mode: int) -> "Stamp | None":
        """Put a file with these bytes there, in one step, seen to the disk. Where there is one, its mode is kept.

        How it stands then; None where it is gone already.
        """
        try:
            found = self._stat()
            _check_kind(self._path, found, str(self.real))
            mode = stat.S_IMODE(found.st_mode)
        except FileNotFoundError:
            mode = new_mode
        if self._folder is None:
            write_atomic(self.real, data, mode=mode)
        else:
            replace_in(self._folder, self._name, data, mode=mode)
        with suppress(OSError):
            return stamp_of(self._stat())
        return None

    def append(self, data: bytes) -> None:
        """Add to the file, made if it is missing, and see it to the disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        descriptor = os.open(self._name, flags | O_BINARY, PRIVATE_FILE, dir_fd=self._folder)
        try:
            _check_kind(self._path, os.fstat(descriptor), str(self.real))
            write_whole(descriptor, data)
            sync_data(descriptor)
        finally:
            os.close(descriptor)
        if self._folder is not None:
            os.fsync(self._folder)

    def remove_old_neighbours(self, older_than_s: float) -> None:
        """Delete the files of its folder that were not changed for so long."""
        remove_old(self.real.parent if self._folder is None else self._folder, older_than_s=older_than_s)

    def close(self) -> None:
        """Let go of the folder."""
        if self._folder is not None:
            os.close(self._folder)

    def _stat(self) -> os.stat_result:
        return os.stat(self._name, dir_fd=self._folder, follow_symlinks=False)

    @property
    def _name(self) -> str:
        return self.real.name if self._folder is not None else str(self.real)


class OpenFolder:
    """A folder that is held open, to look into and below."""

    def __init__(self, opener: Opener, real: Path, folder: int | None) -> None:
        self.real = real
        """Where it really is."""
        self._opener = opener
        self._folder = folder

    def entries(self, relative: str = "", *, in_full: bool = False) -> list[Entry]:
        """What is in it, or in a folder below, in no order; `in_full` with sizes and where links lead.

        A link on the way below is not followed. Raises PathDeniedError for what may not be read, OSError else.
        """
        below = self.real / relative
        if relative and not self._opener.policy.admits(below, self._opener.granted):
            raise PathDeniedError(f"{below} may not be looked into.")
        if self._folder is None:
            with os.scandir(below) as scan:
                return [_entry(entry, str(below), None, in_full=in_full) for entry in scan]
        descriptor = open_folder(relative or ".", beneath=self._folder)
        try:
            with os.scandir(descriptor) as scan:
                return [_entry(entry, "", descriptor, in_full=in_full) for entry in scan]
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of it."""
        if self._folder is not None:
            os.close(self._folder)


_Opened = TypeVar("_Opened", "Place", "OpenFolder")


@contextmanager
def _closing(opened: "Callable[[], _Opened]") -> "Iterator[_Opened]":
    thing = opened()
    try:
        yield thing
    finally:
        thing.close()


def _check_kind(path: str | Path, found: os.stat_result, real: str) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), real)
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), real)
    if not stat.S_ISREG(found.st_mode):
        raise PathDeniedError(f"{path} is a device, pipe or socket, not a file. It cannot be read or edited.")


def _is_circle(real: Path) -> bool:
    try:
        real.stat()
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _has_link(real: Path) -> bool:
    return any(map(os.path.islink, (real, *real.parents)))


def _entry(entry: os.DirEntry[str], folder: str, descriptor: int | None, *, in_full: bool) -> Entry:
    """What there is to tell; of what vanished or may not be looked at, the name."""
    try:
        is_dir, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
        if not in_full or is_dir:
            return Entry(entry.name, is_dir, is_file)
        if entry.is_symlink():
            leads_to = os.readlink(os.path.join(folder, entry.name), dir_fd=descriptor)  # noqa: PTH118
            return Entry(entry.name, is_dir=False, is_file=False, leads_to=leads_to)
        return Entry(entry.name, is_dir, is_file, entry.stat(follow_symlinks=False).st_size if is_file else None)
    except OSError:
        return Entry(entry.name, is_dir=False, is_file=True)
