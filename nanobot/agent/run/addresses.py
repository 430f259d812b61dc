"""Plain addresses: which ones a model may fetch unasked while words from outside are in play.

An address is words, too, and its host hears them. One that the owner or somebody else has written out says nothing new.
One that the model has put together may say something: where words from outside name its host, the owner is asked. Of
other hosts a model knows addresses by itself, so a few of those are let through. And whoever is led from one page of a
host to the next may spell something by the way that is taken; so there is an end to that in each turn.
"""

from collections.abc import Sequence

from nanobot.agent.run.hooks import PlannedCall
from nanobot.agent.run.outside import own_provenance, said_in
from nanobot.agent.tools.reach import Reach
from nanobot.messages.types import ChatMessage, FunctionCall, Provenance, ToolFailure, is_outside
from nanobot.providers.base import parse_arguments

MOST_OF_A_HOST = 8
MOST_UNTOLD = 4
"""Addresses in a turn; of one host, and of hosts that nobody has named."""
_MOST_TURNS = 256


class Addresses:
    """What was let through, by turn."""

    def __init__(self) -> None:
        self._let: dict[str, dict[str, bool]] = {}
        """By turn, the addresses, and whether somebody had told them."""

    def is_free(self, reach: Reach, planned: PlannedCall) -> bool:
        """Whether this plain address may be fetched unasked. Takes as long as looking for a word in the window."""
        turn = planned.context.turn_id
        while len(self._let) >= _MOST_TURNS and turn not in self._let:
            del self._let[next(iter(self._let))]
        let = self._let.setdefault(turn, {})
        address = _bare(reach.detail)
        told = _is_told(address, planned.rows, planned.context.session_key)
        here = [other for other in let if _host(other) == _host(address) and other != address]
        if len(here) >= MOST_OF_A_HOST:
            return False
        if not told:
            untold = [other for other, was_told in let.items() if not was_told and other != address]
            named = _is_named(_host(address), planned.rows, planned.context.session_key)
            if named or len(untold) >= MOST_UNTOLD:
                return False
        let[address] = told
        return True


def _bare(url: str) -> str:
    return url.partition("://")[2].rstrip("/").lower()


def _host(address: str) -> str:
    return address.partition("/")[0]


def _is_told(address: str, rows: Sequence[ChatMessage], session_key: str) -> bool:
    """Whether its host knows it: it was fetched before, or somebody wrote it, the owner or others, before the model
    did. What our own tools say may be an echo of the model's.
    """
    if address in _fetched(rows):
        return True
    for row in rows:
        if address in said_in(row).lower():
            return row["role"] != "assistant" and _is_a_source(row, session_key)
    return False


def _fetched(rows: Sequence[ChatMessage]) -> set[str]:
    """The addresses that were asked for in these rows, and not refused."""
    made = {row.get("tool_call_id") for row in rows if row.get("failure") != ToolFailure.NOT_RUN}
    calls = [call for row in rows for call in row.get("tool_calls") or () if call["id"] in made]
    return {_bare(url) for call in calls if (url := _url_of(call["function"]))}


def _url_of(call: FunctionCall) -> str:
    found, problem = parse_arguments(call["arguments"]) if call["name"] == "web_fetch" else ({}, None)
    return str(found.get("url", "")) if problem is None else ""


def _is_named(host: str, rows: Sequence[ChatMessage], session_key: str) -> bool:
    """Whether words from outside name the host, or the one it belongs to, and no word of the owner's does."""
    labels = host.split(".")
    names = [".".join(labels[at:]) for at in range(max(1, len(labels) - 1))] if not labels[-1].isdigit() else [host]
    named = False
    for row in rows:
        if row["role"] == "assistant" or not _is_a_source(row, session_key):
            continue
        if any(name in said_in(row).lower() for name in names):
            if not is_outside(own_provenance(row, session_key)):
                return False
            named = True
    return named


def _is_a_source(row: ChatMessage, session_key: str) -> bool:
    words = own_provenance(row, session_key)
    return is_outside(words) or (row["role"] == "user" and words == Provenance.OWNER)
