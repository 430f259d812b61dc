"""Which services of this machine listen on a socket that is a file. A read-only view does not keep a command from one.

proc_pid_net(5): a line a socket; those that take connections have the flag 00010000, and their path comes last.
"""

import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path

_UNIX = Path("/proc/net/unix")
_LISTENS = "00010000"


def listening_sockets(table: Path = _UNIX) -> tuple[Path, ...]:
    """The sockets with a path that somebody listens on; none where the host does not say."""
    try:
        lines = table.read_bytes().decode(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    found = {}
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == _LISTENS and fields[7].startswith("/"):
            found[fields[7]] = True
    lets_through = cache(_lets_through)
    return tuple(Path(name) for name in found if _is_there(name, lets_through))


def _is_there(name: str, lets_through: Callable[[Path], bool]) -> bool:
    """Whether a command can get to it at all. As root we may look where it, which has no power of root, may not; and
    what it cannot reach nobody can lay a mount on for it either.
    """
    try:
        found = os.lstat(name)
    except OSError:
        return False
    return stat.S_ISSOCK(found.st_mode) and all(map(lets_through, Path(os.path.realpath(name)).parents))


def _lets_through(folder: Path) -> bool:
    """By user, group and the rest alone, as for anybody."""
    try:
        found = folder.stat()
    except OSError:
        return False
    if found.st_uid == os.geteuid():
        return bool(found.st_mode & stat.S_IXUSR)
    ours = {os.getegid(), *os.getgroups()}
    if found.st_gid in ours:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH) or _ACL in os.listxattr(folder)


_ACL = "system.posix_acl_access"
"""Where a folder has a list of who may enter, its mode says too little."""
