"""Landlock and seccomp: a thread gives up rights for good, and so does every process it starts.
landlock(7), seccomp(2), capabilities(7).

With bwrap they close what mounts cannot: abstract sockets and signals to processes outside; system calls that no
command needs (keyrings, kernel modules, the clock, unusual socket families); setuid files. Without bwrap they are a
weaker sandbox of their own (`confine_thread`). No Python code runs between fork and exec: a thread is made for one
command, gives up its rights, starts the command and ends.
"""

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from nanobot.security.sandbox.view import SYSTEM, PathAccess, View

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_NO_NEW_PRIVS, _CAPBSET_DROP = 38, 24
_SCOPES = 0b11  # abstract sockets, signals
_TCP = 0b11  # bind, connect
_READ_DIR = 1 << 3
_READ = 1 << 2 | 1 << 0
_FILE_RIGHTS = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15
_ALL_RIGHTS = (1 << 16) - 1
_SCOPES_SINCE = 6
"""The ABI version of Linux 6.12."""
_LAST_CAPABILITY = 63
_UNIX, _NETLINK, _INET, _INET6 = 1, 16, 2, 10
"""Allowed socket families; programs list interfaces by AF_NETLINK. Others bypass namespaces: AF_VSOCK, for example,
reaches the host of a virtual machine."""
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")


class _Rules(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneathAttr(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


@cache
def can_scope() -> bool:
    """Whether Landlock can restrict abstract sockets and signals on this kernel; older versions are not used."""
    if sys.platform != "linux":
        return False
    try:
        return _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)) >= _SCOPES_SINCE
    except OSError:
        return False


def harden_thread() -> None:
    """Restrict the calling thread and its children: the seccomp filter, and where the kernel supports scopes, no
    abstract sockets of or signals to processes outside.
    """
    _restrict((_UNIX, _NETLINK, _INET, _INET6), _Rules(0, 0, _SCOPES) if can_scope() else None)


def confine_thread(view: View) -> None:
    """Restrict the calling thread and its children to a view, dropping all capabilities. Blocking.

    It is weaker than mounts: protected paths inside the workspace stay writable, and names of hidden files can be
    listed. It is stricter on sockets: no socket file can be used, not even the command's own, unless the owner granted
    one; then all can be.
    """
    services = (_UNIX,) if view.services else ()  # a service behind a socket file could start programs outside
    families = (*services, _NETLINK, *((_INET, _INET6) if view.network else ()))
    _restrict(families, _Rules(_ALL_RIGHTS, 0 if view.network else _TCP, _SCOPES), _rights_of(view))
    for number in range(_LAST_CAPABILITY + 1):  # fails without capabilities: nothing to drop
        _libc().prctl(_CAPBSET_DROP, *map(ctypes.c_ulong, (number, 0, 0, 0)))
    header = _Header(0x20080522, 0)
    _check(_libc().capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))


def _rights_of(view: View) -> Iterator[tuple[Path, int]]:
    closed = {Path("/dev")}
    closed |= {place for place, access in view.places if access in (PathAccess.HIDE, PathAccess.COVER)}
    yield Path("/"), _READ_DIR
    shown = _without_closed(Path("/"), closed) if view.whole else map(Path, (*SYSTEM, "/proc"))
    yield from ((place, _READ) for place in shown)
    for name in _DEVICES:
        yield Path("/dev", name), _ALL_RIGHTS
    for place in (*view.devices, *((view.tmp,) if view.tmp is not None else ())):
        yield place, _ALL_RIGHTS
    for place, access in view.places:
        if access is PathAccess.WRITE:
            yield from ((inner, _ALL_RIGHTS) for inner in _without_closed(place, closed))
        elif access in (PathAccess.READ, PathAccess.READ_TOO):
            yield from ((inner, _READ | _READ_DIR) for inner in _without_closed(place, closed))


def _without_closed(folder: Path, closed: set[Path]) -> Iterator[Path]:
    """The fewest paths that cover a folder without the closed ones."""
    shut = {os.fspath(place) for place in closed}
    above = {os.fspath(parent) for place in closed for parent in place.parents}
    waiting = [os.fspath(folder)]
    while waiting:
        place = waiting.pop()
        if place in above and place not in shut:
            with suppress(OSError), os.scandir(place) as entries:  # what cannot be listed is not allowed
                waiting += [entry.path for entry in entries if not entry.is_symlink()]
        elif place not in shut:
            yield Path(place)


def _restrict(families: Sequence[int], rules: _Rules | None, rights: Iterable[tuple[Path, int]] = ()) -> None:
    """Restrict the calling thread for good: to sockets of these families, and by Landlock to these rights to paths."""
    ruleset = -1
    if rules is not None:
        ruleset = _call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0))
    try:
        for place, allowed in rights:
            _allow(ruleset, place, allowed)
        _check(_libc().prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))
        code = _assemble(tuple(families))
        program = _Program(len(code) // 8, code)
        filters = ctypes.c_ulong(_MODE_FILTER), ctypes.byref(program), ctypes.c_ulong(0), ctypes.c_ulong(0)
        _check(_libc().prctl(_SET_SECCOMP, *filters))
        if rules is not None:
            _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        if rules is not None:
            os.close(ruleset)


def _allow(ruleset: int, place: Path, rights: int) -> None:
    """Add a rule; a path that does not exist (any more) is skipped."""
    with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
        held = os.open(place, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = rights if os.path.isdir(f"/proc/self/fd/{held}") else rights & _FILE_RIGHTS  # noqa: PTH112
            if allowed:
                rule = _PathBeneathAttr(allowed, held)
                pointer = ctypes.byref(rule)
                _call(_ADD, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), pointer, ctypes.c_uint32(0))
        finally:
            os.close(held)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _call(number: int, *arguments: object) -> int:
    """Raises OSError."""
    call: Callable[..., int] = _libc().syscall
    return _check(call(ctypes.c_long(number), *arguments))


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# -- seccomp --------------------------------------------------------------------------------------------------------
# Forbidden calls fail with EPERM; on an unknown architecture nothing is forbidden.

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


_Step = tuple[int, int, int, int]
"""A BPF instruction: operation, steps to skip if true and if false, operand."""


@cache
def _assemble(families: tuple[int, ...]) -> bytes:
    """The filter, which allows sockets of these families only: one block for each architecture."""
    steps: list[_Step] = []
    for column, machine in enumerate(_MACHINES):
        block = list(_block(column, families))
        steps += [(_LOAD, 0, 0, _MACHINE), (_JUMP_EQUAL, 0, len(block), machine), *block]
    return b"".join(struct.pack("=HBBI", *step) for step in (*steps, _ALLOWED))


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
