"""Words from outside: which rows of a window hold them, and whether a call repeats some of an older turn.

Deterministic, and quick with a window of half a million characters: texts are compared without spaces and case, by
pieces of eight characters first.
"""

import base64
import binascii
import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

from nanobot.messages.types import ChatMessage, Provenance, is_outside, least_trusted, text_of

LONG_ENOUGH = 16
"""Characters, spaces left out, that are no accident when a call and somebody's words have them in common."""
_PIECE = 8
_SHORTEST = 8
"""A whole argument this long is compared as a whole, where it is more than a word."""
_ENCODED = re.compile(r"[A-Za-z0-9+/_-]{24,}={0,2}")
_HEXED = re.compile(r"(?:[0-9a-fA-F]{2}){12,}")
_MOST_DECODED = 200
"""Encoded stretches of one text that are looked into."""


def own_provenance(row: ChatMessage, session_key: str = "") -> str:
    """Where the words of a row themselves came from; of old rows that do not say it, what their kind says."""
    return row.get("own_provenance") or stored_provenance(row, session_key)


def stored_provenance(row: ChatMessage, session_key: str) -> str:
    """How far a row is trusted. Of one from before that was kept: what people wrote in a channel was somebody's."""
    said = row.get("provenance")
    if said is not None:
        return said
    name = str(row.get("name", ""))
    if row["role"] == "tool":
        return next((kind for begin, kind in _OF_TOOLS.items() if name.startswith(begin)), Provenance.TOOL)
    if row["role"] == "user" and ":" in session_key and session_key.partition(":")[0] not in _OWNERS_OWN:
        return Provenance.PERSON
    return Provenance.OWNER


_OF_TOOLS = {"web_": Provenance.WEB, "mcp_": Provenance.MCP, "inbox": Provenance.MAIL}
_OWNERS_OWN = frozenset({"cli", "sdk", "api", "heartbeat", "cron", "unified"})
"""What session keys begin with where nobody but the owner writes."""


def provenance_of(row: ChatMessage, session_key: str) -> Provenance:
    """How far the words of a row are trusted that repeats or holds words from outside. What a model said after it had
    read some may be any of them.
    """
    return least_trusted([own_provenance(row, session_key), row.get("provenance", Provenance.PERSON)])


def entered_rows(rows: Sequence[ChatMessage], turn_id: str) -> list[ChatMessage]:
    """The rows of this turn that brought words from outside, the newest last."""
    return [
        row
        for row in rows
        if row.get("turn_id") == turn_id and row["role"] in ("user", "tool") and is_outside(own_provenance(row))
    ]


def outside_rows(rows: Sequence[ChatMessage], turn_id: str, session_key: str = "") -> list[ChatMessage]:
    """The rows of other turns that hold words from outside, or were said by a model that had just read some; and what
    of them was told beside a message of any turn, as a row of none.
    """
    found: list[ChatMessage] = []
    reading: object = None
    """The turn into which words from outside have come, as far as the rows were read."""
    for row in rows:
        turn = row.get("turn_id")
        if (beside := row.get("context_provenance")) is not None and is_outside(beside):
            context = row.get("runtime_context", "")
            found.append({"role": "tool", "name": "context", "content": context, "provenance": beside})
            reading = turn
        if turn == turn_id:
            continue
        if row["role"] == "assistant":
            after = turn == reading if turn is not None else is_outside(own_provenance(row, session_key))
            if after:
                found.append(row)
        elif is_outside(own_provenance(row, session_key)):
            reading = turn
            found.append(row)
    return found


def repeated_row(
    arguments: Mapping[str, Any], rows: Sequence[ChatMessage], turn_id: str, session_key: str = ""
) -> ChatMessage | None:
    """A row of an older turn whose words from outside these arguments repeat; of several with the same, the newest.

    What the owner has written themselves is nobody else's.
    """
    outside = outside_rows(rows, turn_id, session_key)
    if not outside:
        return None
    own = [row for row in rows if row["role"] == "user" and own_provenance(row, session_key) == Provenance.OWNER]
    owners = [_prepared(said_in(row)).whole for row in own]
    theirs = [(row, _prepared(said_in(row))) for row in reversed(outside)]
    pieces: frozenset[str] = frozenset().union(*(words.pieces for _, words in theirs))
    told = [_normal(text) for leaf in _texts(arguments) for text in _readings(leaf)]
    for stretch in (stretch for text in told for stretch in _stretches(text, pieces)):
        found: ChatMessage | None = next((row for row, words in theirs if stretch in words.whole), None)
        if found is not None and not any(stretch in whole for whole in owners):
            return found
    return None


def _stretches(text: str, pieces: frozenset[str]) -> Iterator[str]:
    """What of a normal text may be somebody's: each long enough stretch around one of these pieces, or all of it."""
    if len(text) < LONG_ENOUGH:
        text = text.strip(";.,!?&")
        if len(text) >= _SHORTEST and not text.isalpha():
            yield text
        return
    for at in range(len(text) - _PIECE + 1):
        if text[at : at + _PIECE] in pieces:
            for begin in range(max(0, at + _PIECE - LONG_ENOUGH), min(at, len(text) - LONG_ENOUGH) + 1):
                yield text[begin : begin + LONG_ENOUGH]


@dataclass(frozen=True, slots=True)
class _Words:
    """All readings of a text as one normal text, and every eighth piece of it: any long stretch holds one whole."""

    whole: str
    pieces: frozenset[str]


@lru_cache(maxsize=64)
def _prepared(text: str) -> _Words:
    whole = "\n".join(_normal(reading) for reading in _readings(text))
    return _Words(whole, frozenset(whole[at : at + _PIECE] for at in range(0, len(whole), _PIECE)))


def _normal(text: str) -> str:
    """Without what a model drops or adds as it repeats: spaces, quotes, marks of Markdown, letters that nobody sees."""
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return "".join(text.translate(_DROPPED).split()).casefold()


_DROPPED = dict.fromkeys(map(ord, "`*_\"'\\\u00ad\u200b\u200c\u200d\u2060\ufeff\u2018\u2019\u201c\u201d"))


def _readings(text: str) -> Iterator[str]:
    """The text, and what it says where it is written in another way."""
    yield text
    if "%" in text and (plain := unquote(text)) != text:
        yield plain
    for index, match in enumerate(_ENCODED.finditer(text)):
        if index == _MOST_DECODED:
            break
        yield from filter(None, (_from_base64(match[0]), _from_hex(match[0])))


def _from_base64(text: str) -> str | None:
    body = text.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return _readable(base64.b64decode(body + "=" * (-len(body) % 4), validate=True))
    except (binascii.Error, ValueError):
        return None


def _from_hex(text: str) -> str | None:
    return _readable(bytes.fromhex(text)) if _HEXED.fullmatch(text) else None


def _readable(data: bytes) -> str | None:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() or "\n" in text else None


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)
    elif isinstance(value, int) and not isinstance(value, bool):
        yield str(value)


def said_in(row: ChatMessage) -> str:
    """The words of a row, and the arguments of the calls in it."""
    calls = [call["function"]["arguments"] for call in row.get("tool_calls") or ()]
    return "\n".join([text_of(row["content"]), *map(_plain, calls)])


def _plain(arguments: str) -> str:
    """The texts in the arguments of a call, as they were meant."""
    try:
        return "\n".join(_texts(json.loads(arguments)))
    except ValueError:
        return arguments
