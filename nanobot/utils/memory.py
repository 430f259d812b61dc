"""How much memory is in use, as Linux tells it: proc_meminfo(5), proc_pid_smaps(5). Elsewhere nobody is asked."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

_PROC = Path("/proc")
_KB = 1024


def memory_in_use() -> int:
    """Bytes of this machine that are not to be had; 0 where that is not told."""
    try:
        told = _PROC.joinpath("meminfo").read_bytes()
    except OSError:
        return 0
    found = dict(re.findall(rb"^(MemTotal|MemAvailable): +(\d+) kB", told, re.MULTILINE))
    return (int(found.get(b"MemTotal", 0)) - int(found.get(b"MemAvailable", 0))) * _KB if len(found) == 2 else 0


def memory_of(pids: Iterable[int]) -> int:
    """Bytes that these processes hold together, without files they only map (the system takes those back when it must).
    What several of them share counts once. Blocking.
    """
    return sum(map(_share_of, pids))


def _share_of(pid: int) -> int:
    with suppress(OSError):  # it is gone already, or belongs to somebody else
        told = _PROC.joinpath(str(pid), "smaps_rollup").read_bytes()
        return sum(map(int, re.findall(rb"^(?:Pss_Anon|Pss_Shmem|SwapPss): +(\d+) kB", told, re.MULTILINE))) * _KB
    return 0
