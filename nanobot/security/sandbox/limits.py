"""How much of the machine one command may take, for every process of it. No code of ours runs between fork and exec: a
command in a space of its own is bound from outside before it begins, any other by a shell in front of it.
https://man7.org/linux/man-pages/man2/prlimit.2.html
https://pubs.opengroup.org/onlinepubs/9799919799/utilities/ulimit.html

How many processes there may be is also watched by whoever runs it, since the kernel lets root have more.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_GB = 1024**3
_SHARE = 0.75
_GOES_FIRST = 500
"""When memory runs out, the command ends before the bot does."""
_BETWEEN = 'exec 3>&2 2>/dev/null; {limits}; "$0" "$@" 2>&3 3>&-; exit $?'
"""A shell between us and the command, which keeps quiet: its parent, `$PPID`, is not the bot."""


def _most_memory() -> int:
    try:
        physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):  # a host that does not say
        return 8 * _GB
    return int(physical * _SHARE)


@dataclass(frozen=True, slots=True)
class Limits:
    """What no process of a command exceeds. Memory is what it really writes to, not what it only reserves."""

    memory: int = field(default_factory=_most_memory)
    file_size: int = 16 * _GB
    open_files: int = 8192
    processes: int = 4096

    def bind(self, pid: int) -> None:
        """Bind this process, and who comes after it. What the host allows less of stays as it is. Linux only."""
        import resource  # not on every host

        bounds = {
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_DATA: self.memory,
            resource.RLIMIT_FSIZE: self.file_size,
            resource.RLIMIT_NOFILE: self.open_files,
            resource.RLIMIT_NPROC: self.processes,
        }
        with suppress(ProcessLookupError):  # gone already: then it is bound
            for what, most in bounds.items():
                _, hard = resource.prlimit(pid, what)
                bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
                resource.prlimit(pid, what, (bound, bound))
        with suppress(OSError):
            Path("/proc", str(pid), "oom_score_adj").write_text(str(_GOES_FIRST), encoding="ascii")

    def in_front_of(self, command: Sequence[str]) -> list[str]:
        """The same by a POSIX shell. A limit that the host refuses to set is left as it was."""
        limits = (
            "ulimit -c 0",
            f"ulimit -d {self.memory // 1024}",
            f"ulimit -f {self.file_size // 512}",
            f"ulimit -n {self.open_files}",
            f"ulimit -u {self.processes} || ulimit -p {self.processes}",  # bash and dash
            f"echo {_GOES_FIRST} >/proc/self/oom_score_adj",
        )
        return ["/bin/sh", "-c", _BETWEEN.format(limits="; ".join(limits)), *command]
