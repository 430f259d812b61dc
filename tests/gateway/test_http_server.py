"""The HTTP server costs nothing while nobody asks."""

import asyncio
from typing import Any

import httpx
import pytest

from nanobot.net.http_server import HttpServer


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_an_open_connection_at_rest_hardly_wakes_the_event_loop(monkeypatch: pytest.MonkeyPatch):
    server = HttpServer("127.0.0.1", 0, lambda: app, "")
    assert await server.bind()
    running = asyncio.create_task(server.run())
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        answer = await client.get("/")
        loop: Any = asyncio.get_running_loop()
        select, waits = loop._selector.select, [0]

        def counted(timeout: float | None = None) -> Any:
            waits[0] += 1
            return select(timeout)

        monkeypatch.setattr(loop._selector, "select", counted)
        await asyncio.sleep(1)
        monkeypatch.undo()
    running.cancel()
    await asyncio.wait([running])

    assert (answer.text, "date" in answer.headers) == ("hello", True)
    assert waits[0] < 5  # uvicorn alone: ten times a second
