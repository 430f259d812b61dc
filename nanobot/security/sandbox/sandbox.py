"""The sandbox as its users see it: what this machine supports, how to start a command in it with which limits, and a
report on it.

A shell in front of the command, and of its sandbox, sets its limits; no Python code runs between fork and exec. The
number of processes is watched too (`agent/tools/execution`), since the kernel does not limit root's.
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/ulimit.html
"""

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Literal

from nanobot.errors import NanobotError
from nanobot.security.files.paths import PathPolicy
from nanobot.security.sandbox.bwrap import Bwrap, probe_bwrap
from nanobot.security.sandbox.landlock import can_scope, confine_thread, harden_thread
from nanobot.security.sandbox.view import View, ViewGrants, listening_sockets, view_of
from nanobot.utils.files import make_private_folder, remove_old_files
from nanobot.utils.processes import Argv

logger = logging.getLogger(__name__)

SandboxMode = Literal["auto", "bwrap", "none"]
_TMP_KEPT_S = 7 * 86_400.0
_OWN_TMP = {"TMPDIR": "/tmp", "XDG_CACHE_HOME": "/tmp/.cache", "npm_config_cache": "/tmp/.cache/npm"}  # noqa: S108
"""Caches go to /tmp, which belongs to the command, since it cannot write the home folder."""
_LANDLOCK_HOLDS = (
    "Commands write only in the workspace and tools.allowedPaths.",
    "The content of config, state and well-known places of keys cannot be read.",
    "Processes outside cannot be ended, and their memory and environment cannot be read.",
    "Services of this machine that listen on a socket file cannot be called.",
)
_LANDLOCK_LACKS = (
    "Permissions and times of your files outside the workspace can be changed (chmod, touch).",
    "Sessions, jobs and history inside the workspace are protected by the command guard only, not by the sandbox.",
    "Other processes and the names of hidden files can be seen.",
    "Programs that talk to each other through socket files (tmux) do not work.",
)
_LOOPBACK = "Services on loopback can be reached: tools.exec.network is on."


class SandboxUnavailableError(NanobotError):
    """Commands must run in a sandbox, and none works here. The text says what to install."""


@dataclass(frozen=True, slots=True)
class Report:
    """What the sandbox of this machine does and does not protect, in sentences for the owner."""

    is_available: bool
    summary: str
    holds: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    is_partial: bool = False
    """Whether only Landlock protects: commands can still do some harm outside."""


@dataclass(frozen=True, slots=True)
class SandboxedCommand:
    """How to start a command, as arguments of `child_process`, and additions to its environment."""

    argv: Argv
    confine: Callable[[], None] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None
    """Call it once the command has ended."""


def run_unsandboxed(command: Sequence[str] | str) -> SandboxedCommand:
    """A command without a sandbox, still with resource limits where the host supports them."""
    return SandboxedCommand(command if isinstance(command, str) else with_limits(command))


class Sandbox:
    """The sandbox of one bot. Methods block and are thread-safe; support is probed once.

    `tmp` is the folder that commands see as /tmp (None: one in memory for each command).
    """

    def __init__(
        self,
        paths: PathPolicy,
        mode: SandboxMode = "auto",
        *,
        network: bool = True,
        tmp: Path | None = None,
    ) -> None:
        self._paths = paths
        self._mode = mode
        self._network = network
        self.tmp = tmp
        self._probed: Bwrap | str | None = None
        self._lock = threading.Lock()

    @property
    def is_available(self) -> bool:
        """Whether commands run in a sandbox here."""
        return self.wanted and (isinstance(self.support, Bwrap) or self.uses_landlock)

    @property
    def uses_landlock(self) -> bool:
        """Whether only Landlock protects."""
        return self._is_landlock_only(self.support)

    @property
    def wanted(self) -> bool:
        """Whether the owner wants a sandbox."""
        return self._mode != "none"

    @property
    def required(self) -> bool:
        """Whether no command may run without a sandbox."""
        return self._mode == "bwrap"

    @property
    def support(self) -> Bwrap | str:
        """How bwrap works here, or why it does not."""
        with self._lock:
            if self._probed is None:
                self._probed = probe_bwrap(self.view)
                if isinstance(self._probed, str) and self.wanted:
                    logger.warning("%s", self._probed)
            return self._probed

    def forget(self) -> None:
        """Drop the probe's result after a failure: probe again before the next command."""
        with self._lock:
            self._probed = None

    def view(
        self,
        folder: Path | None = None,
        grants: ViewGrants | None = None,
        paths: PathPolicy | None = None,
        *,
        make: bool = True,
    ) -> View:
        """What a command that starts in this folder may see and write now. `paths` replaces the usual policy; `make` as
        in `view_of`.
        """
        tmp = self.tmp if make else None
        if tmp is not None:
            try:
                make_private_folder(tmp)
                with suppress(OSError):
                    remove_old_files(tmp, older_than_s=_TMP_KEPT_S)
            except OSError:
                tmp = None  # one in memory
        sockets = listening_sockets()
        return view_of(
            paths or self._paths, folder, network=self._network, tmp=tmp, grants=grants, sockets=sockets, make=make
        )

    def wrap(
        self, command: Sequence[str], folder: Path, grants: ViewGrants | None = None, paths: PathPolicy | None = None
    ) -> SandboxedCommand:
        """How to start this command in the sandbox. Raises SandboxUnavailableError."""
        bwrap = self.support
        view, real = self.view(folder, grants, paths), Path(os.path.realpath(folder))
        close = partial(_restore_links, _links_in(self._paths.workspace, self._paths.never_written))
        if isinstance(bwrap, Bwrap):
            argv = partial(bwrap.argv, view, real, command, "--info-fd")
            return SandboxedCommand(lambda info_fd: with_limits(argv(str(info_fd))), harden_thread, _OWN_TMP, close)
        if not self.is_available:
            raise SandboxUnavailableError(self.advice)
        tmp = {"TMPDIR": str(view.tmp), "XDG_CACHE_HOME": f"{view.tmp}/.cache"} if view.tmp is not None else {}
        return SandboxedCommand(with_limits(command), partial(confine_thread, view), tmp, close)

    @property
    def advice(self) -> str:
        """What to do if there is no sandbox."""
        others = ['"none" runs them with all the rights of nanobot itself']
        if self.required:
            others.insert(0, f'"auto" {"uses Landlock alone" if can_scope() else "asks the owner about each"}')
        return (
            f"Commands cannot be sandboxed on this machine: {self.support} "
            f"Or the owner sets tools.exec.sandbox in the config: {', '.join(others)}."
        )

    @property
    def workspace_problem(self) -> str:
        """Why sandboxed commands cannot work in the workspace; empty if they can."""
        owner = _foreign_owner(self._paths.workspace)
        if owner is None:
            return ""
        return (
            f"The workspace belongs to user {owner}, and commands do not run as root. "
            f"Start nanobot as that user, or chown -R root {self._paths.workspace}"
        )

    def report(self) -> Report:
        """What the sandbox protects, for `status` and `doctor`. Makes no file and no folder."""
        if not self.wanted:
            return Report(False, "off: tools.exec.sandbox is none, commands may do everything that nanobot may do")
        bwrap = self._probed or probe_bwrap(partial(self.view, make=False))
        if self._is_landlock_only(bwrap):
            lacks = (*_LANDLOCK_LACKS, *((_LOOPBACK,) if self._network else ()))
            return Report(True, f"Landlock alone: {bwrap}", _LANDLOCK_HOLDS, lacks, is_partial=True)
        if isinstance(bwrap, str):
            consequence = "commands do not run" if self.required else "the owner is asked about each command"
            return Report(False, f"none: {bwrap} Until then {consequence}.")
        holds = [
            "Commands write only in the workspace, tools.allowedPaths and a /tmp of their own.",
            "They read nothing else." if self._paths.restrict else "They read the rest of the disk, but no keys.",
            "Config, state and well-known places of keys cannot be seen.",
            "Processes outside cannot be touched.",
        ]
        if not self._network:
            holds.append("There is no network, and no service of this machine.")
        owner = _foreign_owner(self._paths.workspace)
        gaps = {
            "The names of other processes can be seen: this container allows no /proc of its own.": not bwrap.own_proc,
            "Commands may make user namespaces: this bwrap cannot forbid it.": not bwrap.no_more_userns,
            f"The workspace belongs to user {owner}: commands, which are not root, cannot write in it.": owner
            is not None,
            "Services with an abstract socket (such as X11) can be called: this kernel cannot forbid it.": self._network
            and not can_scope(),
            _LOOPBACK: self._network,
        }
        return Report(
            True, f"bwrap ({bwrap.program})", tuple(holds), tuple(gap for gap, is_open in gaps.items() if is_open)
        )

    def _is_landlock_only(self, support: Bwrap | str) -> bool:
        return self._mode == "auto" and isinstance(support, str) and can_scope()


def _foreign_owner(workspace: Path) -> int | None:
    """The owner of the workspace, if we are root and it is another user's: a sandboxed root cannot write in it."""
    try:
        owner = workspace.stat().st_uid
    except OSError:
        return None
    return owner if hasattr(os, "geteuid") and os.geteuid() == 0 and owner != 0 else None


def _links_in(folder: Path, paths: Iterable[Path]) -> dict[Path, Path]:
    """The owner's symbolic links in a folder on the way to these paths, the outermost first, with their targets."""
    links: dict[Path, Path] = {}
    for path in paths:
        if path.is_relative_to(folder):
            link = folder
            for part in path.relative_to(folder).parts:
                link /= part
                with suppress(OSError):  # no link
                    links[link] = link.readlink()
    return links


def _restore_links(links: Mapping[Path, Path]) -> None:
    """Restore links that a command moved or replaced: a mount protects the target of a link, not the link itself. What
    stands in their place is renamed. Never raises.
    """
    for link, target in links.items():
        with suppress(OSError):
            if link.is_symlink() and link.readlink() == target:
                continue
            moved = ""
            if os.path.lexists(link):
                numbered = (link.with_name(f"{link.name}.replaced-{number}") for number in count(1))
                aside = link.rename(next(name for name in numbered if not os.path.lexists(name)))
                moved = f" What had replaced it is now {aside}."
            link.symlink_to(target)
            logger.warning("A command replaced the link %s to %s. The link is restored.%s", link, target, moved)


# -- limits ---------------------------------------------------------------------------------------------------------

_GB = 1024**3
_MEMORY_SHARE = 0.75
_FILE_SIZE = 16 * _GB
_OPEN_FILES, _PROCESSES = 8192, 4096
_OOM_SCORE = 500
"""When memory runs out, the kernel kills the command before nanobot."""
_WITH_LIMITS = '{{ {limits}; }} 2>/dev/null; "$0" "$@"; exit $?'
"""A shell between nanobot and the command, so that the command's `$PPID` is not nanobot."""


def max_memory() -> int:
    """Bytes that a process of a command may write to; what it only reserves does not count."""
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)
    except (AttributeError, OSError, ValueError):  # not available on this host
        return 8 * _GB


def with_limits(command: Sequence[str]) -> list[str]:
    """The command behind a POSIX shell that sets the limits. A limit that the host refuses stays as it is."""
    limits = (
        "ulimit -c 0",
        f"ulimit -d {max_memory() // 1024}",
        f"ulimit -f {_FILE_SIZE // 512}",
        f"ulimit -n {_OPEN_FILES}",
        f"ulimit -u {_PROCESSES} || ulimit -p {_PROCESSES}",  # bash and dash
        f"echo {_OOM_SCORE} >/proc/self/oom_score_adj",
    )
    return ["/bin/sh", "-c", _WITH_LIMITS.format(limits="; ".join(limits)), *command]
