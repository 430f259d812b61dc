"""Consolidate each folder of the arguments in a process that is killed at the point the folder is named after."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import nanobot.agent.memory.consolidation  # noqa: F401 each child would import it anew
from nanobot.agent.memory.revisions import RevisionLog
from nanobot.agent.memory.store import MemoryStore
from nanobot.security.files.open import FileLocation
from nanobot.session.manager import SessionManager
from tests.support.memory import Minded, bot_with, saving

point = ""


def kill_around(owner: type, name: str) -> None:
    real = getattr(owner, name)

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        if point == f"before {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        result = real(*args, **kwargs)
        if point == f"after {name}":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, wrapped)


kill_around(MemoryStore, "append_history")
kill_around(RevisionLog, "add")
kill_around(FileLocation, "append")
kill_around(FileLocation, "replace")
kill_around(SessionManager, "save")


async def consolidate(folder: Path) -> None:
    global point
    async with bot_with(folder, Minded(saving("[2026-02-26 13:21] Talked.", "Likes tea."))) as bot:
        point = folder.name
        await bot.say("/compact")


for folder in map(Path, sys.argv[1:]):
    child = os.fork()
    if not child:
        asyncio.run(consolidate(folder))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
