"""A watch over a running command: one that takes more of the machine than it may is stopped, before nobody else has
room. The kernel's own limits hold for single processes, and of root it counts none.
"""

import asyncio
import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path

from nanobot.utils.families import count_processes
from nanobot.utils.memory import memory_in_use, memory_of
from nanobot.utils.processes import Child

_LOOK_S = 0.2
_THOROUGH = 5
"""Every so many looks the command's own processes are counted, however many the whole machine has."""


@dataclass(frozen=True, slots=True)
class Most:
    """What all processes of a command may take together."""

    processes: int
    memory: int
    disk_left: int
    """Bytes that have to stay free on the disk of the workspace, if they were when the command began."""


class Watch:
    """Over one command. To be made before it starts: what it starts is new from then on."""

    def __init__(self, most: Most, workspace: Path) -> None:
        self.exceeded = ""
        """What it took too much of, once it was stopped for it."""
        self._most = most
        self._workspace = workspace
        self._before = count_processes()
        self._had_room = self._has_room()

    async def over(self, child: Child) -> None:
        """Look until the command is stopped, or whoever waits for this has enough."""
        if not self._before:
            return
        for look in itertools.count(1):
            await asyncio.sleep(_LOOK_S)
            self.exceeded = await self._excess(child, thorough=look % _THOROUGH == 0)
            if self.exceeded:
                await child.kill()
                return

    async def _excess(self, child: Child, *, thorough: bool) -> str:
        """In words what is too much; nothing where nothing is. Whether it can be at all is cheap to see."""
        if self._had_room and not self._has_room():
            return f"it left less than {self._most.disk_left >> 20} MB on the disk. Delete what it wrote"
        most, many = self._most, count_processes()
        crowded = many > most.processes and (thorough or many - self._before > most.processes)  # others end meanwhile
        short = memory_in_use() > most.memory
        if not (crowded or short):
            return ""
        family = await child.family()
        if len(family) > most.processes:
            return f"it started more than {most.processes} processes"
        if short and await asyncio.to_thread(memory_of, [one.pid for one in family]) > most.memory:
            return f"its processes took more than {most.memory / 1024**3:.1f} GB of memory together"
        return ""

    def _has_room(self) -> bool:
        try:
            return shutil.disk_usage(self._workspace).free >= self._most.disk_left
        except OSError:  # nobody says
            return False
