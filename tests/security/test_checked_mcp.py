"""The same walls under the client that remote MCP servers are spoken to with."""

import pytest

from nanobot.security.checked_mcp import checked_mcp_client
from nanobot.security.network import Gate, NetworkDeniedError, NetworkPolicy
from tests.security.web import names, saying, serving


async def test_the_owners_server_is_reached_under_its_own_name_and_no_other_near_one():
    async with serving(saying(b"tools")) as server:
        table = names({"mine.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]})
        gate = Gate(NetworkPolicy(owned=(f"http://mine.test:{server.port}/mcp",)), look_up=table)
        async with checked_mcp_client(gate, {"Authorization": "Bearer x"}) as client:
            answer = await client.post(f"http://mine.test:{server.port}/mcp", json={})
            for url in (f"http://other.test:{server.port}/mcp", f"http://127.0.0.1:{server.port}/mcp"):
                with pytest.raises(NetworkDeniedError):
                    await client.post(url, json={})

    assert answer.text == "tools"
    assert len(server.heads) == 1
    assert f"host: mine.test:{server.port}" in server.heads[0].lower()
    assert "authorization: bearer x" in server.heads[0].lower()
