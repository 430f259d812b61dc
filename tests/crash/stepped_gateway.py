"""`stepped_gateway [CLOCK]`: `nanobot gateway`, with Discord's SDK pointed at `DISCORD_API` of the environment.

With CLOCK it lives by a clock that stands where that file says: it steps as the wall clock does when a laptop slept,
and the one that measures knows nothing of the sleep.
"""

import asyncio
import os
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

from nanobot.__main__ import main
from nanobot.cli.chat.keyboard import TERMINATION_SIGNALS, handle_signals
from nanobot.cli.common import read_setup
from nanobot.config.paths import DataPaths
from nanobot.gateway.process import ShutdownRequests
from nanobot.gateway.service import open_gateway
from nanobot.utils.log import LogTarget, set_up_logging


class SteppedClock:
    """Stands still but for the steps that the file tells: first when the day began, then how far it is."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def now(self) -> datetime:
        """Where it stands."""
        began, steps = self._file.read_text().split()
        return datetime.fromisoformat(began) + timedelta(seconds=float(steps))

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


def point_discord() -> None:
    """Have the SDK ask the server of the test: its address is no setting."""
    if address := os.environ.get("DISCORD_API"):
        from discord.http import Route

        Route.BASE = address


def look_often() -> None:
    """Have Dream look at this clock as often as it steps: a minute of it is none of ours."""
    from nanobot.agent.memory import dream_schedule as dreams

    for name in ("_FIRST_S", "_MAX_TIMER_S"):
        setattr(dreams, name, 0.1)


async def live_by(clock: SteppedClock) -> None:
    """What the command does, until it is told to stop."""
    look_often()
    setup, shutdown = read_setup(), ShutdownRequests()
    set_up_logging(LogTarget(DataPaths(setup.data_dir).gateway_log, "INFO", "INFO"))
    with handle_signals(TERMINATION_SIGNALS, lambda number: shutdown.stop()):
        async with open_gateway(
            setup.config, data_dir=setup.data_dir, workspace=setup.workspace, shutdown=shutdown, clock=clock
        ) as gateway:
            await gateway.wait()


if __name__ == "__main__":
    point_discord()
    if sys.argv[1:]:
        asyncio.run(live_by(SteppedClock(Path(sys.argv[1]))))
    else:
        sys.argv = ["nanobot", "gateway"]
        main()
