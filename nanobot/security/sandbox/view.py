"""What a command may see and write: the places of `PathPolicy`, laid out as mounts.

A mount hides whatever lies under its place, so the order is by depth: a folder before what is in it. Every place is
taken where it really leads. What a command could swap behind our back lies in folders that it cannot write.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from nanobot.security.paths import PathPolicy
from nanobot.security.sandbox.looking import Inside, Look
from nanobot.utils.files import make_private_folder

SYSTEM = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap", "/sys",
    "/var/lib/dpkg", "/var/lib/rpm", "/var/lib/apt/lists", "/var/cache/apt", "/home/linuxbrew",
)  # fmt: skip
"""What programs need; all that is left of the host where commands are restricted to the workspace."""
ALSO_OF_RUN = ("/run/current-system", "/run/opengl-driver", "/run/booted-system")
"""Programs of NixOS. The rest of /run is sockets of services, which start processes outside."""
_OF_THE_COMMAND = Inside(*map(Path, ("/run", "/tmp", "/dev", "/proc")))  # noqa: S108 - places inside
"""Here a command finds nothing of the host's."""
_NEVER_THE_AGENTS = frozenset({"cron"})
"""Folders of a workspace with nothing in them that a command may write: a file that is not there yet is safe too."""


class Access(IntEnum):
    """What a command gets of a place. Where two hold for the same place, the larger number stands."""

    READ_TOO = 0
    """Reading, unless something else says more."""
    WRITE = 1
    READ = 2
    COVER = 3
    """The folder is there and empty, but for what is mounted into it."""
    HIDE = 4


@dataclass(frozen=True, slots=True)
class Grants:
    """What the owner gave to one command on top."""

    folders: tuple[Path, ...] = ()
    devices: tuple[Path, ...] = ()
    services: tuple[Path, ...] = ()
    secrets: tuple[Path, ...] = ()
    """Places of keys that it may read."""
    network: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """The places of a command, each with what it may do there. `whole`: the rest of the host can be read.

    `tmp` is what the command finds as /tmp; None gives it one in memory, which ends with it.
    """

    places: tuple[tuple[Path, Access], ...]
    whole: bool
    home: Path
    tmp: Path | None = None
    network: bool = True
    devices: tuple[Path, ...] = ()
    services: tuple[Path, ...] = ()

    def may_write(self, path: Path) -> bool:
        """Whether a command may write at this place, which is taken where it really leads."""
        real, best = Path(os.path.realpath(path)), Access.READ
        for place, access in self.places:  # by depth: the last that holds it says so
            if real in Inside(place):
                best = access
        return best is Access.WRITE


def view_of(
    paths: PathPolicy,
    folder: Path | None = None,
    *,
    network: bool = True,
    tmp: Path | None = None,
    grants: Grants | None = None,
    sockets: Iterable[Path] = (),
    make: bool = True,
) -> View:
    """The view these policies give to a command that begins in `folder`, which may be read by them. `sockets` are
    services of the host that it must not talk to.

    Blocking: it looks where places lead, and makes those of ours that must be there to be guarded (unless `make` is
    false: then the view is one to look at, not to run a command in).
    """
    grants, look = grants or Grants(), Look()
    tmp = Path(os.path.realpath(tmp)) if tmp is not None else None
    home = Path(os.path.realpath(Path.home()))
    writable = (*look.real((paths.workspace, *paths.allowed)), *_unmoved(grants.folders))
    open_to = Inside(*writable)
    secrets = _unmoved(grants.secrets)
    given = Inside(*secrets)
    there = (place for place in paths.unreadable if os.path.lexists(os.path.expanduser(place)))  # noqa: PTH111
    hidden = tuple(place for place in look.real(there) if place not in given)
    places: dict[Path, Access] = {}

    def add(found: Iterable[Path], access: Access) -> None:
        for place in found:
            places[place] = max(places.get(place, access), access)

    add(writable, Access.WRITE)
    begins = (folder,) if folder is not None and not paths.restrict else ()  # restricted, it lies in what is given
    add(look.real((*paths.library, *begins)), Access.READ_TOO)
    if home not in open_to:
        if paths.restrict:
            add((home,), Access.COVER)
        elif home in _OF_THE_COMMAND:
            add((home,), Access.READ_TOO)
    covered = _covered(paths, home)
    add(_guarded(paths, writable, covered, look, make=make), Access.READ)
    if covered is not None:
        add((covered,), Access.COVER)
        add(_beside(covered, hidden, tmp, writable, look), Access.READ)
    add(filter(_visible, hidden), Access.HIDE)
    for place in [place for place, access in places.items() if access > Access.WRITE and place in open_to]:
        # A folder around one may not be moved away with it: what is a mount of its own cannot be renamed.
        add((outer for outer in place.parents if outer in open_to), Access.WRITE)
    for place in secrets:
        places[place] = Access.READ
    _set_apart(paths, places, look)
    if tmp is not None:  # also by its name outside, which file tools know
        places[tmp] = Access.WRITE
    services = look.real(grants.services)
    of_the_host = [path for path in look.real(sockets) if path not in services and path not in open_to]
    seen = Inside(*(place for place, access in places.items() if access is not Access.HIDE))
    add((path for path in of_the_host if path in seen or path not in _OF_THE_COMMAND), Access.HIDE)
    return View(
        tuple(_in_order(places, secrets, restricted=paths.restrict)),
        whole=not paths.restrict,
        home=home,
        tmp=tmp,
        network=network or grants.network,
        devices=look.real(grants.devices),
        services=services,
    )


def _set_apart(paths: PathPolicy, places: dict[Path, Access], look: Look) -> None:
    """What was told in private is not there where others read along, but for what is this chat's own."""
    closed = look.real((*paths.apart.closed, *paths.apart.unlisted))
    shown = tuple(place for place in look.real(paths.apart.open) if _visible(place))
    in_closed, in_shown = Inside(*closed), Inside(*shown)
    for place in [*places, *closed]:
        if place in in_closed and place not in in_shown:
            places.pop(place, None)
    for place in filter(_visible, closed):
        places[place] = Access.COVER if place.is_dir() else Access.HIDE
    for place in shown:
        places[place] = Access.WRITE if place.is_dir() else Access.READ
        log = place / "HISTORY.md"
        if log.is_file():
            places[log] = Access.READ


def _unmoved(places: Iterable[Path]) -> tuple[Path, ...]:
    """What was granted, where it still is what was asked for: a link that came since leads elsewhere."""
    return tuple(place for place in places if os.path.realpath(place) == os.fspath(place))


def _guarded(
    paths: PathPolicy, writable: tuple[Path, ...], covered: Path | None, look: Look, *, make: bool
) -> list[Path]:
    """The places inside the writable ones that are never written. One that is missing is made: a mount needs it."""
    workspace = Path(os.path.realpath(paths.workspace))
    in_workspace, open_to = Inside(workspace), Inside(*writable)
    in_covered = Inside(*((covered,) if covered is not None else ()))
    open_in_covered = Inside(*filter(in_covered.below, writable))
    found = []
    for place in look.real(paths.never_written):
        if place not in (open_in_covered if place in in_covered else open_to):
            continue
        first = workspace / place.relative_to(workspace).parts[0] if in_workspace.below(place) else place
        guarded = first if first.name in _NEVER_THE_AGENTS else place
        if _visible(guarded) or (make and _made(guarded)):
            found.append(guarded)
    return found


def _made(place: Path) -> bool:
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
    """Whether it is there, for us: what lies in another user's closed folder is out of a command's reach as well."""
    return os.path.exists(place)  # noqa: PTH110 - Path.exists raises there


def _covered(paths: PathPolicy, home: Path) -> Path | None:
    """Our data folder, hidden as a whole: a file in it may be replaced while a command runs, and a mount over the old
    one is gone with it. None where the folder is one of many uses; then its files are hidden one by one.
    """
    if paths.data_folder is None:
        return None
    folder = Path(os.path.realpath(paths.data_folder))
    if not folder.is_dir() or folder == home or folder in home.parents:
        return None
    return None if folder == Path(os.path.realpath(paths.workspace)) else folder


def _beside(
    covered: Path, hidden: tuple[Path, ...], tmp: Path | None, writable: tuple[Path, ...], look: Look
) -> list[Path]:
    """What of a covered folder is no secret."""
    secret = {path.name for path in hidden if path.parent == covered} | {"config.json"}
    return [
        path
        for path in look.real(covered.iterdir())
        if path.name not in secret
        and not path.name.startswith("config.json.")
        and path != tmp
        and path.parent == covered
        and not any(place in Inside(path) for place in writable)
    ]


def _in_order(places: dict[Path, Access], secrets: tuple[Path, ...], *, restricted: bool) -> list[tuple[Path, Access]]:
    """By depth, without what lies in a hidden place or, where only a few places are there at all, outside of them."""
    hidden = Inside(*(place for place, access in places.items() if access is Access.HIDE))
    open_to = Inside(*(place for place, access in places.items() if access is Access.WRITE))
    shown = Inside(*(place for place, access in places.items() if access <= Access.READ), *map(Path, SYSTEM))
    return sorted(
        (
            (place, access)
            for place, access in places.items()
            if place in secrets
            or (
                not hidden.below(place)
                and not (access is Access.READ_TOO and place in open_to)
                and (access is not Access.HIDE or not restricted or place in shown)
                and (access is Access.COVER or _visible(place))
            )
        ),
        key=lambda entry: (os.fspath(entry[0]).count(os.sep), os.fspath(entry[0])),
    )
