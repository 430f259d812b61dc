"""`/dream` or `/compact` in each folder of the arguments, in a process that is killed at the write the folder is named
after. Even points lie before a write, odd ones behind it.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import nanobot.agent.memory.dream
import nanobot.agent.memory.editor  # noqa: F401 each child would import them anew
from nanobot.agent.memory.revisions import RevisionLog
from nanobot.agent.memory.schedule import DueTimes
from nanobot.security.files.open import FileLocation
from nanobot.session.manager import SessionManager
from nanobot.testing import open_bot
from tests.support.memory import MERGED, OVER, saving, tidying

ANSWERS = {"/dream": tidying(MERGED, OVER), "/compact": saving("[2026-02-26 13:21] Talked.", "Likes tea.")}
writes, point = 0, 0


def kill_around(owner: type, name: str) -> None:
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        global writes
        writes += bool(point)
        if point and 2 * writes == point:
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if point and 2 * writes + 1 == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


async def run(command: str, folder: Path) -> None:
    global point
    async with open_bot(folder, ANSWERS[command]) as bot:
        point = int(folder.name)
        await bot.say(command)


kill_around(FileLocation, "append")
kill_around(FileLocation, "replace")
kill_around(RevisionLog, "add")
kill_around(DueTimes, "put")
kill_around(SessionManager, "save")

for folder in map(Path, sys.argv[2:]):
    child = os.fork()
    if not child:
        asyncio.run(run(sys.argv[1], folder))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
