"""A process that serves the jobs of a folder: `python -m tests.cron.cron_child FOLDER quick|hangs`. Ends by a kill."""

import asyncio
import os
import sys
from pathlib import Path

from nanobot.cron.service import CronService
from nanobot.cron.types import CronJob, Run


async def serve(folder: Path, mode: str) -> None:
    log = os.open(folder / "ran.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    async def on_job(_job: CronJob, due: Run) -> None:
        os.write(log, f"{due.at_ms} {due.attempt} {os.getpid()}\n".encode())
        if mode == "hangs":
            await asyncio.Event().wait()

    await CronService(folder / "jobs.json", on_job).start()
    await asyncio.Event().wait()


asyncio.run(serve(Path(sys.argv[1]), sys.argv[2]))
