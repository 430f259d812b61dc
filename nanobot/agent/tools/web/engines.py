"""Search engines: how each is queried, and where its answer has the results. A new one is a row in ENGINES.

- Brave: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
- Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
- SearXNG: https://docs.searxng.org/dev/search_api.html
- Jina: https://jina.ai/reader (s.jina.ai)
- Kagi: https://help.kagi.com/kagi/api/search.html
- DuckDuckGo has no API; its page for browsers without scripts is read: https://html.duckduckgo.com
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urljoin, urlsplit

from nanobot.agent.tools.web.policy import SearchPolicy
from nanobot.net.fetch import FetchRequest, FetchResult

MAX_RESULTS = 20
_TAG = re.compile(r"<[^<>]{0,500}>")
_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
"""DuckDuckGo shows that page to browsers only."""
_MAX_QUERY_CHARS = 400
"""Brave's limit; enough for the others."""


class EngineError(Exception):
    """The engine did not search; the text says why."""


@dataclass(frozen=True, slots=True)
class WebResult:
    title: str
    url: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Engine:
    """`ask(base, key, query, count)` makes the request, `read` extracts the results from the answer."""

    name: str
    base: str
    ask: Callable[[str, str, str, int], FetchRequest]
    read: Callable[[FetchResult], Sequence[WebResult]]
    key_name: str = ""
    """The environment variable of its key; empty if it takes none."""
    base_name: str = ""
    """The environment variable of its URL, for self-hosted engines."""


@dataclass(frozen=True, slots=True)
class EngineChoice:
    """An engine with its key and URL. `note` says why it is not the configured one."""

    engine: Engine
    base: str
    key: str = ""
    note: str = ""


def _brave(base: str, key: str, query: str, count: int) -> FetchRequest:
    url = f"{_path(base, '/res/v1/web/search')}?{urlencode({'q': query, 'count': count})}"
    return FetchRequest(url, {"X-Subscription-Token": key, "Accept": "application/json"})


def _tavily(base: str, key: str, query: str, count: int) -> FetchRequest:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": "application/json"}
    body = json.dumps({"query": query, "max_results": count}).encode()
    return FetchRequest(_path(base, "/search"), headers, body)


def _searxng(base: str, key: str, query: str, count: int) -> FetchRequest:
    return FetchRequest(
        f"{_path(base, '/search')}?{urlencode({'q': query, 'format': 'json'})}", {"Accept": "application/json"}
    )


def _jina(base: str, key: str, query: str, count: int) -> FetchRequest:
    headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "X-Respond-With": "no-content"}
    return FetchRequest(f"{base.rstrip('/')}/?{urlencode({'q': query})}", headers)


def _kagi(base: str, key: str, query: str, count: int) -> FetchRequest:
    url = f"{_path(base, '/api/v0/search')}?{urlencode({'q': query, 'limit': count})}"
    return FetchRequest(url, {"Authorization": f"Bot {key}", "Accept": "application/json"})


def _duckduckgo(base: str, key: str, query: str, count: int) -> FetchRequest:
    headers = {"Accept": "text/html", "User-Agent": _BROWSER}
    return FetchRequest(f"{_path(base, '/html/')}?q={quote(query, safe='')}", headers)


def _path(base: str, path: str) -> str:
    """Append the path to the base URL, unless it is included already."""
    base = base.rstrip("/")
    return base if base.endswith(path.rstrip("/")) else base + path


def _read_json(*keys: str, snippet: str) -> Callable[[FetchResult], list[WebResult]]:
    """Return a reader of results in JSON: the keys that lead to the list, and the name of the snippet field."""

    def read(answer: FetchResult) -> list[WebResult]:
        try:
            data: Any = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise EngineError("its answer is not JSON") from None
        for name in keys:
            data = data.get(name) if isinstance(data, dict) else None
        rows = [row for row in data or () if isinstance(row, dict)] if isinstance(data, list | None) else []
        return [
            WebResult(str(row.get("title") or ""), str(row.get("url") or ""), str(row.get(snippet) or ""))
            for row in rows
        ]

    return read


def _read_duckduckgo(answer: FetchResult) -> list[WebResult]:
    from lxml import etree, html

    try:
        page = html.document_fromstring(answer.body, parser=html.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, ValueError):
        raise EngineError("its page is empty") from None
    hits = []
    for link in page.iter("a"):
        box = next((up for up in link.iterancestors("div") if "result" in (up.get("class") or "").split()), None)
        if "result__a" not in (link.get("class") or "").split() or box is None:
            continue
        url = _target_url(link.get("href") or "")
        if "result--ad" in (box.get("class") or "") or not url:
            continue
        snippets = [element for element in box.iter() if "result__snippet" in (element.get("class") or "").split()]
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


DUCKDUCKGO = Engine("DuckDuckGo", "https://html.duckduckgo.com", _duckduckgo, _read_duckduckgo)
ENGINES: dict[str, Engine] = {
    "brave": Engine(
        "Brave",
        "https://api.search.brave.com",
        _brave,
        _read_json("web", "results", snippet="description"),
        key_name="BRAVE_API_KEY",
    ),
    "tavily": Engine(
        "Tavily", "https://api.tavily.com", _tavily, _read_json("results", snippet="content"), key_name="TAVILY_API_KEY"
    ),
    "searxng": Engine("SearXNG", "", _searxng, _read_json("results", snippet="content"), base_name="SEARXNG_BASE_URL"),
    "jina": Engine(
        "Jina", "https://s.jina.ai", _jina, _read_json("data", snippet="description"), key_name="JINA_API_KEY"
    ),
    "kagi": Engine("Kagi", "https://kagi.com", _kagi, _read_json("data", snippet="snippet"), key_name="KAGI_API_KEY"),
    "duckduckgo": DUCKDUCKGO,
}
ENVIRONMENT = tuple(name for engine in ENGINES.values() for name in (engine.key_name, engine.base_name) if name)
"""Every environment variable that an engine uses."""


def choose_engines(policy: SearchPolicy) -> list[EngineChoice]:
    """Return the engines to ask, one after the other until one answers.

    A configured name is the only one; `auto` takes each engine that has what it needs, and at last DuckDuckGo, which
    needs nothing. A key is sent to its own engine only.
    """
    if policy.provider != "auto":
        return [_configured_engine(policy)]
    chosen = [] if not policy.api_key else [_by_configured_key(policy)]
    if policy.base_url:
        chosen.append(EngineChoice(ENGINES["searxng"], policy.base_url))
    for engine in ENGINES.values():
        key, base = policy.environ.get(engine.key_name, ""), policy.environ.get(engine.base_name, "")
        if (key or base) and all(engine is not choice.engine for choice in chosen):
            chosen.append(EngineChoice(engine, base or engine.base, key))
    return [*chosen, EngineChoice(DUCKDUCKGO, DUCKDUCKGO.base)]


def _by_configured_key(policy: SearchPolicy) -> EngineChoice:
    prefixes = {"tvly-": "tavily", "jina_": "jina"}
    engine = ENGINES[next((name for start, name in prefixes.items() if policy.api_key.startswith(start)), "brave")]
    # The configured URL is a SearXNG's, which must not see this key.
    return EngineChoice(engine, engine.base, policy.api_key)


def _configured_engine(policy: SearchPolicy) -> EngineChoice:
    engine = ENGINES.get(policy.provider)
    if engine is None:
        return _fall_back(f"nanobot does not support {policy.provider}")
    key = (policy.api_key or policy.environ.get(engine.key_name, "")) if engine.key_name else ""
    base = policy.base_url or policy.environ.get(engine.base_name, "") or engine.base
    if engine.key_name and not key:
        return _fall_back(f"{engine.name} has no key (tools.web.search.apiKey or {engine.key_name})")
    if not base:
        return _fall_back(f"{engine.name} has no address (tools.web.search.baseUrl or {engine.base_name})")
    return EngineChoice(engine, base, key)


def _fall_back(reason: str) -> EngineChoice:
    return EngineChoice(DUCKDUCKGO, DUCKDUCKGO.base, note=f"{reason}, so DuckDuckGo was asked.")


def make_request(choice: EngineChoice, query: str, count: int) -> FetchRequest:
    """Make the request for `count` results."""
    return choice.engine.ask(choice.base, choice.key, query[:_MAX_QUERY_CHARS], min(count, MAX_RESULTS))


def parse_results(choice: EngineChoice, answer: FetchResult, count: int) -> list[WebResult]:
    """Return the results as plain text in single lines. Raises EngineError if the engine did not search."""
    if answer.status in _STATUS_TEXTS or answer.status >= 400:
        raise EngineError(f"it answered {answer.status}, {_STATUS_TEXTS.get(answer.status, 'try again later')}")
    hits = [hit for hit in choice.engine.read(answer) if hit.url.strip()]
    return [WebResult(_line(hit.title), hit.url.strip(), _line(hit.snippet)) for hit in hits][:count]


_STATUS_TEXTS: Mapping[int, str] = {
    401: "so the key is wrong: see tools.web.search.apiKey",
    403: "so access is denied: a SearXNG must allow the format json, a key must be valid",
    422: "so the key is wrong: see tools.web.search.apiKey",  # Brave's word for it
    429: "so it was asked too often: try again later",
    432: "so the key's plan is used up",  # Tavily's
}


def _line(text: str) -> str:
    """Return the text without tags and line breaks, clipped for a list."""
    plain = " ".join(unescape(_TAG.sub("", text[:5000])).split())
    return f"{plain[:499]}…" if len(plain) > 500 else plain
