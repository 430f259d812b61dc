"""A fetch ends, whatever the server does: with what came, or with a word on why not."""

import asyncio
import gzip
import ssl
import time
import zlib

import pytest

from nanobot.net.connection import Connection
from nanobot.net.egress import EgressGate, NetworkPolicy
from nanobot.net.fetch import Fetcher, FetchError, FetchLimits, FetchRequest, FetchResult
from tests.fakes.web import Serve, answer, at_home, names, saying, serving
from tests.support.certificates import certificate

SMALL = FetchLimits(bytes=100_000, total_s=5)
QUICK = FetchLimits(total_s=0.3)


async def fetched(serve: Serve, limits: FetchLimits = SMALL) -> FetchResult:
    async with serving(serve) as server:
        return await Fetcher(at_home(), limits=limits).fetch(FetchRequest(f"http://127.0.0.1:{server.port}/"))


async def endless(head: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\n")
    while True:
        writer.write(b"more and more " * 1000)
        await writer.drain()


def bomb() -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(bytes(1_000_000)) for _ in range(20)) + packer.flush()


def dripping(begin: bytes, drop: bytes) -> Serve:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while True:
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)

    return serve


async def silent(head: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(30)


async def test_an_endless_page_ends_at_the_cap():
    came = await fetched(endless)

    assert (len(came.body), came.cut) == (SMALL.bytes, True)


BOMBS = {
    "gzip": (bomb, "gzip"),
    "gzip in pieces": (lambda: gzip.compress(bytes(1000)) * 10_000, "gzip"),
    "deflate": (lambda: zlib.compress(bytes(5_000_000)), "deflate"),
    "bare deflate": (lambda: zlib.compressobj(wbits=-15).compress(bytes(5_000_000)), "deflate"),
}


@pytest.mark.parametrize(("packed", "encoding"), BOMBS.values(), ids=BOMBS.keys())
async def test_a_bomb_ends_at_the_cap(packed, encoding):
    came = await fetched(saying(packed(), f"Content-Encoding: {encoding}"))

    assert (len(came.body), came.cut) == (SMALL.bytes, True)


async def test_nothing_packed_again_and_again_ends_too():
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n")
        while True:
            writer.write(gzip.compress(b"") * 500)
            await writer.drain()

    came = await fetched(serve)

    assert (came.body, came.cut) == (b"", True)


SLOW = {
    "a silent server": silent,
    "a head in drops": dripping(b"HTTP/1.1 200 OK\r\n", b"X-More: a\r\n"),
    "a body in drops": dripping(b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
    "chunks in drops": dripping(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
    "a word of patience, again and again": dripping(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
}


@pytest.mark.parametrize("serve", SLOW.values(), ids=SLOW.keys())
async def test_a_slow_server_is_left_at_the_deadline(serve):
    began = time.monotonic()

    with pytest.raises(FetchError, match=r"within 0\.3 s"):
        await fetched(serve, QUICK)

    assert time.monotonic() - began < 10


BAD = {
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", "request to .* failed"),
    "an endless head": (b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 40_000, "request to .* failed"),
    "packed in a way nobody asked for": (answer(b"x", "Content-Encoding: br"), "br, which was not requested"),
    "packed in two ways": (answer(b"x", "Content-Encoding: gzip, gzip"), "not requested"),
    "not packed": (answer(b"plain", "Content-Encoding: gzip"), "not valid gzip"),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf", "request to .* failed"),
}


@pytest.mark.parametrize(("said", "why"), BAD.values(), ids=BAD.keys())
async def test_a_bad_answer_is_told_in_a_word(said, why):
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    with pytest.raises(FetchError, match=why):
        await fetched(serve)


PACKED = {
    "gzip": (gzip.compress(b"hello"), "gzip"),
    "gzip, twice": (gzip.compress(b"he") + gzip.compress(b"llo"), "x-gzip"),
    "deflate": (zlib.compress(b"hello"), "deflate"),
    "bare deflate": (zlib.compress(b"hello")[2:-4], "deflate"),
    "plain": (b"hello", "identity"),
    "unsaid": (b"hello", ""),
}


@pytest.mark.parametrize(("packed", "encoding"), PACKED.values(), ids=PACKED.keys())
async def test_a_body_is_read_however_it_is_packed(packed, encoding):
    came = await fetched(saying(packed, f"Content-Encoding: {encoding}", "Content-Type: Text/HTML; charset=utf-8"))

    assert (came.body, came.cut, came.status, came.content_type) == (b"hello", False, 200, "text/html")


async def test_a_secure_host_is_known_by_the_name_in_the_url(tmp_path):
    path, context = certificate(tmp_path)
    asked_for = []
    context.sni_callback = lambda sock, name, context: asked_for.append(name)
    trusting = ssl.create_default_context(cafile=path)
    gate = EgressGate(
        NetworkPolicy(whitelist=("127.0.0.0/8",)),
        resolve=names({"localhost": ["127.0.0.1"], "other.test": ["127.0.0.1"]}),
    )
    fetcher = Fetcher(
        gate, connect=lambda server, limit_s, proxy, at: Connection.open(server, trusting, limit_s, proxy, at)
    )
    async with serving(saying(b"safe"), context) as server:
        came = await fetcher.fetch(FetchRequest(f"https://localhost:{server.port}/"))
        with pytest.raises(FetchError, match="certificate"):
            await fetcher.fetch(FetchRequest(f"https://other.test:{server.port}/"))

    assert came.body == b"safe"
    assert asked_for == ["localhost", "other.test"]


async def test_a_request_that_holds_a_secret_is_not_sent():
    async with serving(saying(b"")) as server:
        fetcher = Fetcher(at_home(), find_secret=lambda text: "providers.openai.apiKey" if "sesame" in text else None)
        base = f"http://127.0.0.1:{server.port}"

        for asked in (FetchRequest(f"{base}/?q=sesame"), FetchRequest(base, body=b'{"q": "sesame"}')):
            with pytest.raises(FetchError, match=r"providers\.openai\.apiKey"):
                await fetcher.fetch(asked)

    assert server.connections == 0


@pytest.mark.parametrize("host", ["xn--i-7iq.ws", "xn--a", "xn---a.example", "a_b.example"])
async def test_a_name_that_only_servers_of_names_understand_is_asked_as_it_is(host: str):
    gate = EgressGate(NetworkPolicy(whitelist=("127.0.0.0/8",)), resolve=names({host: ["127.0.0.1"]}))
    async with serving(saying(b"hi")) as server:
        came = await Fetcher(gate).fetch(FetchRequest(f"http://{host}:{server.port}/"))

    assert came.body == b"hi"
    assert f"\r\nhost: {host}:{server.port}\r\n" in server.heads[0].lower()
