"""Calls to the kernel that no command needs and that reach past every namespace: keyrings, kernel modules, the clock,
sockets to other machines than the network's.

A filter as prctl(2) and seccomp(2) describe it, for the thread that sets it and all that it starts. What it names fails
with EPERM; on a machine it does not know it forbids nothing.
"""

import ctypes
import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache

_SET_SECCOMP, _MODE_FILTER = 22, 2
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE, _FIRST = 0, 4, 16
"""Where a program finds what it judges: the call, the machine, and the low half of the first argument."""
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_X32 = 0x40000000
"""From here on x86-64 has a second set of the same calls."""

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
    "io_uring_setup":        (425, 425, 425),  # makes the other calls unseen
    "socketcall":            (-1,  102, -1),  # makes sockets unseen
}  # fmt: skip
_SOCKET = (41, 359, 198)
_MACHINES = (0xC000003E, 0x40000003, 0xC00000B7)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def forbid_calls(prctl: Callable[..., int], families: Sequence[int]) -> int:
    """The calling thread does without them from here on, and without sockets of other `families`; what prctl says. It
    must have given up new privileges.
    """
    written = _written(tuple(families))
    program = _Program(len(written) // 8, written)
    return prctl(
        _SET_SECCOMP, ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), ctypes.c_ulong(0), ctypes.c_ulong(0)
    )


@cache
def _written(families: tuple[int, ...]) -> bytes:
    return b"".join(struct.pack("=HBBI", *step) for step in _steps(families))


def _steps(families: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """A block a machine: load its name, go on to the next block if it is another; then the numbers, one by one, and at
    the end, of a call for a socket, its family.
    """
    for column, machine in enumerate(_MACHINES):
        checks = [(_JUMP_EQUAL, calls[column]) for calls in _CALLS.values() if calls[column] >= 0]
        if column == 0:
            checks.insert(0, (_JUMP_AT_LEAST, _X32))
        of_sockets = len(families) + 2  # the number, the load, the families
        yield _LOAD, 0, 0, _MACHINE
        yield _JUMP_EQUAL, 0, len(checks) + of_sockets + 3, machine
        yield _LOAD, 0, 0, _NUMBER
        for left, (jump, number) in zip(range(len(checks), 0, -1), checks, strict=True):
            yield jump, left + of_sockets, 0, number  # over all the rest, to the refusal
        yield _JUMP_EQUAL, 0, len(families) + 1, _SOCKET[column]
        yield _LOAD, 0, 0, _FIRST
        for left, family in zip(range(len(families), 0, -1), families, strict=True):
            yield _JUMP_EQUAL, left - 1, 1 if left == 1 else 0, family  # to the leave, or, after the last, over it
        yield _RETURN, 0, 0, _ALLOW
        yield _RETURN, 0, 0, _REFUSE
    yield _RETURN, 0, 0, _ALLOW
