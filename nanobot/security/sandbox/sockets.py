"""Which services of this machine listen on a socket that is a file. A read-only view does not keep a command from one.

proc_pid_net(5): a line a socket; those that take connections have the flag 00010000, and their path comes last.
"""

import os
from contextlib import suppress
from pathlib import Path

_UNIX = Path("/proc/net/unix")
_LISTENS = "00010000"


def listening_sockets() -> tuple[Path, ...]:
    """The sockets with a path that somebody listens on and that we can reach; none where the host does not say."""
    try:
        lines = _UNIX.read_bytes().decode(errors="surrogateescape").splitlines()[1:]
    except OSError:
        return ()
    found = {}
    for line in lines:
        fields = line.split(None, 7)
        if len(fields) == 8 and fields[3] == _LISTENS and fields[7].startswith("/"):
            path = Path(fields[7])
            with suppress(OSError):  # in a folder of somebody else, which is closed to our commands too
                if path.is_socket() and _gets_there(path):
                    found[path] = True
    return tuple(found)


def _gets_there(path: Path) -> bool:
    """Whether a command does. It is us without the powers of root, and so is bwrap: in a folder that is closed to us it
    could not put anything over the socket, and would give up.
    """
    return os.geteuid() != 0 or all(map(_lets_in, Path(os.path.realpath(path)).parents))


def _lets_in(folder: Path) -> bool:
    about = folder.stat()
    if about.st_uid == os.geteuid():
        return bool(about.st_mode & 0o100)
    if about.st_gid in {os.getegid(), *os.getgroups()}:
        return bool(about.st_mode & 0o010)
    return bool(about.st_mode & 0o001) or _ACL in os.listxattr(folder)


_ACL = "system.posix_acl_access"
"""Where a folder has a list of who may enter, its mode says too little."""
