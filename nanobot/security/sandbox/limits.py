"""Resource limits of a command and all its processes. A sandboxed command is limited from outside before it starts
(prlimit), any other by a shell in front of it (ulimit); no Python code runs between fork and exec.
https://man7.org/linux/man-pages/man2/prlimit.2.html
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/ulimit.html

The caller watches the number of processes too, since the kernel does not limit root's.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_GB = 1024**3
_MEMORY_SHARE = 0.75
_OOM_SCORE = 500
"""When memory runs out, the kernel kills the command before nanobot."""
_WITH_LIMITS = 'exec 3>&2 2>/dev/null; {limits}; "$0" "$@" 2>&3 3>&-; exit $?'
"""A shell between nanobot and the command, so that the command's `$PPID` is not nanobot."""


def _max_memory() -> int:
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # not available on this host
        return 8 * _GB
    return int(physical * _MEMORY_SHARE)


@dataclass(frozen=True, slots=True)
class CommandLimits:
    """Limits of each process of a command, in bytes and counts. Memory is what it writes to, not what it reserves."""

    memory: int = field(default_factory=_max_memory)
    file_size: int = 16 * _GB
    open_files: int = 8192
    processes: int = 4096

    def bind(self, pid: int) -> None:
        """Limit this process and its future children; lower limits of the host stay. Linux only."""
        import resource  # not on every host

        bounds = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self.memory,
            resource.RLIMIT_FSIZE: self.file_size,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_NPROC: self.processes,
        }
        with suppress(ProcessLookupError):  # it has ended
            for limit, wanted in bounds.items():
                _, hard = resource.prlimit(pid, limit)
                bound = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
                resource.prlimit(pid, limit, (bound, bound))
        with suppress(OSError):
            Path("/proc", str(pid), "oom_score_adj").write_text(str(_OOM_SCORE), encoding="ascii")

    def with_limits(self, command: Sequence[str]) -> list[str]:
        """The command behind a POSIX shell that sets the limits. A limit that the host refuses stays as it is."""
        limits = (
            "ulimit -c 0",
            f"ulimit -d {self.memory // 1024}",
            f"ulimit -f {self.file_size // 512}",
            f"ulimit -n {self.open_files}",
            f"ulimit -u {self.processes} || ulimit -p {self.processes}",  # bash and dash
            f"echo {_OOM_SCORE} >/proc/self/oom_score_adj",
        )
        return ["/bin/sh", "-c", _WITH_LIMITS.format(limits="; ".join(limits)), *command]
