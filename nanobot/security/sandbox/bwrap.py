"""bubblewrap: a view as its arguments, and a trial of what works on this machine, since containers and kernels differ.
https://manpages.debian.org/bookworm/bubblewrap/bwrap.1.en.html
"""

import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from nanobot.security.sandbox.landlock import harden_thread
from nanobot.security.sandbox.view import SYSTEM, PathAccess, View
from nanobot.utils.processes import in_own_thread
from nanobot.utils.storage_error import os_reason

_INSIDE_UID = "1000"
"""What root becomes inside: an ordinary user. Files it writes belong to root outside."""
_SHOWN_OF_RUN = ("/run/current-system", "/run/opengl-driver", "/run/booted-system")
"""Programs of NixOS. The rest of /run are sockets of services, which start processes outside."""
_TIMEOUT_S = 10.0
_INSTALL = "Install bubblewrap (Debian, Ubuntu: apt install bubblewrap; Fedora: dnf install bubblewrap)"


@dataclass(frozen=True, slots=True)
class Bwrap:
    """The program, and which of its restrictions work on this machine."""

    program: str
    own_proc: bool
    """A /proc of its own; otherwise the host's read-only: other processes can be seen, not touched."""
    no_more_userns: bool
    """No user namespaces inside, which would open more of the kernel to a command."""

    def argv(self, view: View, folder: Path, command: Sequence[str], *options: str) -> list[str]:
        """Arguments to run `command` in `folder` with this view and these additional options. They work in order."""
        is_root = os.geteuid() == 0
        argv = [self.program, "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        argv += ("--unshare-cgroup-try", "--new-session", "--cap-drop", "ALL")
        if self.no_more_userns:
            argv.append("--disable-userns")
        if is_root:
            argv += ("--uid", _INSIDE_UID, "--gid", _INSIDE_UID)
        if not view.network:
            argv.append("--unshare-net")
        if view.whole:
            argv += ("--ro-bind", "/", "/")
        else:
            for name in SYSTEM:
                if os.path.islink(name):  # noqa: PTH114 - as they are written
                    argv += ("--symlink", os.readlink(name), name)  # noqa: PTH115
                elif os.path.isdir(name):  # noqa: PTH112
                    argv += ("--ro-bind", name, name)
        if not self.own_proc:
            argv += ("--ro-bind", "/proc", "/proc")
        else:
            argv += ("--proc", "/proc")
            if is_root:
                # Access to it depends on the user id, not on capabilities: root without any could still write kernel
                # settings (core_pattern, for example, starts a program outside). bwrap 0.8 leaves them writable.
                argv += ("--remount-ro", "/proc")
        argv += ("--dev", "/dev")
        for device in map(str, view.devices):
            argv += ("--dev-bind", device, device)
        argv += ("--tmpfs", "/run")
        if not view.whole:
            argv += ("--perms", "1777", "--tmpfs", "/var/tmp", "--symlink", "/run", "/var/run")  # noqa: S108 - inside
        resolver = os.path.realpath("/etc/resolv.conf")
        for name in (*_SHOWN_OF_RUN, *([resolver] if not view.whole or resolver.startswith("/run/") else [])):
            if os.path.exists(name) and not name.startswith("/etc/"):  # noqa: PTH110
                argv += ("--ro-bind", name, name)
        argv += ("--perms", "1777", "--tmpfs", "/tmp") if view.tmp is None else ("--bind", str(view.tmp), "/tmp")  # noqa: S108
        for place, access in view.places:
            name = str(place)
            if access is PathAccess.WRITE:
                argv += ("--bind", name, name)
            elif access in (PathAccess.READ, PathAccess.READ_TOO):
                argv += ("--ro-bind", name, name)
            elif access is PathAccess.COVER:
                argv += ("--perms", "0755", "--tmpfs", name)
            elif place.is_dir():
                argv += ("--perms", "0000", "--tmpfs", name)
            else:  # a device that may not be used: opening it fails
                argv += ("--ro-bind", os.devnull, name)
        for service in map(str, view.services):
            argv += ("--bind", service, service)
        # Our own mounts become read-only: a file written there would be lost silently.
        covered = (str(place) for place, access in view.places if access is PathAccess.COVER)
        for name in (*covered, "/run", *(() if view.whole else ("/",))):
            argv += ("--remount-ro", name)
        return [*argv, "--chdir", str(folder), *options, "--", *command]


def probe_bwrap(make_view: Callable[[], View]) -> Bwrap | str:
    """Return the strongest way to use bwrap that works with this view, or why there is none.

    Blocking; never raises.
    """
    program = shutil.which("bwrap")
    if program is None:
        advice = "Commands are sandboxed on Linux only" if platform.system() != "Linux" else _INSTALL
        return f"bwrap is not installed. {advice}."
    view, problem = make_view(), ""
    for choice in product((True, False), repeat=2):
        bwrap = Bwrap(program, *choice)
        failure = _try(bwrap, view)
        if failure is None:
            return bwrap
        problem = problem or failure
    return f"bwrap is installed, but does not work here: {problem}"


def _try(bwrap: Bwrap, view: View) -> str | None:
    """Why `true` cannot run like this; None if it can."""

    def run() -> subprocess.CompletedProcess[bytes]:
        harden_thread()
        return subprocess.run(
            bwrap.argv(view, Path("/"), [shutil.which("true") or "/bin/true"]),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_TIMEOUT_S,
            env={"PATH": os.environ.get("PATH", os.defpath)},
            start_new_session=True,
        )

    try:
        process = in_own_thread(run).result()
    except subprocess.TimeoutExpired:
        return f"it did not end within {_TIMEOUT_S:g} s"
    except OSError as error:
        return os_reason(error)
    if process.returncode == 0:
        return None
    return process.stderr.decode(errors="replace").strip()[-300:] or "it failed"
