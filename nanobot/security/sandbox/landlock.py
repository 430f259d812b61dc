"""Landlock: a thread gives up rights for good, and so does every process it starts. landlock(7), capabilities(7).

With bwrap it closes what mounts cannot: abstract sockets and signals to processes outside. Without bwrap it is a weaker
sandbox of its own (`LandlockRules`). No Python code runs between fork and exec: a thread is made for one command, gives
up its rights, starts the command and ends.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from nanobot.security.sandbox.seccomp import forbid_calls
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
_RIGHTS_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_SCOPES_SINCE, _NET_SINCE = 6, 4
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
def abi() -> int:
    """The Landlock ABI version of this kernel; 0 for none."""
    if sys.platform != "linux":
        return 0
    try:
        return max(0, _call(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION)))
    except OSError:
        return 0


def can_scope() -> bool:
    """Whether Landlock can restrict abstract sockets and signals."""
    return abi() >= _SCOPES_SINCE


def harden_thread() -> None:
    """Restrict the calling thread and its children: the seccomp filter, and where the kernel supports scopes, no
    abstract sockets of or signals to processes outside.
    """
    ruleset = _create(_Rules(0, 0, _SCOPES)) if can_scope() else None
    try:
        _restrict(ruleset, (_UNIX, _NETLINK, _INET, _INET6))
    finally:
        if ruleset is not None:
            os.close(ruleset)


class LandlockRules:
    """A view as a Landlock ruleset, for one thread. Blocking to make; `close` it when the command has started.

    It is weaker than mounts: protected paths inside the workspace stay writable, and names of hidden files can be
    listed. It is stricter on sockets: no socket file can be used, not even the command's own, unless the owner granted
    one; then all can be.
    """

    def __init__(self, view: View) -> None:
        self._fs = max(rights for since, rights in _RIGHTS_BY_ABI.items() if since <= abi())
        net = _TCP if not view.network and abi() >= _NET_SINCE else 0
        rules = _Rules(self._fs, net, _SCOPES if can_scope() else 0)
        services = (_UNIX,) if view.services else ()  # a service behind a socket file could start programs outside
        self._families = (*services, _NETLINK, *((_INET, _INET6) if view.network else ()))
        self._ruleset = _create(rules)
        try:
            for place, rights in self._rules(view):
                self._allow(place, rights)
        except BaseException:
            self.close()
            raise

    def enter(self) -> None:
        """Restrict the calling thread for good, dropping all capabilities."""
        for number in range(_LAST_CAPABILITY + 1):  # fails without capabilities: nothing to drop
            _libc().prctl(_CAPBSET_DROP, *map(ctypes.c_ulong, (number, 0, 0, 0)))
        header = _Header(0x20080522, 0)
        _check(_libc().capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())))
        _restrict(self._ruleset, self._families)

    def close(self) -> None:
        if self._ruleset >= 0:
            os.close(self._ruleset)
            self._ruleset = -1

    def _rules(self, view: View) -> Iterator[tuple[Path, int]]:
        closed = {Path("/dev")}
        closed |= {place for place, access in view.places if access in (PathAccess.HIDE, PathAccess.COVER)}
        yield Path("/"), _READ_DIR
        shown = _without_closed(Path("/"), closed) if view.whole else map(Path, (*SYSTEM, "/proc"))
        yield from ((place, _READ) for place in shown)
        for name in _DEVICES:
            yield Path("/dev", name), self._fs
        for place in (*view.devices, *((view.tmp,) if view.tmp is not None else ())):
            yield place, self._fs
        for place, access in view.places:
            if access is PathAccess.WRITE:
                yield from ((inner, self._fs) for inner in _without_closed(place, closed))
            elif access in (PathAccess.READ, PathAccess.READ_TOO):
                yield from ((inner, _READ | _READ_DIR) for inner in _without_closed(place, closed))

    def _allow(self, place: Path, rights: int) -> None:
        """Add a rule; a path that does not exist (any more) is skipped."""
        with suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            held = os.open(place, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights & self._fs & (~0 if os.path.isdir(f"/proc/self/fd/{held}") else _FILE_RIGHTS)  # noqa: PTH112
                if allowed:
                    rule = _PathBeneathAttr(allowed, held)
                    pointer = ctypes.byref(rule)
                    _call(_ADD, ctypes.c_int(self._ruleset), ctypes.c_int(_PATH_BENEATH), pointer, ctypes.c_uint32(0))
            finally:
                os.close(held)


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


def _restrict(ruleset: int | None, families: Sequence[int]) -> None:
    """Restrict the calling thread for good, to these rules and sockets of these families."""
    _check(_libc().prctl(_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))))
    _check(forbid_calls(_libc().prctl, families))
    if ruleset is not None:
        _call(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0))


def _create(rules: _Rules) -> int:
    size = 24 if can_scope() else 16 if abi() >= _NET_SINCE else 8
    return _call(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0))


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
