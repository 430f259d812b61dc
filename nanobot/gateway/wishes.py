"""What somebody wants of a gateway that runs: a signal, a command at the local socket, `/restart` in a chat."""

import asyncio
from enum import StrEnum


class Leave(StrEnum):
    """Why the gateway ends."""

    STOP = "stop"
    RESTART = "restart"


class Wishes:
    """What somebody wants of a gateway that runs: that it ends, or begins anew."""

    def __init__(self) -> None:
        self._told = asyncio.Event()
        self._leave = Leave.STOP

    def stop(self) -> None:
        """End in good order."""
        self._told.set()

    def restart(self) -> None:
        """End in good order, and begin anew."""
        if not self._told.is_set():
            self._leave = Leave.RESTART
        self._told.set()

    @property
    def told(self) -> bool:
        """Whether one of them is wished already."""
        return self._told.is_set()

    async def wait(self) -> Leave:
        """Until one of them is wished."""
        await self._told.wait()
        return self._leave
