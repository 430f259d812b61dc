"""Memory usage from Linux's proc_meminfo(5) and proc_pid_smaps(5). Not available elsewhere."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_KB = 1024


def memory_in_use() -> int:
    """Bytes in use on this machine; 0 if unknown."""
    try:
        text = _PROC.joinpath("meminfo").read_bytes()
    except OSError:
        return 0
    values = dict(re.findall(rb"^(MemTotal|MemAvailable): +(\d+) kB", text, re.MULTILINE))
    return (int(values.get(b"MemTotal", 0)) - int(values.get(b"MemAvailable", 0))) * _KB if len(values) == 2 else 0


def memory_of(pids: Iterable[int]) -> int:
    """Bytes used by these processes together, without mapped files, which the system can reclaim. Shared memory counts
    once. Blocking.
    """
    return sum(map(_share_of, pids))


def _share_of(pid: int) -> int:
    with suppress(OSError):  # it has ended, or belongs to another user
        text = _PROC.joinpath(str(pid), "smaps_rollup").read_bytes()
        return sum(map(int, re.findall(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB", text, re.MULTILINE))) * _KB
    return 0
