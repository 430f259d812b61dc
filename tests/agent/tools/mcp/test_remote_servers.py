"""Servers at addresses: lost sessions, cut calls, restarts."""

import asyncio

import pytest

from nanobot.config.schema import McpServerConfig
from nanobot.messages.types import ToolFailure
from nanobot.net.egress import NetworkPolicy
from nanobot.security.secrets import secrets_scope
from nanobot.testing.model_server import FakeModels
from tests.fakes.mcp_remote_server import remote_server
from tests.support.mcp import OpenBench, child, configured


async def test_a_call_carries_the_headers_of_the_config(bench: OpenBench):
    async with remote_server() as server:
        far = await bench(configured("far", url=server.url, headers={"Authorization": "Bearer x"}))

        result = await far.call("mcp_far_count")

    assert result.content == "call 1"
    assert {headers.get("authorization") for headers in server.headers} == {"Bearer x"}


@pytest.mark.parametrize("status", [404, 400])
async def test_a_forgotten_session_is_begun_anew_and_nobody_notices(bench: OpenBench, status: int):
    async with remote_server() as server:
        server.gone_status = status
        far = await bench(configured("far", url=server.url))
        await far.call("mcp_far_act")
        server.forget_sessions()

        result = await far.call("mcp_far_act")

    assert result.content == "call 2"


@pytest.mark.parametrize(
    ("tool", "errors"),
    [("count", [False] * 9), ("act", [False, False, True] * 3)],  # what only reads is asked again
)
async def test_a_dropped_call_is_repeated_if_it_may_be_and_else_told_of(
    bench: OpenBench, tool: str, errors: list[bool]
):
    async with remote_server() as server:
        server.drops_every = 3
        far = await bench(configured("far", url=server.url))

        results = [await far.call(f"mcp_far_{tool}") for _ in errors]

    assert [result.error for result in results] == errors
    assert server.calls == 9 or tool == "count"


async def test_a_server_that_is_away_for_a_while_is_found_again(bench: OpenBench):
    async with remote_server() as server:
        far = await bench(configured("far", url=server.url))
        await far.call("mcp_far_act")
    away = await far.call("mcp_far_act")
    report = far.servers.report()

    async with remote_server(server.port):
        back = await far.call("mcp_far_act")

    assert away.error
    assert "cannot be reached" in str(away.content)
    assert "far: failed" in report
    assert back.content == "call 1"


async def test_an_address_where_no_server_answers_costs_only_its_own_tools_and_says_why(bench: OpenBench):
    async with remote_server() as server:
        with FakeModels(kind="web") as page:
            urls = {"gone": "http://127.0.0.1:9/mcp", "page": f"{page.url}/mcp", "far": server.url}
            several = await bench(*(configured(name, url=url) for name, url in urls.items()))

            results = await asyncio.gather(*(several.call("mcp_far_count") for _ in range(20)))

    assert not any(result.error for result in results)
    gone, other, _ = several.servers.report().splitlines()
    assert "gone: failed, not met yet: nothing answers at http://127.0.0.1:9/mcp" in gone
    assert f"{page.url}/mcp answers 404; look at the url and the headers" in other


@pytest.mark.parametrize(
    ("config", "wire"),
    [
        ({"command": "npx"}, "stdio"),
        ({"command": "npx", "url": "http://a/mcp"}, "stdio"),
        ({"url": "http://a/mcp"}, "streamableHttp"),
        ({"url": "http://a/sse"}, "sse"),
        ({"url": "http://a/sse/"}, "sse"),
        ({"url": "http://a/sse", "type": "streamableHttp"}, "streamableHttp"),
        ({"command": "npx", "url": "http://a/mcp", "type": "streamableHttp"}, "streamableHttp"),
        ({"url": "http://a/mcp", "type": "stdio"}, None),
        ({}, None),
    ],
)
def test_the_wire_is_what_the_config_says_or_what_fits(config: dict[str, str], wire: str | None):
    assert McpServerConfig.model_validate(config).transport == wire


async def test_a_server_is_kept_unless_its_settings_or_the_network_it_is_asked_by_have_changed(bench: OpenBench):
    both = await bench(configured("far", url="http://127.0.0.1:9/mcp"), child("lamp"))
    far, lamp = both.servers.servers
    network = NetworkPolicy(whitelist=("127.0.0.0/8",))

    await both.servers.change({"far": far.config, "lamp": lamp.config}, network)
    new_far = both.servers.find("far")
    await both.servers.change(dict([configured("far", url="http://127.0.0.1:9/mcp"), child("lamp", "many")]), network)

    assert new_far is not far
    assert both.servers.find("far") is new_far
    assert both.servers.find("lamp") is not lamp


async def test_no_secret_of_ours_is_told_to_a_server(bench: OpenBench):
    async with remote_server() as server:
        far = await bench(configured("far", url=server.url))
        with secrets_scope(lambda: {"a-key-of-ours-4711": "providers.openai.api_key"}):
            result = await far.call("mcp_far_act", note={"deep": ["a-key-of-ours-4711"[::-1]]})

    assert result.failure is ToolFailure.NOT_RUN
    assert "hold the secret providers.openai.api_key" in str(result.content)
    assert server.calls == 0
