"""How much of the machine one command may take: said by the shell in front of it, so that no code of ours runs between
fork and exec. https://pubs.opengroup.org/onlinepubs/9799919799/utilities/ulimit.html

Each holds for every process of the command. How many there may be is also watched by whoever runs it, since the kernel
lets root have more.
"""

import os
from dataclasses import dataclass, field

_GB = 1024**3
_SHARE = 0.75
GOES_FIRST = "echo 500 >/proc/self/oom_score_adj"
"""When memory runs out, the command ends before the bot does."""


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

    def as_shell(self) -> str:
        """The same in words of a POSIX shell. One that the host refuses to set is left as it was."""
        set_all = (
            "ulimit -c 0",
            f"ulimit -d {self.memory // 1024}",
            f"ulimit -f {self.file_size // 512}",
            f"ulimit -n {self.open_files}",
            f"ulimit -u {self.processes} || ulimit -p {self.processes}",  # bash and dash
            GOES_FIRST,
        )
        return "; ".join(set_all) + "; "
