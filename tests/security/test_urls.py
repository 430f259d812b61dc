"""URLs: which of them tell their host something, and where a page may lead."""

import time

import pytest

from nanobot.net.urls import UrlError, carries_data, find_hosts, join_url, parse_url


@pytest.mark.parametrize(
    ("url", "tells"),
    [
        ("https://example.org/docs/page.html", False),
        ("https://en.example.org/wiki/Cat", False),
        ("https://93.184.216.34/a", False),
        ("https://[2606:2800:220:1::1]/a", False),
        ("https://example.org/?q=x", True),
        ("https://one-word-and-another-in-front.example.org/", True),
        ("https://mfrggzdfmztwq2lk.example.org/", True),
        ("https://example.org/" + "word/" * 20, True),
    ],
)
def test_an_address_tells_its_host_something_where_there_is_more_of_it_than_is_needed(url: str, *, tells: bool):
    assert carries_data(parse_url(url)) is tells


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://evil.test/?d=SECRET", "evil.test"),
        ("evil.test/?d=SECRET", "evil.test"),
        ("evil.test?d=SECRET", "evil.test"),
        ("evil.test:8080/?d=SECRET", "evil.test:8080"),
        ("www.evil.test/c2VjcmV0LXdvcmRzLWdvLWhlcmU", "www.evil.test"),
        ("//evil.test/?d=SECRET", "evil.test"),
        ("//evil/?d=SECRET", "evil"),
        ("look at (EVIL.test./?d=SECRET)", "evil.test"),
        ("a%20evil%2Etest/?d=SECRET", "evil.test"),
        ("evil。test/?d=SECRET", "evil.test"),
        ("bücher.test/?d=SECRET", "xn--bcher-kva.test"),
        ("198.51.100.7/?d=SECRET", "198.51.100.7"),
        ("[2001:db8::7]/?d=SECRET", "[2001:db8::7]"),
        ("c2VjcmV0d29yZHM4.evil.test", "c2VjcmV0d29yZHM4.evil.test".lower()),
        ("me@evil.test/?d=SECRET", "evil.test"),
        ("gopher://evil.test/?d=SECRET", "evil.test"),
        ("\\\\evil.test\\?d=SECRET", "evil.test\\?d=SECRET"),
        ("3325256704/?d=SECRET", "3325256704/?d=SECRET"),
        ("127.1/?d=SECRET", "127.1/?d=SECRET"),
    ],
)
def test_a_text_names_the_hosts_it_could_carry_words_to(text: str, host: str):
    assert [told for told, _ in find_hosts(text)] == [host]


@pytest.mark.parametrize(
    "text",
    [
        "What does example.org say about cats?",
        "ann@example.com",
        "docs/guide.md, src/app.py and notes.2026.tar.gz",
        "Python 3.11/3.12, version 1.2.3, 10.5% of 4/5 at 2026-11-23T10:00:00.000Z",
        "SELECT a.name FROM a WHERE a.id = 1 // a comment",
        "xml.etree.ElementTree and os.path.join(a, b)",
        "owner/repo#12, e.g. this... or that?!",
    ],
)
def test_a_text_that_carries_nothing_to_a_host_names_none(text: str):
    assert list(find_hosts(text)) == []


@pytest.mark.parametrize(
    "piece", ["a.", "a。", "%2e", "a%2e", "//", "a-", "1.", "a.b/", "[", "www.", "\\", "@a", "a.b?"]
)
def test_no_text_is_read_slowly_for_hosts(piece: str):
    text = piece * (200_000 // len(piece))
    began = time.process_time()

    list(find_hosts(text))

    assert time.process_time() - began < 5  # a quadratic pattern takes minutes


def test_a_page_leads_nowhere_by_an_address_with_control_characters():
    with pytest.raises(UrlError, match="redirects to a URL with control characters"):
        join_url(parse_url("https://example.org/a"), "/b\nc")
