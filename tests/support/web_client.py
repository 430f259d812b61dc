"""A paired browser, as an HTTP client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from nanobot.net.gateway_socket import connect
from tests.support.running_gateway import Running


async def one_time_key(here: Running) -> str:
    """The secret of a link, as `nanobot web` asks for it."""
    async with connect(here.home / "state") as connection:
        assert connection is not None
        answer = await connection.request({"do": "web link"})
    return str(answer["url"]).partition("#k=")[2]


@asynccontextmanager
async def browser(here: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A paired browser."""
    url = f"http://127.0.0.1:{here.gateway.http.port}"
    async with httpx.AsyncClient(base_url=url, headers={"Origin": url}, trust_env=False, timeout=20) as client:
        paired = await client.post("/api/pair", json={"key": await one_time_key(here)})
        assert paired.status_code == 200, paired.text
        yield client


async def follow(client: httpx.AsyncClient, after: str, until: str) -> list[dict[str, Any]]:
    """The data of feed events after a position, up to the first turn event of this type."""
    found: list[dict[str, Any]] = []
    async with asyncio.timeout(20), client.stream("GET", "/api/feed", headers={"Last-Event-ID": after}) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
                if found[-1].get("event", {}).get("type") == until:
                    break
    return found
