"""What the walls of the network cost: a fetch through them beside the same fetch without."""

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import httpx
import pytest

from nanobot.agent.tools.web.fetch import read_body
from nanobot.net.addresses import blocked_reason
from nanobot.net.egress import EgressGate, NetworkPolicy
from nanobot.net.fetch import Fetcher, FetchRequest
from nanobot.net.http import ssl_context
from nanobot.net.urls import parse_url
from tests.bench.measure import Table
from tests.fakes.web import saying, serving

pytestmark = [pytest.mark.bench, pytest.mark.timeout(300)]

TIMES = 200


async def median_s(work: Callable[[], Awaitable[object]]) -> float:
    taken = []
    for _ in range(TIMES):
        started = time.perf_counter()
        await work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


async def test_a_checked_fetch():
    async with serving(saying(b"<p>hello</p>" * 100, "Content-Type: text/html")) as server:
        url = f"http://localhost:{server.port}/"
        fetcher = Fetcher(EgressGate(NetworkPolicy(whitelist=("127.0.0.0/8", "::1/128"))))
        context = await ssl_context(url)

        async def plain() -> None:
            async with httpx.AsyncClient(verify=context, trust_env=False) as client:
                await client.get(url)

        await plain()
        bare = await median_s(plain)
        checked = await median_s(lambda: fetcher.fetch(FetchRequest(url)))

    table = Table(f"One fetch over loopback, a new connection and a look-up each (median of {TIMES})")
    table.row("plain httpx", bare, "s")
    table.row("checked", checked, "s", bare, "plain", "1 ms on top")
    table.row("on top", checked - bare, "s", None, "", "0.001")
    table.show()


def test_the_parts():
    page = b"<article>" + b"<div><p>Some words, and <a href='/x'>a link</a>, of it.</p></div>" * 1000 + b"</article>"

    def each_s(work: Callable[[], object], times: int) -> float:
        work()
        started = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - started) / times

    address, url = ip_address("2606:2800:220:1:248:1893:25c8:1946"), "https://example.com:8443/a/b?c=d#e"
    read = asyncio.run(
        asyncio.to_thread(each_s, lambda: read_body(page, "text/html", "", url=url, markdown=True, limit=50_000), 5)
    )

    table = Table("Its parts")
    table.row("a URL read", each_s(lambda: parse_url(url), 5000) * 1000, "ms")
    table.row("an address judged", each_s(lambda: blocked_reason(address), 5000) * 1000, "ms")
    table.row(f"a page of {len(page) // 1024} kB made Markdown", read * 1000, "ms")
    table.show()
