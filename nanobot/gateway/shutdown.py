"""Requests to stop or restart the running gateway: from a signal, the local socket, or `/restart` in a chat."""

import asyncio
from enum import StrEnum


class ExitReason(StrEnum):
    """Why the gateway exits."""

    STOP = "stop"
    RESTART = "restart"


class ShutdownRequests:
    """Collects requests to stop or restart. The first one counts."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._reason = ExitReason.STOP

    def stop(self) -> None:
        self._requested.set()

    def restart(self) -> None:
        if not self._requested.is_set():
            self._reason = ExitReason.RESTART
        self._requested.set()

    @property
    def is_requested(self) -> bool:
        """Whether a stop or restart was requested."""
        return self._requested.is_set()

    async def wait(self) -> ExitReason:
        """Wait for the first request."""
        await self._requested.wait()
        return self._reason
