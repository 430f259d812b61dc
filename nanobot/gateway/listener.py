"""A server of the gateway's own: it listens as soon as it can, and says what keeps it from that."""

import asyncio
import logging
from abc import ABC, abstractmethod
from typing import ClassVar

log = logging.getLogger(__name__)

AGAIN_S = 30.0
"""How often a place that is taken is tried again; nobody tells when it is free."""


class Listener(ABC):
    """One server; `run` is a member."""

    _said: ClassVar[str] = "%s"
    """How the log says a problem."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self.problem: str | None = None
        """What keeps it from listening, in a line for health; None where it listens, or was never asked to."""

    @abstractmethod
    async def _listen(self) -> asyncio.Server:
        """Open it. Raises OSError."""

    @abstractmethod
    def _problem_of(self, error: OSError) -> str:
        """What is wrong, and what its owner may do."""

    def _closed(self) -> None:  # noqa: B027 most have nothing else to let go of
        """It listens no more: whatever else is to be let go of. Never raises."""

    async def bind(self) -> bool:
        """Begin to listen; whether that went well. What is wrong is an error in the log and in `problem`, once."""
        if self._server is not None:
            return True
        try:
            self._server = await self._listen()
        except OSError as error:
            problem = self._problem_of(error)
            if problem != self.problem:
                log.error(self._said, problem)  # noqa: TRY400 the owner needs no traceback
            self.problem = problem
            return False
        self.problem = None
        return True

    async def run(self) -> None:
        """Serve until cancelled; where the place is taken, try again now and then."""
        try:
            while not await self.bind():  # noqa: ASYNC110 nobody tells when it is free
                await asyncio.sleep(AGAIN_S)
            assert self._server is not None  # noqa: S101 bind made it
            await self._server.serve_forever()
        finally:
            if self._server is not None:
                self._server.close()
                self._server = None
            self._closed()
