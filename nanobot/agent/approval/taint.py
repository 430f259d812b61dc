"""Untrusted content: which rows contain it, whether a call repeats some from an earlier turn, and whether the model may
have composed a URL for somebody.

Deterministic, and fast for a window of half a million characters: texts are compared without spaces and case, first by
shingles of eight characters.
"""

import base64
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice, takewhile
from typing import Any
from urllib.parse import unquote

from nanobot.agent.tools.base import Access
from nanobot.agent.tools.hooks import PlannedCall
from nanobot.messages.types import (
    ChatMessage,
    Provenance,
    ToolFailure,
    is_outside,
    least_trusted,
    stored_provenance,
    text_of,
)
from nanobot.providers.base import parse_arguments

LONG_ENOUGH = 16
"""A common substring this long (in characters, without spaces) is not a coincidence."""
_SHINGLE = 8
_MIN_WHOLE_ARGUMENT = 8
"""A shorter argument is compared as a whole from this length on, unless it is a single word."""
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_HEX = re.compile(r"(?:[0-9a-fA-F]{2}){12,}")
_MAX_DECODED = 200
"""Base64 or hex strings that are decoded per text."""
MAX_PER_HOST = 8
"""URLs of one host that a turn fetches unasked: the choice of pages can spell something out."""


def own_provenance(row: ChatMessage, session_key: str = "") -> str:
    """Provenance of a row's own text; for rows stored without one, derived from their role."""
    return row.get("own_provenance") or stored_provenance(row, session_key)


def provenance_of(row: ChatMessage, session_key: str) -> Provenance:
    """The lower of a row's own provenance and that of the content it may repeat: model output after untrusted content
    may contain any of it.
    """
    return least_trusted([own_provenance(row, session_key), row.get("provenance", Provenance.PERSON)])


def entered_rows(rows: Sequence[ChatMessage], turn_id: str) -> list[ChatMessage]:
    """The rows of this turn that brought in untrusted content, newest last."""
    return [
        row
        for row in rows
        if row.get("turn_id") == turn_id and row["role"] in ("user", "tool") and is_outside(own_provenance(row))
    ]


def untrusted_rows(rows: Sequence[ChatMessage], turn_id: str, session_key: str = "") -> list[ChatMessage]:
    """Rows of earlier turns with untrusted content: external input, model output derived from it, and untrusted runtime
    context (of any turn, as a row without a turn).
    """
    untrusted: list[ChatMessage] = []
    untrusted_turn: object = None
    """The turn that has read untrusted content so far."""
    for row in rows:
        turn = row.get("turn_id")
        if (context_provenance := row.get("context_provenance")) is not None and is_outside(context_provenance):
            context = row.get("runtime_context", "")
            untrusted.append({"role": "tool", "name": "context", "content": context, "provenance": context_provenance})
            untrusted_turn = turn
        if turn == turn_id:
            continue
        if row["role"] == "assistant":
            after = turn == untrusted_turn if turn is not None else is_outside(own_provenance(row, session_key))
            if after:
                untrusted.append(row)
        elif is_outside(own_provenance(row, session_key)):
            untrusted_turn = turn
            untrusted.append(row)
    return untrusted


def repeated_row(
    arguments: Mapping[str, Any], rows: Sequence[ChatMessage], turn_id: str, session_key: str = ""
) -> ChatMessage | None:
    """The newest row of an earlier turn whose untrusted content is repeated in these arguments.

    Text that the owner has written too does not count.
    """
    untrusted = [(row, _prepare(texts_in(row))) for row in untrusted_rows(rows, turn_id, session_key)]
    if not untrusted:
        return None
    owner_rows = [row for row in rows if row["role"] == "user" and own_provenance(row, session_key) == Provenance.OWNER]
    owner_texts = [_prepare(texts_in(row))[0] for row in owner_rows]
    shingles: frozenset[str] = frozenset().union(*(shingles for _, (_, shingles) in untrusted))
    for argument in (_normalize(text) for leaf in _strings(arguments) for text in _decodings(leaf)):
        for candidate in _candidates(argument, shingles):
            match: ChatMessage | None = next((row for row, (text, _) in reversed(untrusted) if candidate in text), None)
            if match is not None and not any(candidate in text for text in owner_texts):
                return match
    return None


def _candidates(text: str, shingles: frozenset[str]) -> Iterator[str]:
    """Substrings of a normalized text to look for: each of LONG_ENOUGH around a known shingle, or the whole of a short
    one.
    """
    if len(text) < LONG_ENOUGH:
        text = text.strip(";.,!?&")
        if len(text) >= _MIN_WHOLE_ARGUMENT and not text.isalpha():
            yield text
        return
    for at in range(len(text) - _SHINGLE + 1):
        if text[at : at + _SHINGLE] in shingles:
            for begin in range(max(0, at + _SHINGLE - LONG_ENOUGH), min(at, len(text) - LONG_ENOUGH) + 1):
                yield text[begin : begin + LONG_ENOUGH]


@lru_cache(maxsize=64)
def _prepare(text: str) -> tuple[str, frozenset[str]]:
    """A text with its decodings, normalized, and its non-overlapping shingles: any long substring contains one."""
    prepared = "\n".join(_normalize(decoded) for decoded in _decodings(text))
    return prepared, frozenset(prepared[at : at + _SHINGLE] for at in range(0, len(prepared), _SHINGLE))


def _normalize(text: str) -> str:
    """Remove what a model drops or adds when it repeats a text: spaces, quotes, Markdown marks, invisible letters."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return "".join(text.translate(_DROPPED).split()).casefold()


_DROPPED = dict.fromkeys(map(ord, "`*_\"'\\\u00ad\u200b\u200c\u200d\u2060\ufeff\u2018\u2019\u201c\u201d"))


def _decodings(text: str) -> Iterator[str]:
    """The text, and its URL-decoded, base64-decoded and hex-decoded forms."""
    yield text
    if "%" in text and (plain := unquote(text)) != text:
        yield plain
    for match in islice(_ENCODED.finditer(text), _MAX_DECODED):
        letters = match[0].rstrip("=").translate(_URL_SAFE)
        with suppress(ValueError):
            yield from _readable(base64.b64decode(letters + "=" * (-len(letters) % 4), validate=True))
        if _HEX.fullmatch(match[0]):
            yield from _readable(bytes.fromhex(match[0]))


_URL_SAFE = str.maketrans("-_", "+/")


def _readable(data: bytes) -> Iterator[str]:
    with suppress(UnicodeDecodeError):
        text = data.decode()
        if text.isprintable() or "\n" in text:
            yield text


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def texts_in(row: ChatMessage) -> str:
    """The text of a row and the arguments of its calls."""
    texts = [text_of(row["content"])]
    for call in row.get("tool_calls") or ():
        arguments = call["function"]["arguments"]
        try:
            texts += _strings(json.loads(arguments))
        except (ValueError, RecursionError):
            texts.append(arguments)
    return "\n".join(texts)


def is_known_url(access: Access, planned: PlannedCall) -> bool:
    """Whether a plain URL carries nothing new to its host: it was fetched before, or anybody wrote it before the model
    did. Results of our own tools do not count: they may echo the model. Searches the whole window: blocking.
    """
    rows, context = planned.rows, planned.context
    url = _normalize_url(access.detail)
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
                waiting[call["id"]] = _normalize_url(str(arguments.get("url", "")))
        url = waiting.pop(row.get("tool_call_id", ""), None)
        if url is not None and row.get("failure") != ToolFailure.NOT_RUN:
            fetched.add(url)
    return fetched, waiting


def _normalize_url(url: str) -> str:
    return url.partition("://")[2].rstrip("/").lower()


def _host(url: str) -> str:
    return url.partition("/")[0]
