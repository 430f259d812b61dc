"""Requests reach the public internet, and nothing else: each spelling, against servers that would answer."""

import asyncio
from ipaddress import IPv4Address, IPv6Address

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.errors import NanobotError
from nanobot.net.addresses import blocked_reason, parse_networks
from nanobot.net.egress import (
    EgressGate,
    NetworkDeniedError,
    NetworkPolicy,
    NoSuchHostError,
    local_address_for,
    resolve_host,
)
from nanobot.net.fetch import Fetcher, FetchError, FetchLimits, FetchRequest
from nanobot.net.urls import UrlError, parse_url
from tests.fakes.web import Road, at_home, leading_to, names, saying, serving
from tests.security.closed_urls import CLOSED_URLS, NAMES

PUBLIC = "93.184.216.34"
PUBLIC_6 = "2606:2800:220:1:248:1893:25c8:1946"


def nowhere(address: str) -> str | None:
    """A machine that lives elsewhere."""
    return "198.51.100.77" if "." in address else "2600::77"


def gate(policy: NetworkPolicy | None = None, table: dict[str, list[str]] | None = None) -> EgressGate:
    return EgressGate(
        policy or NetworkPolicy(), resolve=names(table or {"public.test": [PUBLIC]}), local_address_for=nowhere
    )


async def test_no_spelling_of_a_near_address_connects():
    reached, strange = [], []
    async with serving(saying(b"inside")) as server:
        fetcher = Fetcher(EgressGate(NetworkPolicy(), resolve=names(NAMES)), limits=FetchLimits(total_s=5))
        for spelling in CLOSED_URLS:
            try:
                await fetcher.fetch(FetchRequest(spelling.replace("{port}", str(server.port))))
                reached.append(spelling)
            except (UrlError, NetworkDeniedError, NoSuchHostError):
                pass
            except NanobotError as error:
                strange.append((spelling, str(error)))

        connections = server.connections

    assert len(set(CLOSED_URLS)) >= 150
    assert (reached, strange, connections) == ([], [], 0)


PUBLIC_URLS = {
    "http://public.test/": (PUBLIC, "public.test", "/"),
    "https://public.test/a?b=c": (PUBLIC, "public.test", "/a?b=c"),
    "http://PUBLIC.Test.:80/": (PUBLIC, "public.test", "/"),
    "http://public.test:8080/x y": (PUBLIC, "public.test:8080", "/x%20y"),
    " https://public.test \n": (PUBLIC, "public.test", "/"),
    "http://93.184.216.34/": (PUBLIC, PUBLIC, "/"),
    "http://[2606:2800:220:1:248:1893:25C8:1946]/": (PUBLIC_6, f"[{PUBLIC_6}]", "/"),
    "http://public。test/ü?ö=日本#part": (PUBLIC, "public.test", "/%C3%BC?%C3%B6=%E6%97%A5%E6%9C%AC"),
    "https://straße.test/": ("1.1.1.1", "xn--strae-oqa.test", "/"),
    "https://6.test/": (PUBLIC_6, "6.test", "/"),
}


@pytest.mark.parametrize(("url", "there"), PUBLIC_URLS.items())
async def test_a_public_host_is_reached_at_the_very_address_under_its_own_name(url, there):
    road = Road()
    table = {"public.test": [PUBLIC], "xn--strae-oqa.test": ["1.1.1.1"], "6.test": [PUBLIC_6]}

    answer = await road.fetcher(gate(table=table)).fetch(FetchRequest(url))

    [sent] = road.sent
    address, authority, target = there
    assert answer.body == b"hello"
    assert (sent.at, sent.server.authority, sent.server.target) == (address, authority, target)
    assert sent.server.host == authority.strip("[]").removesuffix(":8080")


async def test_a_name_that_changes_its_mind_is_asked_once_and_changes_nothing():
    answers = iter([[PUBLIC], ["127.0.0.1"], ["127.0.0.1"]])
    asked = []

    async def rebinding(host: str, port: int, limit_s: float) -> list[str]:
        asked.append(host)
        return next(answers)

    road = Road()
    fetcher = road.fetcher(EgressGate(NetworkPolicy(), resolve=rebinding, local_address_for=nowhere))

    await fetcher.fetch(FetchRequest("http://rebind.test/"))
    with pytest.raises(NetworkDeniedError, match=r"127\.0\.0\.1"):
        await fetcher.fetch(FetchRequest("http://rebind.test/"))

    assert asked == ["rebind.test", "rebind.test"]
    assert [sent.at for sent in road.sent] == [PUBLIC]


async def test_a_name_that_changes_its_mind_between_two_pages_is_judged_again():
    answers = iter([[PUBLIC], ["169.254.169.254"]])

    async def rebinding(host: str, port: int, limit_s: float) -> list[str]:
        return next(answers)

    road = Road([(302, {"location": "/latest/meta-data/"}, b"")])
    with pytest.raises(NetworkDeniedError, match="metadata"):
        await road.fetcher(EgressGate(NetworkPolicy(), resolve=rebinding, local_address_for=nowhere)).fetch(
            FetchRequest("http://r.test/")
        )

    assert len(road.sent) == 1


INWARD = [
    "http://127.0.0.1:{port}/", "http://localhost:{port}/", "//127.0.0.1:{port}/", "http://0x7f.1:{port}/",
    "http:127.0.0.1", "/\\127.0.0.1/",
    "http://[::1]:{port}/", "http://home.test:{port}/", "http://public.test@127.0.0.1:{port}/", "file:///etc/passwd",
    "http://169.254.169.254/latest/", "http:\\\\127.0.0.1:{port}\\", "gopher://127.0.0.1:{port}/",
    "http://[::ffff:7f00:1]/", "/\t/127.0.0.1:{port}/",
]  # fmt: skip


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_page_that_leads_inside_is_not_followed(status):
    async with serving(saying(b"inside")) as server:
        for location in INWARD:
            road = Road([(status, {"location": location.replace("{port}", str(server.port))}, b"")])
            fetcher = road.fetcher(gate(table={**NAMES, "localhost": ["127.0.0.1"]}))

            with pytest.raises((NetworkDeniedError, UrlError)):
                await fetcher.fetch(FetchRequest("http://public.test/"))

        assert server.connections == 0


async def test_five_redirects_are_followed_and_no_more():
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        left = int(head.split("/")[1].split()[0])
        await (leading_to(f"/{left - 1}") if left else saying(b"there"))(head, writer)

    async with serving(serve) as server:
        fetcher = Fetcher(at_home())
        base = f"http://127.0.0.1:{server.port}"

        fifth = await fetcher.fetch(FetchRequest(f"{base}/5"))
        with pytest.raises(FetchError, match="more than 5 times"):
            await fetcher.fetch(FetchRequest(f"{base}/6"))

    assert (fifth.body, str(fifth.url)) == (b"there", f"{base}/0")


async def test_what_is_for_one_host_does_not_go_to_the_next():
    async with serving(saying(b"theirs")) as theirs, serving(leading_to(f"http://b.test:{theirs.port}/")) as ours:
        gate = at_home(a_test=["127.0.0.1"], b_test=["127.0.0.2"])

        await Fetcher(gate).fetch(FetchRequest(f"http://a.test:{ours.port}/", {"X-Key": "sesame", "Cookie": "a=b"}))

    assert "sesame" in ours.heads[0]
    assert "sesame" not in theirs.heads[0]
    assert "cookie" not in theirs.heads[0].lower()


async def test_what_is_posted_is_led_on_to_nowhere():
    async with serving(leading_to("http://public.test/")) as server:
        with pytest.raises(FetchError, match="is not followed"):
            await Fetcher(at_home()).fetch(FetchRequest(f"http://127.0.0.1:{server.port}/", body=b"question"))


async def test_the_owner_opens_a_network_by_name_or_address():
    policy = NetworkPolicy(whitelist=("192.168.7.0/24", "fd00::/8"))
    table = {"nas.test": ["192.168.7.20"], "nas6.test": ["fd00::20"], "other.test": ["192.168.8.20"]}
    opened = gate(policy, table)

    assert (await opened.route("http://192.168.7.20:5000/")).addresses == ("192.168.7.20",)
    assert (await opened.route("http://nas.test/")).addresses == ("192.168.7.20",)
    assert (await opened.route("http://nas6.test/")).addresses == ("fd00::20",)
    with pytest.raises(NetworkDeniedError) as refused:
        await opened.route("http://other.test/")
    assert "tools.ssrfWhitelist" in str(refused.value)
    assert "192.168.8.20/32" in str(refused.value)


async def test_what_the_owner_wrote_into_the_config_passes_and_nothing_beside_it():
    owned = gate(NetworkPolicy(owned=("http://127.0.0.1:8888/search",)))

    assert (await owned.route("http://127.0.0.1:8888/other")).addresses == ("127.0.0.1",)
    for url in ("http://127.0.0.1:8889/", "https://127.0.0.1:8888/", "http://127.0.0.2:8888/", "http://127.0.0.1/"):
        with pytest.raises(NetworkDeniedError):
            await owned.route(url)


async def test_public_addresses_of_ones_own_network_are_near():
    house = EgressGate(
        NetworkPolicy(), local_address_for=lambda address: "2600:1:2:3::77" if ":" in address else "8.8.4.4"
    )

    for url in ("http://[2600:1:2:3::1]/", "http://8.8.4.4/"):
        with pytest.raises(NetworkDeniedError, match="own network"):
            await house.route(url)
    assert (await house.route("http://[2600:1:2:4::1]/")).addresses == ("2600:1:2:4::1",)
    assert (await house.route("http://8.8.8.8/")).addresses == ("8.8.8.8",)


async def test_a_proxy_is_asked_for_public_names_and_never_for_near_ones():
    road = Road()
    fetcher = road.fetcher(gate(NetworkPolicy(proxy="http://127.0.0.1:3128", whitelist=("192.168.7.0/24",)), NAMES))

    await fetcher.fetch(FetchRequest("http://unknown-here.test/"))
    await fetcher.fetch(FetchRequest("http://192.168.7.20/"))
    for url in ("http://127.0.0.1/", "http://localhost/", "http://metadata.google.internal/", "http://10.0.0.1/"):
        with pytest.raises(NetworkDeniedError):
            await fetcher.fetch(FetchRequest(url))

    assert [(sent.server.host, sent.proxy, sent.at) for sent in road.sent] == [
        ("unknown-here.test", "http://127.0.0.1:3128", None),
        ("192.168.7.20", None, "192.168.7.20"),
    ]


async def test_a_proxy_gets_the_name_and_what_stands_in_the_url():
    async with serving(saying(b"from afar")) as proxy:
        policy = NetworkPolicy(proxy=f"http://127.0.0.1:{proxy.port}")

        answer = await Fetcher(gate(policy, {"nobody.test": []})).fetch(FetchRequest("http://public.test/a?b=c"))

    assert answer.body == b"from afar"
    assert proxy.heads[0].startswith("GET http://public.test/a?b=c HTTP/1.1\r\n")
    assert "host: public.test\r\n" in proxy.heads[0].lower()


@pytest.mark.parametrize("proxy", ["nonsense", "ftp://x.test:21", "http://"])
async def test_a_proxy_that_is_none_is_told_with_its_key(proxy):
    fetcher = Fetcher(gate(NetworkPolicy(proxy=proxy)), limits=FetchLimits(total_s=2))

    with pytest.raises(NanobotError, match=r"tools\.web\.proxy|public.test failed"):
        await fetcher.fetch(FetchRequest("http://public.test/"))


async def test_the_environment_names_no_proxy(monkeypatch):
    for name in ("http_proxy", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with serving(saying(b"straight")) as server:
        answer = await Fetcher(at_home()).fetch(FetchRequest(f"http://127.0.0.1:{server.port}/"))

    assert answer.body == b"straight"


async def test_the_next_address_is_tried_where_one_does_not_answer():
    async with serving(saying(b"second")) as server:
        gate = EgressGate(
            NetworkPolicy(whitelist=("127.0.0.0/8", "240.0.0.0/4")),
            resolve=names({"two.test": ["255.255.255.255", "127.0.0.1"]}),
        )

        answer = await Fetcher(gate).fetch(FetchRequest(f"http://two.test:{server.port}/"))

    assert answer.body == b"second"
    assert f"host: two.test:{server.port}" in server.heads[0].lower()


@given(st.integers(0, 2**32 - 1))
def test_what_the_strict_rule_takes_for_public_python_does_too(number):
    address = IPv4Address(number)

    assert blocked_reason(address) is not None or (address.is_global and not address.is_multicast)


@given(st.integers(0, 2**128 - 1))
def test_outside_of_what_was_given_out_no_ipv6_address_is_public(number):
    address = IPv6Address(number)

    public = blocked_reason(address) is None

    assert not public or (address.is_global and address in parse_networks(["2000::/3"])[0])


@given(st.text(max_size=60), st.sampled_from(["", "http://", "https://", "http://public.test", "http://127.0.0.1"]))
def test_what_is_read_reads_the_same_again_and_to_others(text, begin):
    try:
        url = parse_url(begin + text)
    except UrlError:
        return

    assert parse_url(str(url)) == url
    assert str(url).isascii()
    theirs = httpx.URL(str(url))
    assert (theirs.raw_host.decode().strip("[]"), theirs.port or {"http": 80, "https": 443}[theirs.scheme]) == (
        url.host,
        url.port,
    )


async def test_a_name_is_looked_up_ipv4_first_and_nobody_waits_longer_than_told():
    assert (await resolve_host("localhost", 80, 5))[0] == "127.0.0.1"
    for name in ("nobody.invalid", "x" * 64, "a..b"):
        with pytest.raises((OSError, TimeoutError)):
            await resolve_host(name, 80, 2)
    with pytest.raises(TimeoutError):
        await resolve_host("localhost", 80, 0)


def test_this_machine_speaks_to_itself_from_itself():
    assert [local_address_for(address) for address in ("127.0.0.1", "255.255.255.255")] == ["127.0.0.1", None]
