"""Search engines: how each is asked, and where the results stand in its answer. A new one is a row in ENGINES.

- Brave: https://api-dashboard.search.brave.com/app/documentation/web-search/get-started
- Tavily: https://docs.tavily.com/documentation/api-reference/endpoint/search
- SearXNG: https://docs.searxng.org/dev/search_api.html
- DuckDuckGo has no interface for programs; its page for browsers without scripts is read: https://html.duckduckgo.com
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any
from urllib.parse import parse_qs, quote, urlencode, urljoin, urlsplit

from nanobot.agent.tools.web.policy import SearchPolicy
from nanobot.security.fetching import Answer, Asked

MOST = 20
_TAG = re.compile(r"<[^<>]{0,500}>")
_BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
"""To whom DuckDuckGo shows its page for browsers."""
_LONGEST_QUERY = 400
"""What Brave takes; nobody asks the others for more either."""


class EngineError(Exception):
    """The engine gave no results, and did not say that there are none; the words say why."""


@dataclass(frozen=True, slots=True)
class Found:
    """One result."""

    title: str
    url: str
    snippet: str


@dataclass(frozen=True, slots=True)
class Engine:
    """How to ask one. `ask(base, key, query, count)` makes the request, `read` finds the results in its answer."""

    name: str
    base: str
    ask: Callable[[str, str, str, int], Asked]
    read: Callable[[Answer], Sequence[Found]]
    key_name: str = ""
    """The environment variable that holds its key; empty where it takes none."""
    base_name: str = ""
    """The one that says where it is, where everybody has their own."""


@dataclass(frozen=True, slots=True)
class Choice:
    """An engine to ask, with the key and the address it has. `note` says why it is not the one that was wished for."""

    engine: Engine
    base: str
    key: str = ""
    note: str = ""


def _brave(base: str, key: str, query: str, count: int) -> Asked:
    url = f"{_path(base, '/res/v1/web/search')}?{urlencode({'q': query, 'count': count})}"
    return Asked(url, {"X-Subscription-Token": key, "Accept": "application/json"})


def _tavily(base: str, key: str, query: str, count: int) -> Asked:
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", "Accept": "application/json"}
    body = json.dumps({"query": query, "max_results": count}).encode()
    return Asked(_path(base, "/search"), headers, body)


def _searxng(base: str, key: str, query: str, count: int) -> Asked:
    return Asked(
        f"{_path(base, '/search')}?{urlencode({'q': query, 'format': 'json'})}", {"Accept": "application/json"}
    )


def _duckduckgo(base: str, key: str, query: str, count: int) -> Asked:
    headers = {"Accept": "text/html", "User-Agent": _BROWSER}
    return Asked(f"{_path(base, '/html/')}?q={quote(query, safe='')}", headers)


def _path(base: str, path: str) -> str:
    """Where it is asked: at this path of its base, unless the base is that whole address already."""
    base = base.rstrip("/")
    return base if base.endswith(path.rstrip("/")) else base + path


def _listed(*way: str, snippet: str) -> Callable[[Answer], list[Found]]:
    """Reads results that stand in JSON, this way down, their words under that name."""

    def read(answer: Answer) -> list[Found]:
        try:
            told: Any = json.loads(answer.body)
        except (ValueError, RecursionError):
            raise EngineError("its answer is no JSON") from None
        for name in way:
            told = told.get(name) if isinstance(told, dict) else None
        rows = [row for row in told or () if isinstance(row, dict)] if isinstance(told, list | None) else []
        return [
            Found(str(row.get("title") or ""), str(row.get("url") or ""), str(row.get(snippet) or "")) for row in rows
        ]

    return read


def _read_duckduckgo(answer: Answer) -> list[Found]:
    from lxml import etree, html

    try:
        page = html.document_fromstring(answer.body, parser=html.HTMLParser(encoding="utf-8"))
    except (etree.ParserError, ValueError):
        raise EngineError("its page is empty") from None
    found = []
    for link in page.iter("a"):
        box = next((up for up in link.iterancestors("div") if "result" in (up.get("class") or "").split()), None)
        if "result__a" not in (link.get("class") or "").split() or box is None:
            continue
        url = _led_to(link.get("href") or "")
        if "result--ad" in (box.get("class") or "") or not url:
            continue
        words = [one for one in box.iter() if "result__snippet" in (one.get("class") or "").split()]
        found.append(Found(link.text_content(), url, words[0].text_content() if words else ""))
    if not found and (answer.status == 202 or b"anomaly" in answer.body):
        raise EngineError("it wants to see a person before it answers")
    return found


def _led_to(href: str) -> str:
    """Where a result of DuckDuckGo leads: some name it themselves, some in `uddg`; its advertisements in neither."""
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
        _listed("web", "results", snippet="description"),
        key_name="BRAVE_API_KEY",
    ),
    "tavily": Engine(
        "Tavily", "https://api.tavily.com", _tavily, _listed("results", snippet="content"), key_name="TAVILY_API_KEY"
    ),
    "searxng": Engine("SearXNG", "", _searxng, _listed("results", snippet="content"), base_name="SEARXNG_BASE_URL"),
    "duckduckgo": DUCKDUCKGO,
}
ENVIRONMENT = tuple(name for engine in ENGINES.values() for name in (engine.key_name, engine.base_name) if name)
"""Every variable that an engine looks at."""


def choices(policy: SearchPolicy) -> list[Choice]:
    """Whom to ask, one after the other until one answers.

    A name in the config stands alone; `auto` takes each that has what it needs, and DuckDuckGo, which needs nothing, at
    the end. A key goes to its own engine only.
    """
    if policy.provider != "auto":
        return [_named(policy)]
    found = [] if not policy.api_key else [_with_key_of_config(policy)]
    if policy.base_url:
        found.append(Choice(ENGINES["searxng"], policy.base_url))
    for engine in ENGINES.values():
        key, base = policy.environ.get(engine.key_name, ""), policy.environ.get(engine.base_name, "")
        if (key or base) and all(engine is not choice.engine for choice in found):
            found.append(Choice(engine, base or engine.base, key))
    return [*found, Choice(DUCKDUCKGO, DUCKDUCKGO.base)]


def _with_key_of_config(policy: SearchPolicy) -> Choice:
    engine = ENGINES["tavily" if policy.api_key.startswith("tvly-") else "brave"]
    return Choice(engine, engine.base, policy.api_key)  # an address beside it is of a SearXNG, which shall not see it


def _named(policy: SearchPolicy) -> Choice:
    engine = ENGINES.get(policy.provider)
    if engine is None:
        return _instead(f"nanobot does not speak with {policy.provider}")
    key = (policy.api_key or policy.environ.get(engine.key_name, "")) if engine.key_name else ""
    base = policy.base_url or policy.environ.get(engine.base_name, "") or engine.base
    if engine.key_name and not key:
        return _instead(f"{engine.name} has no key (tools.web.search.apiKey or {engine.key_name})")
    if not base:
        return _instead(f"{engine.name} has no address (tools.web.search.baseUrl or {engine.base_name})")
    return Choice(engine, base, key)


def _instead(why: str) -> Choice:
    return Choice(DUCKDUCKGO, DUCKDUCKGO.base, note=f"{why}, so DuckDuckGo was asked.")


def asked(choice: Choice, query: str, count: int) -> Asked:
    """The request for so many results."""
    return choice.engine.ask(choice.base, choice.key, query[:_LONGEST_QUERY], min(count, MOST))


def results(choice: Choice, answer: Answer, count: int) -> list[Found]:
    """What it found, in plain words, a line each. Raises EngineError where it did not search at all."""
    if answer.status in _REFUSALS or answer.status >= 400:
        raise EngineError(f"it answered {answer.status}, {_REFUSALS.get(answer.status, 'try again later')}")
    found = choice.engine.read(answer)
    return [Found(_line(one.title), one.url.strip(), _line(one.snippet)) for one in found if one.url.strip()][:count]


_REFUSALS: Mapping[int, str] = {
    401: "so the key is wrong: see tools.web.search.apiKey",
    403: "so it does not let us in: a SearXNG must allow the format json, a key must be valid",
    422: "so the key is wrong: see tools.web.search.apiKey",  # Brave's word for it
    429: "so it was asked too often: try again later",
    432: "so what the key pays for is used up",  # Tavily's
}


def _line(text: str) -> str:
    """Words without tags and line breaks, cut to what one reads in a list."""
    plain = " ".join(unescape(_TAG.sub("", text[:5000])).split())
    return f"{plain[:499]}…" if len(plain) > 500 else plain
