"""web_search: each engine as its public pages describe it, the one that is set up is asked, and no key goes elsewhere.

- Brave: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
- Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
- SearXNG: https://docs.searxng.org/dev/search_api.html
- DuckDuckGo: https://html.duckduckgo.com/html/ as browsers without scripts get it
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from nanobot.agent.tools.base import ToolResult
from nanobot.agent.tools.web.policy import BANNER, SearchPolicy, WebPolicy
from nanobot.agent.tools.web.search import WebSearchTool, choose_engines
from nanobot.messages.types import Provenance
from tests.fakes.web import Server, answer, leading_to, saying, serving

Reply = bytes
JSON = "Content-Type: application/json"
REFUSED = answer(b'{"detail": "no"}', JSON, status="401 Unauthorized")


def said(told: object) -> Reply:
    return answer(json.dumps(told).encode(), JSON)


def field(head: str, name: str) -> str:
    lines = head.partition("\r\n\r\n")[0].split("\r\n")[1:]
    return next((line.partition(":")[2].strip() for line in lines if line.lower().startswith(f"{name.lower()}:")), "")


def asked_for(head: str) -> tuple[str, dict[str, list[str]]]:
    parts = urlsplit(head.split()[1])
    return parts.path, parse_qs(parts.query)


def brave(head: str) -> Reply:
    path, query = asked_for(head)
    if field(head, "X-Subscription-Token") != "BSA-key":
        return answer(b'{"type": "ErrorResponse"}', JSON, status="422 Unprocessable Entity")
    assert head.startswith("GET ") and path == "/res/v1/web/search" and 1 <= int(query["count"][0]) <= 20
    rows = [
        {
            "title": f"Cat &amp; {number}",
            "url": f"https://c.test/{number}",
            "description": "<strong>Cats</strong>\npurr",
        }
        for number in range(int(query["count"][0]))
    ]
    return said({"type": "search", "web": {"results": rows}})


def tavily(head: str) -> Reply:
    if field(head, "Authorization") != "Bearer tvly-key":
        return REFUSED
    body = json.loads(head.partition("\r\n\r\n")[2])
    assert head.startswith("POST /search ") and set(body) <= {"query", "max_results"}
    rows = [{"title": "Cat", "url": "https://c.test/0", "content": "Cats purr", "score": 0.9}]
    return said({"query": body["query"], "results": rows * body["max_results"]})


def searxng(head: str) -> Reply:
    path, query = asked_for(head)
    if query.get("format") != ["json"]:
        return answer(b"<html>", "Content-Type: text/html", status="403 Forbidden")
    assert path == "/search" and query["q"]
    rows = [{"title": "Cat", "url": "https://c.test/0", "content": "Cats purr"}, {"title": "no address"}, "no row"]
    return said({"query": query["q"][0], "results": rows, "number_of_results": 0})


def jina(head: str) -> Reply:
    path, query = asked_for(head)
    if field(head, "Authorization") != "Bearer jina-key":
        return REFUSED
    assert path == "/" and query["q"] and field(head, "Accept") == "application/json"
    rows = [{"title": "Cat", "url": "https://c.test/0", "description": "Cats purr", "usage": {"tokens": 10}}]
    return said({"code": 200, "status": 20000, "data": rows * 5})


def kagi(head: str) -> Reply:
    path, query = asked_for(head)
    if field(head, "Authorization") != "Bot kagi-key":
        return REFUSED
    assert path == "/api/v0/search" and query["q"] and int(query["limit"][0]) >= 1
    row = {"t": 0, "title": "Cat", "url": "https://c.test/0", "snippet": "Cats purr"}
    return said({"meta": {"ms": 5}, "data": [row, {"t": 1, "list": ["dogs"]}, row, row, row]})


def duckduckgo(head: str) -> Reply:
    path, query = asked_for(head)
    assert path == "/html/" and query["q"]
    rows = """
    <div class="result results_links results_links_deep result--ad"><div class="links_main links_deep result__body">
      <h2 class="result__title"><a class="result__a" href="//duckduckgo.com/y.js?ad_domain=shop.test">Buy cats</a></h2>
    </div></div>
    <div class="result results_links results_links_deep web-result"><div class="links_main links_deep result__body">
      <h2 class="result__title"><a rel="nofollow" class="result__a"
         href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fc.test%2F0%3Fa%3Db&amp;rut=1f">The <b>Cat</b></a></h2>
      <a class="result__snippet" href="https://c.test/0"><b>Cats</b> purr &amp; sleep</a></div></div>
    <div class="result results_links results_links_deep web-result"><div class="links_main links_deep result__body">
      <h2 class="result__title"><a rel="nofollow" class="result__a" href="https://c.test/1">Cat 1</a></h2></div></div>
    """
    return answer(f"<html><body>{rows}</body></html>".encode(), "Content-Type: text/html; charset=UTF-8")


ENGINES: dict[str, tuple[Callable[[str], Reply], str]] = {
    "brave": (brave, "BSA-key"),
    "tavily": (tavily, "tvly-key"),
    "searxng": (searxng, ""),
    "jina": (jina, "jina-key"),
    "kagi": (kagi, "kagi-key"),
    "duckduckgo": (duckduckgo, ""),
}


async def searched(engine: Callable[[str], Reply], policy: dict[str, Any], **more: Any) -> tuple[ToolResult, Server]:
    async def serve(head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(engine(head))

    async with serving(serve) as server:
        base = f"http://127.0.0.1:{server.port}"
        search = SearchPolicy(**{"base_url": base, **policy})
        result = await WebSearchTool(WebPolicy(search=search)).execute("two cats & dogs", **more)
    return result, server


@pytest.mark.parametrize("name", ENGINES)
async def test_an_engine_is_asked_as_it_wants_to_be(name):
    engine, key = ENGINES[name]

    result, _ = await searched(engine, {"provider": name, "api_key": key})

    text = str(result.content)
    assert text.startswith(BANNER)
    assert "Results for `two cats & dogs`" in text
    assert "https://c.test/0" in text
    assert "Cats purr" in text
    assert "<" not in text
    assert (result.error, result.provenance or WebSearchTool.provenance) == (False, Provenance.WEB)


async def test_results_are_as_many_as_asked_for_and_none_is_an_advertisement():
    seven, _ = await searched(brave, {"provider": "brave", "api_key": "BSA-key", "max_results": 7})
    two, _ = await searched(brave, {"provider": "brave", "api_key": "BSA-key"}, count=2)
    plain, _ = await searched(duckduckgo, {"provider": "duckduckgo"})

    assert "7. Cat & 6\n   https://c.test/6\n   Cats purr" in str(seven.content)
    assert "3. " not in str(two.content)
    cats = "1. The Cat\n   https://c.test/0?a=b\n   Cats purr & sleep\n\n2. Cat 1\n   https://c.test/1"
    assert cats in str(plain.content)
    assert "Buy" not in str(plain.content)


REFUSALS = {
    "a wrong key": (brave, {"provider": "brave", "api_key": "old"}, "tools.web.search.apiKey"),
    "a wrong token": (tavily, {"provider": "tavily", "api_key": "tvly-old"}, "tools.web.search.apiKey"),
    "json is not allowed": (
        lambda head: answer(b"", status="403 Forbidden"),
        {"provider": "searxng"},
        "allow the format json",
    ),
    "too often": (lambda head: answer(b"", status="429 Too Many Requests"), {"provider": "searxng"}, "try again later"),
    "no JSON": (lambda head: answer(b"<html>"), {"provider": "searxng"}, "is not JSON"),
    "a riddle": (
        lambda head: answer(b'<div class="anomaly-modal__title">Select all ducks</div>', status="202 Accepted"),
        {"provider": "duckduckgo"},
        "wants to see a person",
    ),
}


@pytest.mark.parametrize(("engine", "policy", "why"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_an_engine_that_does_not_answer_is_told_with_what_to_do(engine, policy, why):
    result, _ = await searched(engine, policy)

    assert result.error
    assert why in str(result.content)
    assert "tools.web.search" in str(result.content)


@pytest.mark.parametrize("told", [{}, {"results": None}, {"results": []}, [], 7, {"web": [1]}])
async def test_nothing_found_is_no_failure(told):
    result, _ = await searched(lambda head: said(told), {"provider": "searxng"})

    assert not result.error
    assert "SearXNG found nothing." in str(result.content)


DUCK = ("DuckDuckGo", "")


@pytest.mark.parametrize(
    ("policy", "expected", "note"),
    [
        ({}, [DUCK], ""),
        ({"api_key": "BSA-1"}, [("Brave", "BSA-1"), DUCK], ""),
        ({"api_key": "tvly-1"}, [("Tavily", "tvly-1"), DUCK], ""),  # it tells whose it is
        ({"api_key": "jina_1"}, [("Jina", "jina_1"), DUCK], ""),
        ({"base_url": "http://s.test"}, [("SearXNG", ""), DUCK], ""),
        ({"api_key": "BSA-1", "base_url": "http://s.test"}, [("Brave", "BSA-1"), ("SearXNG", ""), DUCK], ""),
        (
            {"environ": {"TAVILY_API_KEY": "t", "SEARXNG_BASE_URL": "http://s.test"}},
            [("Tavily", "t"), ("SearXNG", ""), DUCK],
            "",
        ),
        ({"provider": "brave", "environ": {"BRAVE_API_KEY": "b"}}, [("Brave", "b")], ""),
        ({"provider": "searxng", "api_key": "BSA-1", "base_url": "http://s.test"}, [("SearXNG", "")], ""),
        ({"provider": "brave"}, [DUCK], "tools.web.search.apiKey or BRAVE_API_KEY"),
        ({"provider": "searxng"}, [DUCK], "tools.web.search.baseUrl or SEARXNG_BASE_URL"),
        ({"provider": "olostep", "api_key": "o-key"}, [DUCK], "does not support olostep"),
    ],
)
def test_who_is_asked_goes_by_what_is_set_up_and_a_key_goes_to_its_own_engine(policy, expected, note):
    chosen = choose_engines(SearchPolicy(**policy))

    assert [(choice.engine.name, choice.key) for choice in chosen] == expected
    assert all(choice.base == choice.engine.base for choice in chosen if choice.key)
    assert note in chosen[0].note


async def test_an_engine_that_leads_elsewhere_takes_no_key_there():
    async with serving(saying(b'{"results": []}', JSON)) as elsewhere:
        lead = leading_to(f"http://127.0.0.1:{elsewhere.port}/")
        async with serving(lead) as server:
            base = f"http://127.0.0.1:{server.port}"
            policy = SearchPolicy(provider="brave", api_key="BSA-key", base_url=base)

            result = await WebSearchTool(WebPolicy(search=policy)).execute("cats")

    assert result.error
    assert "tools.ssrfWhitelist" in str(result.content)  # only the address in the config is the owner's will
    assert elsewhere.connections == 0
