"""Write a session (the argument is its folder) to a disk that is full after a thousand bytes, and then is not."""

import asyncio
import resource
import signal
import sys
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.session.manager import SessionManager


async def main(folder: Path) -> None:
    manager = SessionManager(folder)
    session = manager.get_or_create("cli:direct")
    await manager.append(session, {"role": "user", "content": "before"})
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        await manager.append(session, {"role": "user", "content": "x" * 5000})
    except StorageError:
        print("refused", len(session.messages))
    session.add_message("user", "y" * 5000)
    try:
        manager.save(session)
    except StorageError:
        print("refused", len(session.messages))
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    manager.save(session)
    await manager.append(session, {"role": "user", "content": "after"})


asyncio.run(main(Path(sys.argv[1])))
