"""Connections to servers: TLS, proxies, and addresses with a password in them."""

import asyncio
import ssl
from pathlib import Path

import pytest

from nanobot.net.connection import Connection
from nanobot.net.http import HttpError, proxy_for
from nanobot.net.urls import parse_server_url
from tests.support.certificates import certificate


@pytest.mark.parametrize("host", ["localhost", "LocalHost.", "127.0.0.1", "127.9.9.9", "[::1]", "models.localhost"])
def test_this_machine_is_reached_without_a_proxy(host: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.delenv("NO_PROXY", raising=False)

    assert proxy_for(f"http://{host}/", "http://own:2") is None


def test_a_proxy_of_ones_own_goes_before_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "https_proxy", "no_proxy", "NO_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "inside.test")

    proxies = [proxy_for(*asked) for asked in (("https://a.test/", "http://own:2"), ("https://a.test/",))]

    assert [*proxies, proxy_for("https://inside.test/")] == ["http://own:2", "http://proxy:1", None]


def test_a_name_and_a_password_in_an_address_are_told_to_its_server_only():
    url = parse_server_url("https://ann:s%40fe@A.test:8443/v1?x=1#end")

    assert url.authorization == "Basic YW5uOnNAZmU="
    assert (url.host, url.port, url.authority, url.target) == ("a.test", 8443, "a.test:8443", "/v1?x=1")
    assert "s%40fe" not in repr(url) + str(url)
    assert parse_server_url("http://[::1]:81/v1/@a").authorization is None


@pytest.mark.parametrize("url", ["", "a.test/v1", "ftp://a.test", "http://", "http://a.test:port", "http://[::1"])
def test_what_is_no_address_of_a_server_is_refused(url: str):
    with pytest.raises(ValueError, match=r"."):
        parse_server_url(url)


async def test_a_secure_server_is_asked_directly_or_through_a_proxy_only_if_its_certificate_is_trusted(tmp_path: Path):
    path, serving = certificate(tmp_path)
    heads, tunnels = list[str](), list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        await reader.read()
        writer.close()

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A proxy that wants a password."""
        tunnels.append(head := (await reader.readuntil(b"\r\n\r\n")).decode())
        if "Proxy-Authorization: Basic bWU6cHc=" not in head:
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        there, back = await asyncio.open_connection("127.0.0.1", int(head.split()[1].rpartition(":")[2]))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(1000):
            target.write(data)
        target.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0, ssl=serving) as server,
        await asyncio.start_server(tunnel, "127.0.0.1", 0) as proxy,
    ):
        road = f"127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        place = parse_server_url(f"https://localhost:{server.sockets[0].getsockname()[1]}/v1")
        trusting = ssl.create_default_context(cafile=str(path))
        for way in (None, f"http://me:pw@{road}"):
            connection = await Connection.open(place, trusting, 5, way)
            await connection.request("POST", {}, b"{}")
            assert await connection.read() == b"hello"
            await connection.aclose()
            with pytest.raises(HttpError, match="its certificate is not valid"):
                await Connection.open(place, ssl.create_default_context(), 5, way)
        assert heads[0] == heads[1], "the server sees nothing of the proxy"
        assert f"CONNECT localhost:{place.port} HTTP/1.1" in tunnels[0]
        with pytest.raises(HttpError, match="the proxy refuses the connection: HTTP 407"):
            await Connection.open(place, trusting, 5, f"http://{road}")
