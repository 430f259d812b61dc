"""All of the wall together, for whoever runs commands: what stands here, in words, and how a command gets behind it."""

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

from nanobot.errors import NanobotError
from nanobot.security.paths import PathPolicy
from nanobot.security.sandbox.landlock import Fence, can_scope, harden_thread
from nanobot.security.sandbox.limits import Limits
from nanobot.security.sandbox.links import KeptLinks
from nanobot.security.sandbox.probe import Found, probe
from nanobot.security.sandbox.sockets import listening_sockets
from nanobot.security.sandbox.view import Grants, View, view_of
from nanobot.utils.files import make_private_folder
from nanobot.utils.processes import Argv

logger = logging.getLogger(__name__)

Wish = Literal["auto", "bwrap", "none"]
_TMP_KEPT_DAYS = 7
_OWN_TMP = {"TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache", "npm_config_cache": "/tmp/.cache/npm"}  # noqa: S108
"""Where the home cannot be written, what programs only keep for speed goes elsewhere. The /tmp is the command's own."""
_FENCE_HOLDS = (
    "Commands write only in the workspace and tools.allowedPaths.",
    "The content of config, state and well-known places of keys cannot be read.",
    "Processes outside cannot be ended, and their memory and environment cannot be read.",
    "Services of this machine that listen on a file cannot be called.",
)
_FENCE_LACKS = (
    "Sessions, jobs and history inside the workspace are kept from commands by the guard only, not by a wall.",
    "Other processes can be seen, and the names of hidden files.",
    "Programs that speak to each other by sockets that are files (tmux) do not work.",
)
_LOOPBACK = "Services on loopback can be reached: tools.exec.network is on."


class NoWallError(NanobotError):
    """Commands must run behind a wall, and there is none here. The text says what to install."""


@dataclass(frozen=True, slots=True)
class Report:
    """What holds on this machine, in words for its owner."""

    stands: bool
    summary: str
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Behind:
    """How to start a command, as `child_process` takes it, and what its environment is told."""

    argv: Argv
    confine: Callable[[], None] | None = None
    limit: Callable[[int], None] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    """To be called once it has ended."""


def unwalled(command: Sequence[str] | str) -> Behind:
    """How to start a command without a wall: within its limits all the same, where the host knows any."""
    return Behind(command if isinstance(command, str) else Limits().in_front_of(command))


class Walls:
    """The wall of one bot. Blocking, safe to use from several threads; what it finds out, it finds out once.

    `cache` is the file that remembers what works here, `tmp` the folder that commands know as /tmp (None: one in memory
    for each command).
    """

    def __init__(
        self,
        paths: PathPolicy,
        wish: Wish = "auto",
        *,
        network: bool = True,
        cache: Path | None = None,
        tmp: Path | None = None,
    ) -> None:
        self._paths = paths
        self._wish = wish
        self._network = network
        self._cache = cache
        self._tmp = tmp
        self._found: Found | None = None
        self._lock = threading.Lock()

    @property
    def stand(self) -> bool:
        """Whether commands run behind a wall here."""
        return self.wanted and (self.found.bwrap is not None or self.fenced)

    @property
    def fenced(self) -> bool:
        """Whether Landlock is all there is of it."""
        return self._is_fence(self.found)

    @property
    def wanted(self) -> bool:
        """Whether the owner wants one."""
        return self._wish != "none"

    @property
    def required(self) -> bool:
        """Whether nothing may run without one."""
        return self._wish == "bwrap"

    @property
    def found(self) -> Found:
        """What the probe said."""
        with self._lock:
            if self._found is None:
                self._found = probe(self.view, self._cache)
                if self._found.bwrap is None and self.wanted:
                    logger.warning("%s", self._found.problem)
            return self._found

    def forget(self) -> None:
        """It does not work as it did: find out anew before the next command."""
        with self._lock:
            self._found = None
            if self._cache is not None:
                self._cache.unlink(missing_ok=True)

    @property
    def tmp(self) -> Path | None:
        """What commands know as /tmp, where it outlives them."""
        return self._tmp

    def view(
        self,
        folder: Path | None = None,
        grants: Grants | None = None,
        paths: PathPolicy | None = None,
        *,
        make: bool = True,
    ) -> View:
        """What a command that begins in this folder may see and write just now, by stricter policies than usual where
        `paths` are given; `make` as in `view_of`.
        """
        tmp = _ready(self._tmp) if make and self._tmp is not None else None
        sockets = listening_sockets()
        return view_of(
            paths or self._paths, folder, network=self._network, tmp=tmp, grants=grants, sockets=sockets, make=make
        )

    def behind(
        self, command: Sequence[str], folder: Path, grants: Grants | None = None, paths: PathPolicy | None = None
    ) -> Behind:
        """How to start this command behind the wall. Raises NoWallError where none stands."""
        found = self.found
        view, real = self.view(folder, grants, paths), Path(os.path.realpath(folder))
        links = KeptLinks(self._paths.workspace, self._paths.never_written)
        if (bwrap := found.bwrap) is not None:
            argv = partial(bwrap.argv, view, real, command)
            return Behind(
                lambda tells, waits: argv("--info-fd", str(tells), "--block-fd", str(waits)),
                harden_thread if found.hardened else None,
                Limits().bind,
                _OWN_TMP,
                links.put_back,
            )
        if not self.stand:
            raise NoWallError(self.advice)
        fence = Fence(view)
        tmp = {"TMPDIR": str(view.tmp), "XDG_CACHE_HOME": f"{view.tmp}/.cache"} if view.tmp is not None else {}

        def close() -> None:
            fence.close()
            links.put_back()

        return Behind(Limits().in_front_of(command), fence.enter, env=tmp, close=close)

    @property
    def advice(self) -> str:
        """What to do where none stands."""
        others = ['"none" runs them with all the rights of nanobot itself']
        if self.required:
            others.insert(0, f'"auto" {"has Landlock hold them" if can_scope() else "asks the owner about each"}')
        return (
            f"Commands cannot be walled off on this machine: {self.found.problem} "
            f"Or the owner sets tools.exec.sandbox in the config: {', '.join(others)}."
        )

    @property
    def why_closed(self) -> str:
        """Why commands may not even begin in the workspace, where that is so."""
        owner = _foreign_owner(self._paths.workspace)
        if owner is None:
            return ""
        return (
            f"The workspace belongs to user {owner}, and commands have no power of root. "
            f"Start nanobot as that user, or chown -R root {self._paths.workspace}"
        )

    def report(self) -> Report:
        """What holds here, for `status` and `doctor`: it makes no file and no folder."""
        if not self.wanted:
            return Report(False, "off: tools.exec.sandbox is none, commands may do all that nanobot itself may do")
        found = self._found or probe(partial(self.view, make=False), self._cache, keep=False)
        bwrap = found.bwrap
        if self._is_fence(found):
            loopback = (_LOOPBACK,) if self._network else ()
            return Report(True, f"Landlock alone: {found.problem}", _FENCE_HOLDS, (*_FENCE_LACKS, *loopback))
        if bwrap is None:
            then = "commands do not run" if self.required else "the owner is asked about each command"
            return Report(False, f"none: {found.problem} Until then {then}.")
        holds = [
            "Commands write only in the workspace, tools.allowedPaths and a /tmp of their own.",
            "They read nothing else." if self._paths.restrict else "They read the rest of the disk, but no keys.",
            "Config, state and well-known places of keys cannot be seen.",
            "Processes outside cannot be touched.",
        ]
        if not self._network:
            holds.append("There is no network, and no service of this machine.")
        lacks = []
        if not bwrap.own_proc:
            lacks.append("The names of other processes can be seen: this container allows no /proc of its own.")
        if not bwrap.no_more_userns:
            lacks.append("Commands may make user namespaces: this bwrap cannot forbid it.")
        if not found.hardened:
            lacks.append(
                "Keyrings can be asked, and programs made that run as you: threads may not give up rights here."
            )
        if (owner := _foreign_owner(self._paths.workspace)) is not None:
            lacks.append(f"The workspace belongs to user {owner}: commands, which are no root, cannot write in it.")
        if self._network and not (found.hardened and can_scope()):
            lacks.append(
                "Services with a socket that is no file (as X11's) can be called: this kernel cannot forbid it."
            )
        if self._network:
            lacks.append(_LOOPBACK)
        return Report(True, f"bwrap ({bwrap.program})", tuple(holds), tuple(lacks))

    def _is_fence(self, found: Found) -> bool:
        return self._wish == "auto" and found.bwrap is None and can_scope()


def _foreign_owner(workspace: Path) -> int | None:
    """Whose it is, where we are root and it is somebody else's: inside, root has no power over it."""
    try:
        owner = workspace.stat().st_uid
    except OSError:
        return None
    return owner if hasattr(os, "geteuid") and os.geteuid() == 0 and owner != 0 else None


def _ready(tmp: Path) -> Path | None:
    """The folder, made and swept; None where it cannot be had."""
    try:
        make_private_folder(tmp)
    except OSError:
        return None
    long_ago = time.time() - _TMP_KEPT_DAYS * 86_400
    with suppress(OSError), os.scandir(tmp) as entries:
        for entry in entries:
            if entry.stat(follow_symlinks=False).st_mtime < long_ago and not entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    os.unlink(entry.path)  # noqa: PTH108
    return tmp
