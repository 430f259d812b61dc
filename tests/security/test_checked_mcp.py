"""The same walls under the client that remote MCP servers are spoken to with."""

import gzip

import httpx2
import pytest

from nanobot.net.egress import NetworkDeniedError, NetworkPolicy
from nanobot.net.mcp_transport import open_mcp_client
from tests.fakes.web import saying, serving


async def test_a_server_in_the_config_may_be_anywhere_and_its_client_goes_nowhere_else():
    async with (
        serving(saying(b"tools")) as mine,
        serving(saying(b"inside")) as other,
        await open_mcp_client(NetworkPolicy(), f"http://127.0.0.1:{mine.port}/mcp", {"X-Key": "x"}) as client,
    ):
        answer = await client.get(f"http://127.0.0.1:{mine.port}/mcp")
        with pytest.raises(NetworkDeniedError):
            await client.get(f"http://127.0.0.1:{other.port}/")

    assert answer.text == "tools"
    assert "x-key: x" in mine.heads[0].lower()
    assert other.connections == 0


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_bomb_is_not_unpacked_to_its_end(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.net.mcp_transport.MAX_RESPONSE_BYTES", 1 << 20)
    bomb = gzip.compress(b"data: x\n" * (1 << 17) + b"more", 1)
    async with (
        serving(saying(bomb, "Content-Encoding: gzip", f"Content-Type: {kind}")) as server,
        await open_mcp_client(NetworkPolicy(), f"http://127.0.0.1:{server.port}/mcp", {}) as client,
    ):
        with pytest.raises(httpx2.ReadError, match="larger than 1 MB"):
            await client.get(f"http://127.0.0.1:{server.port}/mcp")


async def test_a_stream_of_many_events_may_be_as_long_as_it_likes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.net.mcp_transport.MAX_RESPONSE_BYTES", 100)
    events = b"data: an event\r\n\r\n" * 1000
    async with (
        serving(saying(events, "Content-Type: text/event-stream")) as server,
        await open_mcp_client(NetworkPolicy(), f"http://127.0.0.1:{server.port}/mcp", {}) as client,
    ):
        answer = await client.get(f"http://127.0.0.1:{server.port}/mcp")

    assert answer.content == events
