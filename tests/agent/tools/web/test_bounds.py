"""What a page may cost, whatever it is made of: 64 MB above an idle bot, and half a minute."""

import asyncio
import json
import sys
import zlib
from typing import Any

import pytest

from tests.fakes.web import Serve, serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is weighed by /proc")

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"


def endless(piece: bytes, begin: bytes = HEAD + b"\r\n<html><body>") -> Serve:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(begin)
        while True:
            writer.write(piece * (64 * 1024 // len(piece)))
            await writer.drain()

    return serve


async def bomb(head: str, writer: asyncio.StreamWriter) -> None:
    packer = zlib.compressobj(9, wbits=31)
    writer.write(HEAD + b"Content-Encoding: gzip\r\n\r\n")
    while True:
        writer.write(packer.compress(b"<p>" + b"bomb, " * 200_000) + packer.flush(zlib.Z_SYNC_FLUSH))
        await writer.drain()


PAGES = {
    "an endless article": endless(
        b"<div><p>Some words, and <a href='/x'>a link</a> and <b>more</b>, of it.</p></div>\n"
    ),
    "endless Chinese": endless("<p>永远没有尽头的网页，真的没有。</p>".encode()),
    "endless tags": endless(b"<b><p>"),
    "endless tables": endless(b"<table><tr><td>a"),
    "endless scripts": endless(b"<script>a<script"),
    "endless text": endless(b"word, "),
    "endless JSON": endless(b"[],", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n["),
    "an endless picture": endless(b"\x89PNG\0", b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\n\r\n"),
    "a bomb": bomb,
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "a bomb")) for name in PAGES])
async def test_no_page_costs_more_than_it_may(name: str):
    async with serving(PAGES[name]) as server:
        command = [sys.executable, "-m", "tests.agent.tools.web.fetch_child", f"http://127.0.0.1:{server.port}/"]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        out, _ = await child.communicate()
    told: dict[str, Any] = json.loads(out)

    assert told["over_idle_mb"] < 64
    assert told["seconds"] < 30
    assert '"truncated": true' in told["content"] or "takes too long" in told["content"], told
