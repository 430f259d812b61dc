"""Which services of this machine listen on a socket that is a file. A read-only view does not keep a command from one.

proc_pid_net(5): a line a socket; those that take connections have the flag 00010000, and their path comes last.
"""

import os
import stat
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
    return tuple(Path(name) for name in found if _is_there(name))


def _is_there(name: str) -> bool:
    """Whether it can be called. What lies in a closed folder of another user cannot, nor can a mount be put over it:
    we may not look there, and root, who may, has no such power inside.
    """
    try:
        return stat.S_ISSOCK(os.lstat(name).st_mode) and all(map(_may_be_entered, Path(name).parents))
    except OSError:
        return False


def _may_be_entered(folder: Path) -> bool:
    about = folder.stat()
    if about.st_uid == os.geteuid():
        return bool(about.st_mode & stat.S_IXUSR)
    return bool(about.st_mode & (stat.S_IXOTH | stat.S_IXGRP)) or os.geteuid() != 0
