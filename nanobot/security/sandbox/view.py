"""What a command may see and write: the paths of `PathPolicy` as mounts.

A mount hides everything below its path, so mounts are ordered by depth. Every path is resolved. Paths that a command
could swap meanwhile lie in folders that it cannot write.
"""

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from functools import cache
from pathlib import Path

from nanobot.security.files.paths import PathPolicy
from nanobot.security.files.prefix_set import follow_all
from nanobot.utils.files import make_private_folder


class PathPrefixSet:
    """Some real paths and everything inside them, compared as text: this runs many times before each command."""

    def __init__(self, *paths: Path) -> None:
        self._prefixes = tuple(map(_as_folder, paths))

    def __contains__(self, path: Path) -> bool:
        """Whether this real path is one of them or inside one."""
        return _as_folder(path).startswith(self._prefixes)

    def below(self, path: Path) -> bool:
        """Whether it is inside one of them, and not that path itself."""
        text = os.fspath(path)
        return text != os.sep and text.startswith(self._prefixes)


def _as_folder(path: Path) -> str:
    return os.fspath(path).rstrip(os.sep) + os.sep


SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap", "/sys",
    "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/apt/lists", "/var/cache/apt", "/home/linuxbrew",
)  # fmt: skip
"""What programs need; everything that is left of the host if commands are restricted to the workspace."""
_PRIVATE_TO_COMMAND = PathPrefixSet(*map(Path, ("/run", "/tmp", "/dev", "/proc")))  # noqa: S108 - places inside
"""Folders that are the command's own: nothing of the host appears there."""
_LISTENING = "00010000"
"""The flag of a listening socket."""
_ACL = "system.posix_acl_access"
"""With an ACL the mode of a folder does not decide."""
_PROTECTED_WHOLE = frozenset({"cron"})
"""Workspace folders in which commands write nothing: protected as a whole, so that missing files are safe too."""


class PathAccess(IntEnum):
    """What a command may do with a path. If two apply to one path, the larger number wins."""

    READ_TOO = 0
    """Read, unless something else allows more."""
    WRITE = 1
    READ = 2
    COVER = 3
    """An empty folder, except for what is mounted into it."""
    HIDE = 4


@dataclass(frozen=True, slots=True)
class ViewGrants:
    """What the owner granted to one command in addition."""

    folders: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    services: tuple[Path, ...] = ()
    secrets: tuple[Path, ...] = ()
    """Credential paths that it may read."""
    network: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The paths of a command with their access. `whole`: the rest of the host can be read.

    `tmp` is the folder that the command sees as /tmp; None gives it one in memory, which ends with it.
    """

    places: tuple[tuple[Path, PathAccess], ...]
    whole: bool
    tmp: Path | None = None
    network: bool = True
    devices: tuple[Path, ...] = ()
    services: tuple[Path, ...] = ()

    def may_write(self, path: Path) -> bool:
        """Whether a command may write to this path, after resolving it."""
        real, best = Path(os.path.realpath(path)), PathAccess.READ
        for place, access in self.places:  # ordered by depth: the last match decides
            if real in PathPrefixSet(place):
                best = access
        return best is PathAccess.WRITE


def view_of(
    paths: PathPolicy,
    folder: Path | None = None,
    *,
    network: bool = True,
    tmp: Path | None = None,
    grants: ViewGrants | None = None,
    sockets: Iterable[Path] = (),
    make: bool = True,
) -> View:
    """The view that these policies give to a command that starts in `folder`, which is readable by policy. `sockets`
    are services of the host that it must not reach.

    Blocking: it resolves paths, and makes missing own paths that must exist to be protected (unless `make` is false:
    such a view is for inspection, not for running a command).
    """
    grants = grants or ViewGrants()
    tmp = Path(os.path.realpath(tmp)) if tmp is not None else None
    home = Path(os.path.realpath(Path.home()))
    writable = (*_real((paths.workspace, *paths.allowed)), *_without_links(grants.folders))
    open_to = PathPrefixSet(*writable)
    secrets = _without_links(grants.secrets)
    granted = PathPrefixSet(*secrets)
    existing = (place for place in paths.unreadable if os.path.lexists(os.path.expanduser(place)))  # noqa: PTH111
    hidden = tuple(place for place in _real(existing) if place not in granted)
    places: dict[Path, PathAccess] = {}

    def add(targets: Iterable[Path], access: PathAccess) -> None:
        for place in targets:
            places[place] = max(places.get(place, access), access)

    add(writable, PathAccess.WRITE)
    start = (folder,) if folder is not None and not paths.restrict else ()  # if restricted, it is mounted already
    add(_real((*paths.library, *start)), PathAccess.READ_TOO)
    if home not in open_to:
        if paths.restrict:
            add((home,), PathAccess.COVER)
        elif home in _PRIVATE_TO_COMMAND:
            add((home,), PathAccess.READ_TOO)
    # Our data folder is hidden as a whole, unless it serves other purposes too: a file in it may be replaced while a
    # command runs, and a mount over the old file would disappear.
    covered, workspace = None, Path(os.path.realpath(paths.workspace))
    if paths.data_folder is not None:
        data = Path(os.path.realpath(paths.data_folder))
        covered = data if data.is_dir() and data not in (workspace, home, *home.parents) else None
    add(_protected_paths(paths, workspace, writable, covered, make=make), PathAccess.READ)
    if covered is not None:
        add((covered,), PathAccess.COVER)
        add(_public_in(covered, hidden, tmp, writable), PathAccess.READ)
    add(filter(_visible, hidden), PathAccess.HIDE)
    for place in [place for place, access in places.items() if access > PathAccess.WRITE and place in open_to]:
        # Mounting the parent folders prevents renaming them: a mount point cannot be moved.
        add((outer for outer in place.parents if outer in open_to), PathAccess.WRITE)
    for place in secrets:
        places[place] = PathAccess.READ
    _hide_private(paths, places)
    if tmp is not None:  # also under its name outside, which file tools use
        places[tmp] = PathAccess.WRITE
    services = _real(grants.services)
    host_sockets = [path for path in _real(sockets) if path not in services and path not in open_to]
    seen = PathPrefixSet(*(place for place, access in places.items() if access is not PathAccess.HIDE))
    add((path for path in host_sockets if path in seen or path not in _PRIVATE_TO_COMMAND), PathAccess.HIDE)
    return View(
        tuple(_in_order(places, secrets, restricted=paths.restrict)),
        whole=not paths.restrict,
        tmp=tmp,
        network=network or grants.network,
        devices=_real(grants.devices),
        services=services,
    )


def _real(paths: Iterable[Path]) -> tuple[Path, ...]:
    """The real paths without duplicates; `~` is the user's home."""
    absolute = (os.path.abspath(os.path.expanduser(path)) for path in paths)  # noqa: PTH100, PTH111 - must not raise
    return tuple(map(Path, dict.fromkeys(follow_all(absolute))))


def _hide_private(paths: PathPolicy, places: dict[Path, PathAccess]) -> None:
    """Hide private paths from a chat that others read, except for the chat's own."""
    closed = _real((*paths.private.closed, *paths.private.unlisted))
    shown = tuple(place for place in _real(paths.private.open) if _visible(place))
    in_closed, in_shown = PathPrefixSet(*closed), PathPrefixSet(*shown)
    for place in [*places, *closed]:
        if place in in_closed and place not in in_shown:
            places.pop(place, None)
    for place in filter(_visible, closed):
        places[place] = PathAccess.COVER if place.is_dir() else PathAccess.HIDE
    for place in shown:
        places[place] = PathAccess.WRITE if place.is_dir() else PathAccess.READ
        log = place / "HISTORY.md"
        if log.is_file():
            places[log] = PathAccess.READ


def _without_links(places: Iterable[Path]) -> tuple[Path, ...]:
    """Granted paths that still are what was asked for: a new link would lead elsewhere."""
    return tuple(place for place in places if os.path.realpath(place) == os.fspath(place))


def _protected_paths(
    paths: PathPolicy, workspace: Path, writable: tuple[Path, ...], covered: Path | None, *, make: bool
) -> list[Path]:
    """Protected paths inside the writable ones. A missing one is made, since a mount needs it."""
    in_workspace, open_to = PathPrefixSet(workspace), PathPrefixSet(*writable)
    in_covered = PathPrefixSet(*((covered,) if covered is not None else ()))
    open_in_covered = PathPrefixSet(*filter(in_covered.below, writable))
    protected_paths = []
    for place in _real(paths.never_written):
        if place not in (open_in_covered if place in in_covered else open_to):
            continue
        first = workspace / place.relative_to(workspace).parts[0] if in_workspace.below(place) else place
        protected = first if first.name in _PROTECTED_WHOLE else place
        if _visible(protected) or (make and _make_missing(protected)):
            protected_paths.append(protected)
    return protected_paths


def _make_missing(place: Path) -> bool:
    try:
        if place.suffix:
            make_private_folder(place.parent)
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
        else:
            make_private_folder(place)
    except OSError:
        return _visible(place)
    return True


def _visible(place: Path) -> bool:
    """Whether it exists for us: what another user's closed folder holds is out of a command's reach too."""
    return os.path.exists(place)  # noqa: PTH110 - Path.exists raises there


def _public_in(covered: Path, hidden: tuple[Path, ...], tmp: Path | None, writable: tuple[Path, ...]) -> list[Path]:
    """Paths in the covered folder that are not secret."""
    secret = {path.name for path in hidden if path.parent == covered} | {"config.json"}
    inside = [path for path in _real(covered.iterdir()) if path.parent == covered and path != tmp]
    public = [path for path in inside if path.name not in secret and not path.name.startswith("config.json.")]
    return [path for path in public if not any(place in PathPrefixSet(path) for place in writable)]


def _in_order(
    places: dict[Path, PathAccess], secrets: tuple[Path, ...], *, restricted: bool
) -> list[tuple[Path, PathAccess]]:
    """Sorted by depth, without paths inside hidden ones and, if restricted, without hidden paths outside the view."""
    hidden = PathPrefixSet(*(place for place, access in places.items() if access is PathAccess.HIDE))
    open_to = PathPrefixSet(*(place for place, access in places.items() if access is PathAccess.WRITE))
    shown = PathPrefixSet(*(place for place, access in places.items() if access <= PathAccess.READ), *map(Path, SYSTEM))
    return sorted(
        (
            (place, access)
            for place, access in places.items()
            if place in secrets
            or (
                not hidden.below(place)
                and not (access is PathAccess.READ_TOO and place in open_to)
                and (access is not PathAccess.HIDE or not restricted or place in shown)
                and (access is PathAccess.COVER or _visible(place))
            )
        ),
        key=lambda entry: (os.fspath(entry[0]).count(os.sep), os.fspath(entry[0])),
    )


def listening_sockets() -> tuple[Path, ...]:
    """Socket files on which a service of this machine listens, which a read-only view does not stop a command from
    calling; none where the host does not tell. From proc_pid_net(5).
    """
    try:
        lines = Path("/proc/net/unix").read_bytes().decode(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    fields = [line.split(None, 7) for line in lines]
    names = dict.fromkeys(row[7] for row in fields if len(row) == 8 and row[3] == _LISTENING and row[7][0] == "/")
    is_enterable = cache(_is_enterable)
    sockets = []
    for name in names:
        # As root we reach paths that a command, without capabilities, cannot; a mount cannot cover such a path either.
        with suppress(OSError):
            real = Path(os.path.realpath(name))
            if stat.S_ISSOCK(os.lstat(name).st_mode) and all(map(is_enterable, real.parents)):
                sockets.append(real)
    return tuple(sockets)


def _is_enterable(folder: Path) -> bool:
    """Whether mode bits let us enter the folder, ignoring capabilities."""
    try:
        status = folder.stat()
    except OSError:
        return False
    if status.st_uid == os.geteuid():
        return bool(status.st_mode & stat.S_IXUSR)
    ours = {os.getegid(), *os.getgroups()}
    if status.st_gid in ours:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH) or _ACL in os.listxattr(folder)
