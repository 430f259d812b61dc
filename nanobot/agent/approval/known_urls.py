"""Plain URLs: which ones a model may fetch without approval while untrusted content is in play.

A URL carries data to its host. One that the owner or a third party has written out carries nothing new. Since the
choice of pages on one host can spell something out, the number of URLs of a host is limited in each turn.
"""

from collections.abc import Iterable
from itertools import takewhile

from nanobot.agent.taint import own_provenance, texts_in
from nanobot.agent.tools.access import Access
from nanobot.agent.tools.hooks import PlannedCall
from nanobot.messages.types import ChatMessage, Provenance, ToolFailure, is_outside
from nanobot.providers.base import parse_arguments

MAX_PER_HOST = 8
"""URLs of one host in a turn."""


def is_known_url(access: Access, planned: PlannedCall) -> bool:
    """Return whether the host knows this URL: it was fetched before, or anybody wrote it before the model did. Results
    of our own tools do not count: they may echo the model. Searches the whole window: blocking.
    """
    rows, context = planned.rows, planned.context
    url = _normalize(access.detail)
    fetched, waiting = _fetched_urls(row for row in rows if row.get("turn_id") == context.turn_id)
    fetched |= {other for _, other in takewhile(lambda item: item[0] != planned.call.id, waiting.items())}
    if sum(_host(other) == _host(url) for other in fetched - {url}) >= MAX_PER_HOST:
        return False
    if url in _fetched_urls(rows)[0]:
        return True
    first = next((row for row in rows if url in texts_in(row).lower()), None)
    if first is None or first["role"] == "assistant":
        return False
    provenance = own_provenance(first, context.session_key)
    return is_outside(provenance) or (first["role"] == "user" and provenance == Provenance.OWNER)


def _fetched_urls(rows: Iterable[ChatMessage]) -> tuple[set[str], dict[str, str]]:
    """Return the URLs that were fetched, and by call id those of calls that have no result yet."""
    fetched: set[str] = set()
    waiting: dict[str, str] = {}
    for row in rows:
        for call in row.get("tool_calls") or ():
            if call["function"]["name"] == "web_fetch":
                arguments, _ = parse_arguments(call["function"]["arguments"])
                waiting[call["id"]] = _normalize(str(arguments.get("url", "")))
        url = waiting.pop(row.get("tool_call_id", ""), None)
        if url is not None and row.get("failure") != ToolFailure.NOT_RUN:
            fetched.add(url)
    return fetched, waiting


def _normalize(url: str) -> str:
    return url.partition("://")[2].rstrip("/").lower()


def _host(url: str) -> str:
    return url.partition("/")[0]
