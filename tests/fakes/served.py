"""A platform of the contract suite that is a server on loopback: it goes away, comes back, and cuts connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from aiohttp import web

from nanobot.testing.platform import Platform


class ServedPlatform(Platform):
    """`server` is the fake: it has `routes`, `refuse` and `loses_answers`, and is told its `url`."""

    scheme = "http"
    _runner: web.AppRunner

    def __init__(self, folder: Path, server: Any) -> None:
        super().__init__(folder)
        self.server = server
        self.url = ""
        self._port = 0
        self._last = ""

    def app(self) -> web.Application:
        """What is served."""
        app = web.Application(client_max_size=200 << 20)
        app.add_routes(self.server.routes())
        return app

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Self]:
        self._runner = web.AppRunner(self.app(), access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        try:
            await self._listen()
            yield self
        finally:
            await self._runner.cleanup()

    async def _listen(self) -> None:
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = int(self._runner.addresses[0][1])
        self.url = self.server.url = f"{self.scheme}://127.0.0.1:{self._port}"

    async def repeat_last(self) -> None:
        await self.server.again(self._last)

    def refuse(self, times: int, *, status: int = 500, retry_after_s: float | None = None) -> None:
        self.server.refuse(times, status, retry_after_s)

    def lose_answers(self, times: int) -> None:
        self.server.loses_answers = times

    async def drop(self) -> None:
        assert self._runner.server is not None
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        await asyncio.sleep(0)

    async def gone(self, *, gone: bool) -> None:
        if not gone:
            await self._listen()
            return
        for site in [*self._runner.sites]:
            await site.stop()
        await self.drop()

    async def half_open(self) -> None:
        for line in self.server.lines:
            line.is_deaf = True
