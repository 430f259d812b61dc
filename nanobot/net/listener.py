"""Base class of the gateway's own servers: binds, retries while the address is in use, and reports the problem."""

import asyncio
import logging
import socket
from abc import ABC, abstractmethod
from typing import ClassVar

log = logging.getLogger(__name__)

RETRY_S = 30.0
"""How often binding is retried."""


class Listener(ABC):
    """A server; `run` is a supervised task."""

    _problem_format: ClassVar[str] = "%s"
    """Log format of a problem."""

    def __init__(self) -> None:
        self._server: asyncio.Server | socket.socket | None = None
        self.problem: str | None = None
        """Why it cannot listen, in one line for health; None if it listens or was not started."""

    @abstractmethod
    async def _listen(self) -> asyncio.Server | socket.socket:
        """Bind. Raises OSError."""

    async def _serve(self) -> None:
        """Serve until cancelled."""
        await asyncio.get_running_loop().create_future()  # asyncio does it

    @abstractmethod
    def _problem_of(self, error: OSError) -> str:
        """Describe an error and what its owner can do."""

    def _on_closed(self) -> None:  # noqa: B027 optional
        """Called when it has stopped listening. Never raises."""

    async def bind(self) -> bool:
        """Start listening. Return False after an error, which is kept in `problem` and logged once."""
        if self._server is not None:
            return True
        try:
            self._server = await self._listen()
        except OSError as error:
            problem = self._problem_of(error)
            if problem != self.problem:
                log.error(self._problem_format, problem)  # noqa: TRY400 the owner needs no traceback
            self.problem = problem
            return False
        self.problem = None
        return True

    async def run(self) -> None:
        """Serve until cancelled. Retries while the address is in use."""
        try:
            while not await self.bind():  # noqa: ASYNC110 a free address sends no event
                await asyncio.sleep(RETRY_S)
            await self._serve()
        finally:
            if self._server is not None:
                self._server.close()
                self._server = None
            self._on_closed()
