"""The `web_search` tool, and the search engines it asks. A new one is a row in ENGINES.

- Brave: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
- Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
- SearXNG: https://docs.searxng.org/dev/search_api.html
- Jina: https://jina.ai/reader (s.jina.ai)
- Kagi: https://help.kagi.com/kagi/api/search.html
- DuckDuckGo has no API; its page for browsers without scripts is read: https://html.duckduckgo.com
"""

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html import unescape
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

from nanobot.agent.tools.base import Effect, Tool, ToolResult, integer, string, takes
from nanobot.agent.tools.web.policy import BANNER, SearchPolicy, WebPolicy
from nanobot.errors import NanobotError
from nanobot.messages.types import Provenance
from nanobot.net.fetch import FetchRequest, FetchResult

MAX_RESULTS = 20
_MAX_QUERY_CHARS = 400
"""Brave's limit; enough for the others."""
_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
_STATUS_TEXTS: Mapping[int, str] = {
    401: "so the key is wrong: see tools.web.search.apiKey",
    403: "so access is denied: a SearXNG must allow the format json, a key must be valid",
    422: "so the key is wrong: see tools.web.search.apiKey",  # Brave's word for it
    429: "so it was asked too often: try again later",
    432: "so the key's plan is used up",  # Tavily's
}


class EngineError(Exception):
    """The engine did not search; the text says why."""


@dataclass(frozen=True, slots=True)
class WebResult:
    title: str
    url: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Engine:
    """`query` and `count` name parameters (empty: it has none), `more` are further ones; `posts`: as a JSON body.

    In `headers`, `{key}` stands for the key. `results` are the keys that lead to the results in its JSON; empty for
    DuckDuckGo's page. `key_name` and `base_name` are the environment variables of its key and of its URL.
    """

    name: str
    base: str
    path: str
    query: str = "q"
    count: str = ""
    more: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    posts: bool = False
    results: tuple[str, ...] = ()
    snippet: str = ""
    key_name: str = ""
    base_name: str = ""


ENGINES: dict[str, Engine] = {
    "brave": Engine(
        "Brave", "https://api.search.brave.com", "/res/v1/web/search", count="count", key_name="BRAVE_API_KEY",
        headers={"X-Subscription-Token": "{key}"}, results=("web", "results"), snippet="description",
    ),
    "tavily": Engine(
        "Tavily", "https://api.tavily.com", "/search", "query", "max_results", posts=True, key_name="TAVILY_API_KEY",
        headers={"Authorization": "Bearer {key}", "Content-Type": "application/json"},
        results=("results",), snippet="content",
    ),
    "searxng": Engine(
        "SearXNG", "", "/search", more={"format": "json"}, base_name="SEARXNG_BASE_URL",
        results=("results",), snippet="content",
    ),
    "jina": Engine(
        "Jina", "https://s.jina.ai", "/", key_name="JINA_API_KEY",
        headers={"Authorization": "Bearer {key}", "X-Respond-With": "no-content"},
        results=("data",), snippet="description",
    ),
    "kagi": Engine(
        "Kagi", "https://kagi.com", "/api/v0/search", count="limit", key_name="KAGI_API_KEY",
        headers={"Authorization": "Bot {key}"}, results=("data",), snippet="snippet",
    ),
    "duckduckgo": Engine(  # shows that page to browsers only
        "DuckDuckGo", "https://html.duckduckgo.com", "/html/", headers={"Accept": "text/html", "User-Agent": _BROWSER}
    ),
}  # fmt: skip
ENVIRONMENT = tuple(name for engine in ENGINES.values() for name in (engine.key_name, engine.base_name) if name)
"""Every environment variable that an engine uses."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine with its key and URL. `note` says why it is not the configured one."""

    engine: Engine
    base: str
    key: str = ""
    note: str = ""


def choose_engines(policy: SearchPolicy) -> list[EngineChoice]:
    """Return the engines to ask, one after the other until one answers.

    A configured name is the only one; `auto` takes each engine that has what it needs, and at last DuckDuckGo, which
    needs nothing. A key is sent to its own engine only.
    """
    if policy.provider != "auto":
        return [_configured_engine(policy)]
    chosen: dict[str, EngineChoice] = {}
    if policy.api_key:  # the configured URL is a SearXNG's, which must not see this key
        prefixes = {"tvly-": "tavily", "jina_": "jina"}
        name = next((name for start, name in prefixes.items() if policy.api_key.startswith(start)), "brave")
        chosen[name] = EngineChoice(ENGINES[name], ENGINES[name].base, policy.api_key)
    if policy.base_url:
        chosen["searxng"] = EngineChoice(ENGINES["searxng"], policy.base_url)
    for name, engine in ENGINES.items():
        key, base = policy.environ.get(engine.key_name, ""), policy.environ.get(engine.base_name, "")
        if key or base:
            chosen.setdefault(name, EngineChoice(engine, base or engine.base, key))
    return [*chosen.values(), _duckduckgo()]


def _configured_engine(policy: SearchPolicy) -> EngineChoice:
    engine = ENGINES.get(policy.provider)
    if engine is None:
        return _duckduckgo(f"nanobot does not support {policy.provider}")
    key = (policy.api_key or policy.environ.get(engine.key_name, "")) if engine.key_name else ""
    base = policy.base_url or policy.environ.get(engine.base_name, "") or engine.base
    if engine.key_name and not key:
        return _duckduckgo(f"{engine.name} has no key (tools.web.search.apiKey or {engine.key_name})")
    if not base:
        return _duckduckgo(f"{engine.name} has no address (tools.web.search.baseUrl or {engine.base_name})")
    return EngineChoice(engine, base, key)


def _duckduckgo(reason: str = "") -> EngineChoice:
    engine = ENGINES["duckduckgo"]
    return EngineChoice(engine, engine.base, note=f"{reason}, so DuckDuckGo was asked." if reason else "")


def _make_request(choice: EngineChoice, query: str, count: int) -> FetchRequest:
    """Make the request for `count` results."""
    engine, base = choice.engine, choice.base.rstrip("/")
    path = engine.path.rstrip("/")
    url = base if path and base.endswith(path) else base + engine.path
    headers = {"Accept": "application/json"} | {
        name: value.format(key=choice.key) for name, value in engine.headers.items()
    }
    parameters: dict[str, Any] = {engine.query: query[:_MAX_QUERY_CHARS], **engine.more}
    if engine.count:
        parameters[engine.count] = min(count, MAX_RESULTS)
    if engine.posts:
        return FetchRequest(url, headers, json.dumps(parameters).encode())
    return FetchRequest(f"{url}?{urlencode(parameters)}", headers)


def _parse_results(choice: EngineChoice, answer: FetchResult, count: int) -> list[WebResult]:
    """Return the results as plain text in single lines. Raises EngineError if the engine did not search."""
    if answer.status in _STATUS_TEXTS or answer.status >= 400:
        raise EngineError(f"it answered {answer.status}, {_STATUS_TEXTS.get(answer.status, 'try again later')}")
    hits = _read_json(choice.engine, answer) if choice.engine.results else _read_duckduckgo(answer)
    found = (WebResult(_line(hit.title), hit.url.strip(), _line(hit.snippet)) for hit in hits)
    return [hit for hit in found if hit.url][:count]


def _read_json(engine: Engine, answer: FetchResult) -> list[WebResult]:
    try:
        data: Any = json.loads(answer.body)
    except (ValueError, RecursionError):
        raise EngineError("its answer is not JSON") from None
    for name in engine.results:
        data = data.get(name) if isinstance(data, dict) else None
    return [
        WebResult(*(str(row.get(name) or "") for name in ("title", "url", engine.snippet)))
        for row in (data if isinstance(data, list) else ())
        if isinstance(row, dict)
    ]


def _read_duckduckgo(answer: FetchResult) -> list[WebResult]:
    from lxml import etree, html

    try:
        page = html.document_fromstring(answer.body, parser=html.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, ValueError):
        raise EngineError("its page is empty") from None
    hits = []
    for link in page.find_class("result__a"):
        box = next((up for up in link.iterancestors("div") if "result" in (up.get("class") or "").split()), None)
        url = _target_url(link.get("href") or "")
        if box is None or "result--ad" in (box.get("class") or "") or not url:
            continue
        snippets = box.find_class("result__snippet")
        hits.append(WebResult(link.text_content(), url, snippets[0].text_content() if snippets else ""))
    if not hits and (answer.status == 202 or b"anomaly" in answer.body):
        raise EngineError("it wants to see a person first (a CAPTCHA)")
    return hits


def _target_url(href: str) -> str:
    """Return where a DuckDuckGo result leads: named directly or in `uddg`; empty for advertisements."""
    parts = urlsplit(urljoin("https://duckduckgo.com/", href))
    if (parts.hostname or "").endswith("duckduckgo.com"):
        return parse_qs(parts.query).get("uddg", [""])[0] if parts.path.startswith("/l/") else ""
    return parts.geturl() if parts.scheme in ("http", "https") else ""


def _line(text: str) -> str:
    """Return the text without tags and line breaks, clipped for a list."""
    plain = " ".join(unescape(re.sub(r"<[^<>]{0,500}>", "", text[:5000])).split())
    return f"{plain[:499]}…" if len(plain) > 500 else plain


_TIMEOUT_S = 12.0
"""Per engine; then the next one is asked."""


class WebSearchTool(Tool):
    name = "web_search"
    description = "Search the web; returns titles, URLs and snippets. Use web_fetch to read a page."
    parameters = takes(
        "query", query=string("Words to search for"), count=integer("Number of results", minimum=1, maximum=MAX_RESULTS)
    )
    effect = Effect.READ
    provenance = Provenance.WEB

    def __init__(self, policy: WebPolicy) -> None:
        self._count = policy.search.max_results
        self._choices = choose_engines(policy.search)
        self._fetcher = policy.fetcher(_TIMEOUT_S, owned=[choice.base for choice in self._choices])

    async def execute(self, query: str, count: int | None = None) -> ToolResult:
        """Ask one engine after the other until one answers. Cancelling closes the connection."""
        limit, failures = count or self._count, []
        if not query.strip():
            return ToolResult.failed("The query is empty. Say what to search for.")
        for choice in self._choices:
            try:
                answer = await self._fetcher.fetch(_make_request(choice, query.strip(), limit))
                hits = await asyncio.to_thread(_parse_results, choice, answer, limit)
            except (EngineError, NanobotError) as error:
                failures.append(f"{choice.engine.name}: {str(error).rstrip('.')}.")
                continue
            engine, notes = choice.engine.name, [note for note in (choice.note, *failures) if note]
            head = f"Results for `{query.strip()}` ({engine}):" if hits else f"{engine} found nothing."
            rows = [
                "\n   ".join(line for line in (f"{number}. {hit.title or hit.url}", hit.url, hit.snippet) if line)
                for number, hit in enumerate(hits, 1)
            ]
            return ToolResult("\n\n".join([BANNER, *notes, head, *rows]))
        advice = "Set up another in the config (tools.web.search), or fetch a known page with web_fetch."
        failed = ToolResult.failed(f"No search engine answered. {' '.join(failures)} {advice}")
        return replace(failed, provenance=Provenance.WEB)
