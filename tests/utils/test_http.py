"""Connections: one pool a call in flight, handed back warm, never through a proxy to this machine."""

import asyncio
from contextlib import suppress

import pytest

from nanobot.net.connection import Connection
from nanobot.net.http import is_loopback, proxy_for, ssl_context
from nanobot.net.pools import HttpPools
from nanobot.net.urls import parse_server_url


async def test_a_connection_is_kept_for_a_while_and_never_beyond_the_end(monkeypatch: pytest.MonkeyPatch):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while await reader.readline():
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
                await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async def get() -> Connection:
        connection = await pools.connect(address, 5)
        await connection.request("GET", {})
        assert [await connection.read(), await connection.read()] == [b"hi", b""]
        return connection

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = parse_server_url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    pools = HttpPools()
    first = await get()
    await pools.release(first)
    again, other = await get(), await get()
    assert again is first

    monkeypatch.setattr("nanobot.net.pools.KEEP_ALIVE_S", 0.01)
    await pools.release(again)
    await asyncio.sleep(0.02)
    await pools.release(other)
    assert await get() is other
    last = await get()
    assert last is not again

    await pools.close()
    for connection in (other, last):
        await pools.release(connection)
        await asyncio.sleep(0)  # asyncio closes it in its next iteration
        assert not connection.is_open()
    await asyncio.sleep(0.05)  # the server's side
    server.close()
    await server.wait_closed()


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
