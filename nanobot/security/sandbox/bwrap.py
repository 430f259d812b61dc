"""A view as arguments of bubblewrap. https://manpages.debian.org/bookworm/bubblewrap/bwrap.1.en.html

bwrap carries the options out in their order. Nothing here writes to the disk.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nanobot.security.sandbox.view import ALSO_OF_RUN, SYSTEM, PathAccess, View

INSIDE_UID = 1000
"""What root becomes inside: an ordinary user. Files it writes belong to root outside."""


@dataclass(frozen=True, slots=True)
class Bwrap:
    """The program, and which of its restrictions work on this machine."""

    program: str
    own_proc: bool = True
    """A /proc of its own; otherwise the host's read-only: other processes can be seen, not touched."""
    no_more_userns: bool = True
    """No user namespaces inside, which would open more of the kernel to a command."""
    as_root: bool = field(default_factory=lambda: hasattr(os, "geteuid") and os.geteuid() == 0)

    def argv(self, view: View, folder: Path, command: Sequence[str], *options: str) -> list[str]:
        """Arguments to run `command` in `folder` with this view and these additional options."""
        return [
            self.program,
            *self._namespaces(view),
            *_base(view),
            *(_proc(as_root=self.as_root) if self.own_proc else ("--ro-bind", "/proc", "/proc")),
            *_devices(view),
            *_run_and_tmp(view),
            *_mounts(view),
            *_seal(view),
            "--chdir", str(folder), *options, "--", *command,
        ]  # fmt: skip

    def _namespaces(self, view: View) -> Iterator[str]:
        yield from ("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
        yield from ("--new-session", "--cap-drop", "ALL")
        if self.no_more_userns:
            yield "--disable-userns"
        if self.as_root:
            yield from ("--uid", str(INSIDE_UID), "--gid", str(INSIDE_UID))
        if not view.network:
            yield "--unshare-net"


def _base(view: View) -> Iterator[str]:
    if view.whole:
        yield from ("--ro-bind", "/", "/")
        return
    for name in SYSTEM:
        place = Path(name)
        if place.is_symlink():
            yield from ("--symlink", str(place.readlink()), name)
        elif place.is_dir():
            yield from ("--ro-bind", name, name)


def _proc(*, as_root: bool) -> Iterator[str]:
    """A private /proc. Access to it depends on the user id, not on capabilities: root without any could still write
    kernel settings (core_pattern, for example, starts a program outside). bwrap 0.8 leaves them writable.
    """
    yield from ("--proc", "/proc")
    if as_root:
        yield from ("--remount-ro", "/proc")


def _devices(view: View) -> Iterator[str]:
    yield from ("--dev", "/dev")
    for device in view.devices:
        yield from ("--dev-bind", str(device), str(device))


def _run_and_tmp(view: View) -> Iterator[str]:
    yield from ("--tmpfs", "/run")
    if not view.whole:
        yield from ("--perms", "1777", "--tmpfs", "/var/tmp", "--symlink", "/run", "/var/run")  # noqa: S108
    names = Path(os.path.realpath("/etc/resolv.conf"))
    shown = [*ALSO_OF_RUN, *([str(names)] if not view.whole or names.is_relative_to("/run") else [])]
    for place in shown:
        if Path(place).exists() and not place.startswith("/etc/"):
            yield from ("--ro-bind", place, place)
    if view.tmp is None:
        yield from ("--perms", "1777", "--tmpfs", "/tmp")  # noqa: S108 - a path inside
    else:
        yield from ("--bind", str(view.tmp), "/tmp")  # noqa: S108


def _mounts(view: View) -> Iterator[str]:
    for place, access in view.places:
        name = str(place)
        if access is PathAccess.WRITE:
            yield from ("--bind", name, name)
        elif access in (PathAccess.READ, PathAccess.READ_TOO):
            yield from ("--ro-bind", name, name)
        elif access is PathAccess.COVER:
            yield from ("--perms", "0755", "--tmpfs", name)
        elif place.is_dir():
            yield from ("--perms", "0000", "--tmpfs", name)
        else:  # a device that may not be used: opening it fails
            yield from ("--ro-bind", os.devnull, name)
    for service in view.services:
        yield from ("--bind", str(service), str(service))


def _seal(view: View) -> Iterator[str]:
    """Make our own mounts read-only: a file written there would be lost silently."""
    for place, access in view.places:
        if access is PathAccess.COVER:
            yield from ("--remount-ro", str(place))
    yield from ("--remount-ro", "/run")
    if not view.whole:
        yield from ("--remount-ro", "/")


def is_device(path: Path) -> bool:
    """Whether it is a device, which needs an option of its own."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
