"""Which of some files are read meanwhile, by whatever process: the kernel tells. Linux alone has such a way.

It is inotify(7). Seen is what is opened to be read, mapped or run; what is only looked at, listed or written is not.
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


class OpenedFiles:
    """Files, and folders with what lies right in them, watched from now on until `close`. Methods block, briefly."""

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        """What is not there is left out. Raises OSError where nothing can be watched here, or not so many."""
        self._kernel = _kernel()
        self._descriptor = _lent(self._kernel)
        self._places: dict[int, str] = {}
        try:
            for name in files:
                self._watch(name, _READ | _ONCE)
            for name in folders:
                self._watch(name, _READ)
        except OSError:
            self.close()
            raise

    def paths(self) -> set[str] | None:
        """Those that were read since the last look; None where more happened than is remembered."""
        found: set[str] = set()
        while data := _events(self._descriptor):
            at = 0
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                name = os.fsdecode(data[at + _EVENT.size : at + _EVENT.size + length].rstrip(b"\0"))
                at += _EVENT.size + length
                if mask & _OVERFLOW:
                    return None
                if mask & _READ and not mask & _FOLDER and number in self._places:
                    found.add(os.path.join(self._places[number], name) if name else self._places[number])  # noqa: PTH118
        return found

    def close(self) -> None:
        """Watch no more. To be called once."""
        for number in self._places:
            self._kernel.inotify_rm_watch(self._descriptor, number)
        while _events(self._descriptor):
            pass
        _ready.append((os.getpid(), self._descriptor))

    def _watch(self, name: str, mask: int) -> None:
        import ctypes

        number = self._kernel.inotify_add_watch(self._descriptor, os.fsencode(name), mask)
        if number >= 0:
            self._places[number] = name
        elif not isinstance(refused := OSError(ctypes.get_errno(), "It cannot be watched"), _GONE):
            raise refused


_GONE = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What nobody can open now is not read by who has no more rights than we have."""
_ready: deque[tuple[int, int]] = deque()
"""Processes and descriptors of theirs that nobody uses now. To close one takes the kernel 15 ms."""


@cache
def _kernel() -> "ctypes.CDLL":
    if sys.platform != "linux":
        raise OSError("This system does not tell who opens a file.")
    import ctypes  # 5 ms that only who watches waits for

    return ctypes.CDLL(None, use_errno=True)


def _lent(kernel: "ctypes.CDLL") -> int:
    """A descriptor on which nothing is watched. One that came along through a fork belongs to the parent."""
    with suppress(IndexError):
        while True:
            process, descriptor = _ready.pop()
            if process == os.getpid():
                return descriptor
            os.close(descriptor)
    descriptor = int(kernel.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
    if descriptor < 0:
        raise OSError("No more can be watched here.")
    return descriptor


def _events(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BUFFER)
    except BlockingIOError:
        return b""
