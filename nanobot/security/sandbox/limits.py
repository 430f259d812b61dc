"""Resource limits of a command and all its processes. A sandboxed command is limited from outside before it starts
(prlimit), any other by a shell in front of it (ulimit); no Python code runs between fork and exec.
https://man7.org/linux/man-pages/man2/prlimit.2.html
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/ulimit.html

The caller watches the number of processes too, since the kernel does not limit root's.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_GB = 1024**3
_MEMORY_SHARE = 0.75
_FILE_SIZE = 16 * _GB
_OPEN_FILES, _PROCESSES = 8192, 4096
_OOM_SCORE = 500
"""When memory runs out, the kernel kills the command before nanobot."""
_WITH_LIMITS = 'exec 3>&2 2>/dev/null; {limits}; "$0" "$@" 2>&3 3>&-; exit $?'
"""A shell between nanobot and the command, so that the command's `$PPID` is not nanobot."""


def max_memory() -> int:
    """Bytes that a process of a command may write to; what it only reserves does not count."""
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _MEMORY_SHARE)
    except (AttributeError, OSError, ValueError):  # not available on this host
        return 8 * _GB


def bind_limits(pid: int) -> None:
    """Limit this process and its future children; lower limits of the host stay. Linux only."""
    import resource  # not on every host

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: max_memory(),
        resource.RLIMIT_FSIZE: _FILE_SIZE,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_NPROC: _PROCESSES,
    }
    with suppress(ProcessLookupError):  # it has ended
        for limit, wanted in bounds.items():
            _, hard = resource.prlimit(pid, limit)
            bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
            resource.prlimit(pid, limit, (bound, bound))
    with suppress(OSError):
        Path("/proc", str(pid), "oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")


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
