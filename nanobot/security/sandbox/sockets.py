"""Which services of this machine listen on a socket that is a file. A read-only view does not keep a command from one.

proc_pid_net(5): a line a socket; those that take connections have the flag 00010000, and their path comes last.
"""

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
                if path.is_socket():
                    found[path] = True
    return tuple(found)
