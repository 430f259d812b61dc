"""A disk that loses power. It keeps what was synced apart from what the page cache holds: `kill -9` does not, since the
system goes on to write what a dead process has left.

While a program runs inside `recorded`, each of its calls that changes the disk is a point at which the power may fail.
At each of them the program's folder is rebuilt as such a disk may then hold it, once for each way to lose the cache:

- `NOTHING`: no change of a folder or a file that was not synced is there;
- `NAMES`: each name is where it was put, while files hold what was synced of them (a rename without its data);
- `DATA`: files hold all that was written, while folders hold the names that were synced;
- `TORN`: names as in `NAMES`, and of what was appended to a file the first half.

POSIX promises no more: the fsync of a file says nothing of its name, and that of a folder nothing of the files in it.
SQLite writes past Python, so its files cannot be recorded here; its setting has a test of its own.
"""

import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

CHANGING = ("open", "write", "fsync", "fdatasync", "replace", "rename", "link", "unlink", "mkdir", "ftruncate", "close")
"""Behind each of these is a point."""
_open, _close = os.open, os.close


class Loss(StrEnum):
    """What of the cache is lost."""

    NOTHING = "nothing unsynced"
    NAMES = "names only"
    DATA = "data only"
    TORN = "half of the data"


@dataclass
class Disk:
    """The folder of a program, and what of it was synced. Inodes are held open, so that their numbers stay theirs."""

    root: Path
    at_point: Callable[["Disk"], None]
    files: dict[int, bytes] = field(default_factory=dict)
    folders: dict[int, dict[str, int]] = field(default_factory=dict)
    held: dict[int, int] = field(default_factory=dict)
    calls: int = 0
    _lock: "threading.RLock" = field(default_factory=threading.RLock)
    _is_looking: bool = False

    def sync_everything(self) -> None:
        """What is there now was there for long."""
        for folder, names, files in os.walk(self.root):
            for path in (Path(folder), *(Path(folder, name) for name in (*names, *files))):
                self._keep(_open(path, os.O_RDONLY))

    def synced(self, descriptor: int) -> None:
        """This file or folder was synced."""
        self._keep(os.dup(descriptor))

    def point(self) -> None:
        """A moment at which the power may fail. What is done to look at the disk then is none."""
        with self._lock:
            if self._is_looking:
                return
            self._is_looking = True
            self.calls += 1
            try:
                self.at_point(self)
            finally:
                self._is_looking = False

    def rebuild(self, target: Path, loss: Loss) -> None:
        """Make the folder as the disk holds it after this loss."""
        with self._lock:
            self._rebuild(self.root.stat().st_ino, target, loss)

    def close(self) -> None:
        """Let go of the inodes."""
        for descriptor in self.held.values():
            _close(descriptor)

    def _keep(self, descriptor: int) -> None:
        with self._lock:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode):
                self.folders[found.st_ino] = self._names_of(descriptor)
            else:
                self.files[found.st_ino] = self._content_of(descriptor)
            self._hold(found.st_ino, descriptor)

    def _hold(self, inode: int, descriptor: int) -> None:
        if inode in self.held:
            _close(descriptor)
        else:
            self.held[inode] = descriptor

    def _names_of(self, folder: int) -> dict[str, int]:
        with os.scandir(folder) as entries:
            names = {entry.name: entry.inode() for entry in entries}
        for name, inode in names.items():
            if inode not in self.held:
                self._hold(inode, _open(name, os.O_RDONLY, dir_fd=folder))
        return names

    def _content_of(self, descriptor: int) -> bytes:
        again = _open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
        try:
            return b"".join(iter(lambda: os.read(again, 1 << 16), b""))
        finally:
            _close(again)

    def _rebuild(self, inode: int, target: Path, loss: Loss) -> None:
        target.mkdir()
        has_names = loss in (Loss.NAMES, Loss.TORN)
        names = self._names_of(self.held[inode]) if has_names else self.folders.get(inode, {})
        for name, child in names.items():
            found = os.fstat(self.held[child])
            if stat.S_ISDIR(found.st_mode):
                self._rebuild(child, target / name, loss)
            else:
                (target / name).write_bytes(self._left_of(child, loss))
                (target / name).chmod(stat.S_IMODE(found.st_mode))

    def _left_of(self, inode: int, loss: Loss) -> bytes:
        synced, cached = self.files.get(inode, b""), self._content_of(self.held[inode])
        if loss is Loss.DATA:
            return cached
        if loss is Loss.TORN and cached.startswith(synced):
            return cached[: (len(synced) + len(cached) + 1) // 2]
        return synced


@contextmanager
def recorded(root: Path, monkeypatch: pytest.MonkeyPatch, at_point: Callable[["Disk"], None]) -> Iterator[Disk]:
    """Record what is synced of this folder, and call `at_point` whenever the power may fail."""
    disk = Disk(root, at_point)
    disk.sync_everything()

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            done = real(*args, **kwargs)
            if name in ("fsync", "fdatasync"):
                disk.synced(args[0])
            disk.point()
            return done

        return call

    with monkeypatch.context() as patch:
        for name in CHANGING:
            if hasattr(os, name):
                patch.setattr(os, name, wrapped(name, getattr(os, name)))
        yield disk
    disk.close()


def lives_after(
    disk: Disk, folder: Path, check: Callable[[Path], str | None], *, losses: tuple[Loss, ...] = tuple(Loss)
) -> list[str]:
    """What is wrong with the next life on what each loss leaves now."""
    problems = []
    for loss in losses:
        place = folder / "after the power cut"
        disk.rebuild(place, loss)
        try:
            if (problem := check(place)) is not None:
                problems.append(f"after call {disk.calls}, {loss}: {problem}")
        finally:
            shutil.rmtree(place)
    return problems
