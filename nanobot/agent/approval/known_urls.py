"""Plain URLs: which ones a model may fetch without approval while untrusted content is in play.

A URL carries data to its host. One that the owner or a third party has written out carries nothing new. One that the
model composed may: where untrusted content names its host, the owner is asked. A model knows URLs of other hosts by
itself, so a few of those are allowed. Since the choice of pages on one host can spell something out, the number of URLs
of a host is limited in each turn.
"""

from collections.abc import Sequence

from nanobot.agent.taint import own_provenance, texts_in
from nanobot.agent.tools.access import Access
from nanobot.agent.tools.hooks import PlannedCall
from nanobot.messages.types import ChatMessage, FunctionCall, Provenance, ToolFailure, is_outside
from nanobot.providers.base import parse_arguments

MAX_PER_HOST = 8
"""URLs of one host in a turn."""
MAX_UNKNOWN = 4
"""URLs in a turn that occur nowhere in the conversation."""
_MAX_TURNS = 256


class KnownUrls:
    def __init__(self) -> None:
        self._allowed: dict[str, dict[str, bool]] = {}
        """By turn, the allowed URLs, and whether each was known from the conversation."""

    def is_free(self, access: Access, planned: PlannedCall) -> bool:
        """Return whether this plain URL may be fetched without approval. Searches the whole window: blocking."""
        turn, rows, session_key = planned.context.turn_id, planned.rows, planned.context.session_key
        while len(self._allowed) >= _MAX_TURNS and turn not in self._allowed:
            del self._allowed[next(iter(self._allowed))]
        allowed = self._allowed.setdefault(turn, {})
        url = _normalize(access.detail)
        is_known = _is_known(url, rows, session_key)
        if sum(_host(other) == _host(url) and other != url for other in allowed) >= MAX_PER_HOST:
            return False
        if not is_known:
            unknown = sum(not was_known and other != url for other, was_known in allowed.items())
            if unknown >= MAX_UNKNOWN or _is_named_by_untrusted(_host(url), rows, session_key):
                return False
        allowed[url] = is_known
        return True


def _normalize(url: str) -> str:
    return url.partition("://")[2].rstrip("/").lower()


def _host(url: str) -> str:
    return url.partition("/")[0]


def _is_known(url: str, rows: Sequence[ChatMessage], session_key: str) -> bool:
    """Return whether the host knows it: it was fetched before, or anybody wrote it before the model did. Results of our
    own tools do not count: they may echo the model.
    """
    if url in _fetched_urls(rows):
        return True
    for row in rows:
        if url in texts_in(row).lower():
            return row["role"] != "assistant" and _is_source(row, session_key)
    return False


def _fetched_urls(rows: Sequence[ChatMessage]) -> set[str]:
    executed = {row.get("tool_call_id") for row in rows if row.get("failure") != ToolFailure.NOT_RUN}
    calls = [call for row in rows for call in row.get("tool_calls") or () if call["id"] in executed]
    return {_normalize(url) for call in calls if (url := _url_of(call["function"]))}


def _url_of(call: FunctionCall) -> str:
    arguments, problem = parse_arguments(call["arguments"]) if call["name"] == "web_fetch" else ({}, None)
    return str(arguments.get("url", "")) if problem is None else ""


def _is_named_by_untrusted(host: str, rows: Sequence[ChatMessage], session_key: str) -> bool:
    """Return whether untrusted content names the host or its domain, and the owner does not."""
    labels = host.split(".")
    names = [".".join(labels[at:]) for at in range(max(1, len(labels) - 1))] if not labels[-1].isdigit() else [host]
    is_named = False
    for row in rows:
        if row["role"] == "assistant" or not _is_source(row, session_key):
            continue
        if any(name in texts_in(row).lower() for name in names):
            if not is_outside(own_provenance(row, session_key)):
                return False
            is_named = True
    return is_named


def _is_source(row: ChatMessage, session_key: str) -> bool:
    provenance = own_provenance(row, session_key)
    return is_outside(provenance) or (row["role"] == "user" and provenance == Provenance.OWNER)
