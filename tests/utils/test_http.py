"""Connections: one pool a call in flight, handed back warm, never through a proxy to this machine."""

import asyncio

import pytest

from nanobot.net.http import is_loopback, proxy_for, ssl_context
from nanobot.net.pools import HttpPools


async def test_calls_one_after_the_other_share_a_pool_and_calls_at_once_do_not():
    pools = HttpPools()

    async with pools.borrow_client("http://x/") as first, pools.borrow_client("http://x/") as second:
        assert second is not first
    async with pools.borrow_client("http://x/") as again:
        assert again in (first, second)
    await pools.close()


async def test_what_is_lent_while_the_pools_close_is_closed_when_it_comes_back():
    pools = HttpPools()

    async with pools.borrow_client("http://x/") as client:
        await pools.close()

    assert client.is_closed


def test_a_pool_is_not_lent_to_another_event_loop_than_its_own():
    pools = HttpPools()

    async def lend() -> object:
        async with pools.borrow_client("http://x/") as client:
            return client

    assert asyncio.run(lend()) is not asyncio.run(lend())


async def test_the_context_for_https_is_made_once_and_checks_certificates():
    first, second = await ssl_context("https://a/"), await ssl_context("https://b/")

    assert first is second
    assert first.check_hostname
    assert first.get_ca_certs()
    assert await ssl_context("http://a/") is not first


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "127.0.0.1", "127.9.9.9", "::1", "models.localhost"])
def test_this_machine_is_reached_without_a_proxy(host, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    url = f"http://[{host}]/" if ":" in host else f"http://{host}/"

    assert is_loopback(host)
    assert proxy_for(url, "http://own:2") is None


def test_a_proxy_of_ones_own_goes_before_the_one_of_the_environment(monkeypatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.test")

    assert proxy_for("https://a.test/", "http://own:2") == "http://own:2"
    assert proxy_for("https://a.test/") == "http://proxy:1"
    assert proxy_for("https://inside.test/") is None
