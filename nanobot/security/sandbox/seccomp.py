"""A seccomp filter against system calls that no command needs and no namespace stops: keyrings, kernel modules, the
clock, unusual socket families; and against making setuid files.

The filter (prctl(2), seccomp(2)) applies to the thread that sets it and all its children. Forbidden calls fail with
EPERM; on an unknown architecture nothing is forbidden.
"""

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache

_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _MACHINE, _ARGUMENTS = 0, 4, 16
"""Offsets in `struct seccomp_data`: call number, architecture, arguments (of which the filter reads the low half)."""
_ALLOWED, _REFUSED = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x00050000 | errno.EPERM)
_UNKNOWN = (_RETURN, 0, 0, 0x00050000 | errno.ENOSYS)
_X32 = 0x40000000
"""From this number on, x86-64 has the same calls again (x32)."""

_CALLS = {
    #                        x86-64, i386, arm64
    "add_key":               (248, 286, 217),
    "request_key":           (249, 287, 218),
    "keyctl":                (250, 288, 219),
    "bpf":                   (321, 357, 280),
    "perf_event_open":       (298, 336, 241),
    "userfaultfd":           (323, 374, 282),
    "open_by_handle_at":     (304, 342, 265),
    "init_module":           (175, 128, 105),
    "finit_module":          (313, 350, 273),
    "delete_module":         (176, 129, 106),
    "kexec_load":            (246, 283, 104),
    "reboot":                (169, 88, 142),
    "swapon":                (167, 87, 224),
    "swapoff":               (168, 115, 225),
    "acct":                  (163, 51, 89),
    "quotactl":              (179, 131, 60),
    "settimeofday":          (164, 79, 170),
    "clock_settime":         (227, 264, 112),
    "clock_adjtime":         (305, 343, 266),
    "io_uring_setup":        (425, 425, 425),  # makes other calls past the filter
    "socketcall":            (-1,  102, -1),  # makes sockets past the filter
}  # fmt: skip
_SOCKET = (41, 359, 198)
_OPENAT2 = (437, 437, 437)
"""Passes its mode in memory, where no filter can look. Programs that find it unknown use openat."""
_MAKES_FILES = {
    #            x86-64, i386, arm64; index of the mode argument; index of the flags that say whether a file is made
    "chmod":     ((90, 15, -1), 1, None),
    "fchmod":    ((91, 94, 52), 1, None),
    "fchmodat":  ((268, 306, 53), 2, None),
    "fchmodat2": ((452, 452, 452), 2, None),
    "creat":     ((85, 8, -1), 1, None),
    "mknod":     ((133, 14, -1), 1, None),
    "mknodat":   ((259, 297, 33), 2, None),
    "open":      ((2, 5, -1), 2, 1),
    "openat":    ((257, 295, 56), 3, 2),
}  # fmt: skip
_CREATES = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE
_MACHINES = (0xC000003E, 0x40000003, 0xC00000B7)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_calls(prctl: Callable[..., int], families: Sequence[int]) -> int:
    """Install the filter for the calling thread, allowing sockets of these `families` only; return prctl's result.

    The thread must have set PR_SET_NO_NEW_PRIVS.
    """
    code = _assemble(tuple(families))
    program = _Program(len(code) // 8, code)
    return prctl(
        _SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


@cache
def _assemble(families: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in _steps(families))


_Step = tuple[int, int, int, int]
"""A BPF instruction: operation, steps to skip if true and if false, operand."""


def _steps(families: Sequence[int]) -> Iterator[_Step]:
    """One block for each architecture."""
    for column, machine in enumerate(_MACHINES):
        block = list(_block(column, families))
        yield _LOAD, 0, 0, _MACHINE
        yield _JUMP_EQUAL, 0, len(block), machine
        yield from block
    yield _ALLOWED


def _block(column: int, families: Sequence[int]) -> Iterator[_Step]:
    """The checks of one architecture."""
    yield _LOAD, 0, 0, _NUMBER
    if column == 0:
        yield _JUMP_AT_LEAST, 0, 1, _X32
        yield _REFUSED
    for numbers in _CALLS.values():
        yield from _when(numbers[column], _REFUSED)
    yield from _when(_OPENAT2[column], _UNKNOWN)
    for numbers, mode, flags in _MAKES_FILES.values():
        yield from _when(numbers[column], *_refuse_setuid(mode, flags))
    checks = ((_JUMP_EQUAL, 0, 1, family) for family in families)
    yield from _when(_SOCKET[column], _argument(0), *(step for jump in checks for step in (jump, _ALLOWED)), _REFUSED)
    yield _ALLOWED


def _when(number: int, *then: _Step) -> Iterator[_Step]:
    """Steps for one call, if this architecture has it."""
    if number >= 0:
        yield _JUMP_EQUAL, 0, len(then), number
        yield from then


def _refuse_setuid(mode: int, flags: int | None) -> Iterator[_Step]:
    """Refuse a setuid mode and, for root, a setgid one. Others keep setgid: folders that pass their group on use it."""
    if flags is not None:
        yield _argument(flags)
        yield _JUMP_ANY_BIT, 1, 0, _CREATES
        yield _ALLOWED
    yield _argument(mode)
    yield _JUMP_ANY_BIT, 0, 1, stat.S_ISUID | (stat.S_ISGID if os.geteuid() == 0 else 0)
    yield _REFUSED
    yield _ALLOWED


def _argument(number: int) -> _Step:
    return _LOAD, 0, 0, _ARGUMENTS + 8 * number
