"""Detects which of some files are read, by any process. Linux only, with inotify(7).

Opening to read, map or run counts; stat, listing and writing do not.
"""

import os
import struct
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ctypes

_READ = 0x1 | 0x10  # IN_ACCESS, IN_CLOSE_NOWRITE
_OVERFLOW, _FOLDER, _ONCE = 0x4000, 0x4000_0000, 0x8000_0000
_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024


class ReadWatcher:
    """Watches files, and the direct contents of folders, until `close`. Methods block briefly."""

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Missing files are skipped. Raises OSError if watching is not possible, or not for so many files."""
        self._kernel = _kernel()
        self._descriptor = _borrow_descriptor(self._kernel)
        self._watched: dict[int, str] = {}
        try:
            for name in files:
                self._watch(name, _READ | _ONCE)
            for name in folders:
                self._watch(name, _READ)
        except OSError:
            self.close()
            raise

    def paths(self) -> set[str] | None:
        """The paths read since the last call; None if the event queue overflowed."""
        read_paths: set[str] = set()
        while data := _read_events(self._descriptor):
            position = 0
            while position < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, position)
                name = os.fsdecode(data[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0"))
                position += _EVENT.size + length
                if mask & _OVERFLOW:
                    return None
                if mask & _READ and not mask & _FOLDER and number in self._watched:
                    read_paths.add(os.path.join(self._watched[number], name) if name else self._watched[number])  # noqa: PTH118
        return read_paths

    def close(self) -> None:
        """Stop watching. Call once."""
        for number in self._watched:
            self._kernel.inotify_rm_watch(self._descriptor, number)
        while _read_events(self._descriptor):
            pass
        _idle_descriptors.append((os.getpid(), self._descriptor))

    def _watch(self, name: str, mask: int) -> None:
        import ctypes

        number = self._kernel.inotify_add_watch(self._descriptor, os.fsencode(name), mask)
        if number >= 0:
            self._watched[number] = name
        elif not isinstance(error := OSError(ctypes.get_errno(), "It cannot be watched"), _UNREADABLE):
            raise error


_UNREADABLE = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Files that we cannot open cannot be read by processes with no more rights than ours."""
_idle_descriptors: deque[tuple[int, int]] = deque()
"""Unused descriptors with their process id. Closing one takes the kernel 15 ms, so they are reused."""


@cache
def _kernel() -> "ctypes.CDLL":
    if sys.platform != "linux":
        raise OSError("This system does not report which files are opened.")
    import ctypes  # slow import (5 ms)

    return ctypes.CDLL(None, use_errno=True)


def _borrow_descriptor(kernel: "ctypes.CDLL") -> int:
    """A descriptor without watches. One inherited through a fork belongs to the parent and is closed."""
    with suppress(IndexError):
        while True:
            process, descriptor = _idle_descriptors.pop()
            if process == os.getpid():
                return descriptor
            os.close(descriptor)
    descriptor = int(kernel.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError("The limit of inotify instances is reached.")
    return descriptor


def _read_events(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BUFFER)
    except BlockingIOError:
        return b""
