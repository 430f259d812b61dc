"""A connection on the wire: a request there, the answer in whatever way a server frames it, and every way it fails."""

import asyncio
import gzip
import ssl
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nanobot.net.connection import Connection
from nanobot.net.http import HttpError
from nanobot.net.urls import parse_server_url
from tests.support.certificates import certificate

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@asynccontextmanager
async def connected(serve: Serve, target: str = "/v1") -> AsyncIterator[Connection]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connection = await Connection.open(parse_server_url(f"http://127.0.0.1:{port}{target}"), PLAIN, 5)
    try:
        yield connection
    finally:
        await connection.aclose()
        server.close()
        await server.wait_closed()


def saying(*answers: bytes) -> Serve:
    """A server that says these, one a request."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in answers:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    return serve


async def whole(connection: Connection) -> bytes:
    body = b""
    while piece := await connection.read():
        body += piece
    return body


def answer(body: bytes, *headers: str) -> bytes:
    head = ["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


HELLOS = {
    "counted": answer(b"hello"),
    "in chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "with a trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
    "up to the end": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "in the old way": b"HTTP/1.0 200 OK\r\n\r\nhello",
    "after a word of patience": b"HTTP/1.1 102 Processing\r\n\r\n" + answer(b"hello"),
    "gzip": answer(gzip.compress(b"hello"), "Content-Encoding: gzip"),
    "deflate": answer(zlib.compress(b"hello"), "Content-Encoding: deflate"),
}


@pytest.mark.parametrize("said", HELLOS.values(), ids=HELLOS.keys())
async def test_an_answer_is_read_however_it_is_framed(said: bytes):
    async with connected(saying(said)) as connection:
        await connection.request("POST", {"X-A": "b"}, b"{}")

        assert connection.status == 200
        assert await whole(connection) == b"hello"
        assert await connection.read() == b""


async def test_the_request_says_what_it_was_told_to():
    asked = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set_result(await reader.readuntil(b"body"))
        writer.write(answer(b""))

    async with connected(serve, "/v1/a b?c=ü") as connection:
        await connection.request("POST", {"X-A": "b"}, b"body")

    first, host, *rest = asked.result().decode().split("\r\n")
    assert first == "POST /v1/a%20b?c=%C3%BC HTTP/1.1"
    assert host == f"Host: 127.0.0.1:{connection.address.port}"
    assert rest == ["X-A: b", "Content-Length: 4", "", "body"]


async def test_a_header_is_said_once_and_the_owner_has_the_last_word_on_the_host():
    asked = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set_result(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer(b""))

    async with connected(serve) as connection:
        await connection.request("POST", {"X-A": "one", "x-a": "two", "host": "inner.test"}, b"")

    assert asked.result().decode().split("\r\n")[1:-2] == ["host: inner.test", "x-a: two", "Content-Length: 0"]


async def test_a_connection_is_used_again_once_its_answer_is_read_to_the_end():
    again = answer(gzip.compress(b"again"), "Content-Encoding: gzip")
    async with connected(saying(HELLOS["in chunks"], again)) as connection:
        usable = [connection.usable]
        await connection.request("POST", {}, b"")
        usable.append(connection.usable)
        await whole(connection)
        usable.append(connection.usable)
        await connection.request("POST", {}, b"")
        assert await whole(connection) == b"again"

    assert usable == [True, False, True]


GOODBYES = {
    "said so": answer(b"hello", "Connection: close"),
    "in the old way": HELLOS["in the old way"],
    "unasked bytes": answer(b"hello") + b"HTTP/1.1 408 Request Timeout\r\n\r\n",
    "hung up": answer(b"hello"),
}


@pytest.mark.parametrize("said", GOODBYES.values(), ids=GOODBYES.keys())
async def test_a_connection_that_the_server_leaves_is_not_used_again(said: bytes):
    async with connected(saying(said)) as connection:
        await connection.request("POST", {}, b"")
        assert await whole(connection) == b"hello"
        await asyncio.sleep(0.02)

        assert not (connection.usable and connection.is_open())


async def test_bytes_that_nobody_asked_for_end_a_connection_though_it_stays_open():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(GOODBYES["unasked bytes"])
        await reader.read()  # until the other side has gone

    async with connected(serve) as connection:
        await connection.request("POST", {}, b"")
        assert await whole(connection) == b"hello"

        assert not connection.usable


BREAKS = {
    "in the body": (answer(b"hello")[:-2], b"hel"),
    "in a chunk": (HELLOS["in chunks"][:-12], b"he"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n\r\n", b""),
    "nothing": (b"", b""),
}


@pytest.mark.parametrize(("said", "heard"), BREAKS.values(), ids=BREAKS.keys())
async def test_an_answer_that_breaks_off_is_an_error_behind_what_came(said: bytes, heard: bytes):
    got = b""

    async with connected(saying(said)) as connection:
        with pytest.raises(HttpError):
            await connection.request("POST", {}, b"")
            while piece := await connection.read():
                got += piece

    assert got == heard


async def test_packed_body_is_unpacked_only_as_far_as_it_is_read():
    body = gzip.compress(bytes(10_000_000), 9)

    async with connected(saying(answer(body, "Content-Encoding: gzip"))) as connection:
        await connection.request("POST", {}, b"{}")
        piece = await connection.read()

        assert 0 < len(piece) < 1_000_000
        assert len(piece) + len(await whole(connection)) == 10_000_000
        assert connection.usable


async def test_a_refusal_is_heard_though_the_server_did_not_listen_to_the_end():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!")
        await writer.drain()
        await reader.read()  # until the other side has gone

    async with connected(serve) as connection:
        await connection.request("POST", {}, b"x" * 20_000_000)

        assert connection.status == 413
        assert await whole(connection) == b"no!"


async def test_what_nobody_reads_is_not_hoarded():
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent < 40:
            writer.write(b"x" * 1_000_000)
            await writer.drain()
            sent += 1

    async with connected(serve) as connection:
        await connection.request("POST", {}, b"")
        await asyncio.sleep(0.3)
        assert sent < 20, "the rest waits with the server"
        read = 0
        while piece := await connection.read():
            read += len(piece)

    assert read == 40_000_000


async def test_a_header_that_http_does_not_carry_is_refused_without_telling_it():
    for value in ("Bearer secret\nü", "Bearer secret\r\nX: y"):
        async with connected(saying()) as connection:
            with pytest.raises(HttpError, match="cannot be built") as caught:
                await connection.request("POST", {"Authorization": value}, b"")

        assert "secret" not in str(caught.value)


async def test_a_cancelled_wait_leaves_a_connection_that_is_only_closed():
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()

    async with connected(serve) as connection:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await connection.request("POST", {}, b"")
        assert not connection.usable
        await connection.aclose()
        async with asyncio.timeout(5):
            await gone.wait()


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

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(HELLOS["in chunks"])
        await reader.read()
        writer.close()

    heads, tunnels = list[str](), list[str]()

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
        connection = await Connection.open(place, trusting, 5)
        tunnelled = await Connection.open(place, trusting, 5, f"http://me:pw@{road}")
        for each in (connection, tunnelled):
            await each.request("POST", {}, b"{}")
            assert await whole(each) == b"hello"
            assert each.usable
            await each.aclose()

        assert heads[0] == heads[1], "the server sees nothing of the proxy"
        assert f"CONNECT localhost:{place.port} HTTP/1.1" in tunnels[0]
        for way in (None, f"http://me:pw@{road}"):
            with pytest.raises(HttpError, match="its certificate is not valid"):
                await Connection.open(place, ssl.create_default_context(), 5, way)
        with pytest.raises(HttpError, match="the proxy refuses the connection: HTTP 407"):
            await Connection.open(place, trusting, 5, f"http://{road}")
