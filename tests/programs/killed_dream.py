"""Dream in each folder of the arguments, in a process that is killed at the write the folder is named after."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import nanobot.agent.memory.commands  # noqa: F401 each child would import it anew
from nanobot.agent.memory.due import DueTimes
from nanobot.agent.memory.revisions import RevisionLog
from nanobot.security.files.open import FileLocation
from tests.support.memory import MERGED, OVER, remembering, tidying

writes, point = 0, 0


def kill_around(owner: type, name: str) -> None:
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        global writes
        writes += 1
        if 2 * writes == point:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if 2 * writes + 1 == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


kill_around(FileLocation, "append")
kill_around(FileLocation, "replace")
kill_around(RevisionLog, "add")
kill_around(DueTimes, "put")


async def dream(folder: Path) -> None:
    global point
    async with remembering(folder) as it:
        point = int(folder.name)
        await it.dream(tidying(MERGED, OVER))


for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if not child:
        asyncio.run(dream(folder))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
