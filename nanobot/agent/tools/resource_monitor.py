"""Stops a running command that takes more of the machine than it may. The kernel's own limits hold for single
processes, and do not count those of root.
"""

import asyncio
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path

from nanobot.utils.process_tree import count_processes, memory_in_use, memory_of
from nanobot.utils.processes import Child

_INTERVAL_S = 0.2
_THOROUGH_EVERY = 5
"""In every so many checks the command's own processes are counted, even if the machine has few new ones."""


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """What all processes of a command together may take."""

    processes: int
    memory: int
    disk_left: int
    """Bytes that must stay free on the disk of the workspace, if they were free when the command began."""


class ResourceMonitor:
    """Monitors one command. Create it before the command starts: it counts processes that are new since then."""

    def __init__(self, limits: ResourceLimits, workspace: Path) -> None:
        self.exceeded = ""
        """The limit that was exceeded, in words, once the command was stopped for it."""
        self._limits = limits
        self._workspace = workspace
        self._before = count_processes()
        self._had_room = self._has_room()

    async def watch(self, child: Child) -> None:
        """Check until the command is stopped or this is cancelled."""
        if not self._before:
            return
        for check in itertools.count(1):
            await asyncio.sleep(_INTERVAL_S)
            self.exceeded = await self._excess(child, thorough=check % _THOROUGH_EVERY == 0)
            if self.exceeded:
                await child.kill()
                return

    async def _excess(self, child: Child, *, thorough: bool) -> str:
        """Describe the exceeded limit; empty if there is none. A cheap check comes first."""
        if self._had_room and not self._has_room():
            return f"it left less than {self._limits.disk_left >> 20} MB on the disk. Delete what it wrote"
        limits, total = self._limits, count_processes()
        # Processes of others may end meanwhile, so the difference alone is not enough.
        many_processes = total > limits.processes and (thorough or total - self._before > limits.processes)
        low_memory = memory_in_use() > limits.memory
        if not (many_processes or low_memory):
            return ""
        family = await child.family()
        if len(family) > limits.processes:
            return f"it started more than {limits.processes} processes"
        if low_memory and await asyncio.to_thread(memory_of, [process.pid for process in family]) > limits.memory:
            return f"its processes took more than {limits.memory / 1024**3:.1f} GB of memory together"
        return ""

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self._workspace).free >= self._limits.disk_left
        except OSError:  # unknown
            return False
