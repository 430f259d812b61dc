"""Which services of this machine listen on a socket file: a read-only view does not stop a command from calling one.

proc_pid_net(5): one line for each socket; listening ones have the flag 00010000, and the path comes last.
"""

import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

_UNIX = Path("/proc/net/unix")
_LISTENING = "00010000"


def listening_sockets(table: Path = _UNIX) -> tuple[Path, ...]:
    """Socket files with a listener; none where the host does not tell."""
    try:
        lines = table.read_bytes().decode(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    names = {}
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == _LISTENING and fields[7].startswith("/"):
            names[fields[7]] = True
    is_enterable = cache(_is_enterable)
    return tuple(Path(name) for name in names if _is_reachable(name, is_enterable))


def _is_reachable(name: str, is_enterable: Callable[[Path], bool]) -> bool:
    """Whether a command can reach the socket at all. As root we can, where the command, without capabilities, cannot;
    such a path cannot be covered by a mount either.
    """
    try:
        status = os.lstat(name)
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and all(map(is_enterable, Path(os.path.realpath(name)).parents))


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


_ACL = "system.posix_acl_access"
"""With an ACL the mode of a folder does not decide."""
