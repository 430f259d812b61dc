"""URLs: which of them tell their host something, and where a page may lead."""

import pytest

from nanobot.security.urls import UrlError, carries_data, joined, parse_url


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


def test_a_page_leads_nowhere_by_an_address_with_control_characters():
    with pytest.raises(UrlError, match="leads on to a URL with control characters"):
        joined(parse_url("https://example.org/a"), "/b\nc")
