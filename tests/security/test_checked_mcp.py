"""The same walls under the client that remote MCP servers are spoken to with."""

import gzip

import httpx2
import pytest

from nanobot.net.egress import EgressGate, NetworkDeniedError, NetworkPolicy
from nanobot.net.mcp_transport import MAX_RESPONSE_BYTES, checked_mcp_client, open_mcp_client
from tests.fakes.web import names, saying, serving


async def test_the_owners_server_is_reached_under_its_own_name_and_no_other_near_one():
    async with serving(saying(b"tools")) as server:
        table = names({"mine.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})
        gate = EgressGate(NetworkPolicy(owned=(f"http://mine.test:{server.port}/mcp",)), resolve=table)
        async with checked_mcp_client(gate, {"Authorization": "Bearer x"}) as client:
            answer = await client.post(f"http://mine.test:{server.port}/mcp", json={})
            for url in (f"http://other.test:{server.port}/mcp", f"http://127.0.0.1:{server.port}/mcp"):
                with pytest.raises(NetworkDeniedError):
                    await client.post(url, json={})

    assert answer.text == "tools"
    assert len(server.heads) == 1
    assert f"host: mine.test:{server.port}" in server.heads[0].lower()
    assert "authorization: bearer x" in server.heads[0].lower()


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
async def test_a_bomb_is_not_unpacked_to_its_end(kind: str):
    bomb = gzip.compress(b"data: x\n" * (MAX_RESPONSE_BYTES // 8 + 1), 1)
    async with (
        serving(saying(bomb, "Content-Encoding: gzip", f"Content-Type: {kind}")) as server,
        await open_mcp_client(NetworkPolicy(), f"http://127.0.0.1:{server.port}/mcp", {}) as client,
    ):
        with pytest.raises(httpx2.ReadError, match="larger than 64 MB"):
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


async def test_an_answer_that_is_no_stream_of_events_is_bounded_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.net.mcp_transport.MAX_RESPONSE_BYTES", 100)
    lines = b"[1,\n\n" * 1000
    async with (
        serving(saying(lines, "Content-Type: application/json")) as server,
        await open_mcp_client(NetworkPolicy(), f"http://127.0.0.1:{server.port}/mcp", {}) as client,
    ):
        with pytest.raises(httpx2.ReadError, match="larger than"):
            await client.get(f"http://127.0.0.1:{server.port}/mcp")
