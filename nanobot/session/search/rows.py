"""What of a file is searchable: visible messages of sessions and entries of memory files. Pure, no I/O.

Left out are commands, our own texts for the model, runtime context, and results of earlier searches, which would match
themselves.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from nanobot.messages.shown import visible_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Provenance, least_trusted, stored_provenance
from nanobot.security.provenance import IN_PART
from nanobot.session.lines import Row, is_record
from nanobot.utils.text import json_objects

SEARCH_TOOL = "session_search"
OLD_LOG = "history.jsonl"
"""The memory log of later releases of the original: one `{cursor, timestamp, content}` per line."""
LONGEST_RESULT = 4_000
"""Indexed characters of a tool result: pages and files are stored elsewhere, and would bury what people said."""
LONGEST_SAID = 60_000
_MESSAGES = ("message", "message_user")
"""Tools that send a message to people."""

_STAMP = re.compile(r"\[(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})[^\]\n]*\]")
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_GAP = re.compile(r"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class SearchableText:
    """A searchable message or memory entry."""

    time: float
    """In seconds since 1970; 0 if unknown."""
    role: str
    text: str
    trust: Provenance
    turn_id: str = ""


def message_in(row: Row, key: str) -> SearchableText | None:
    """Return what of a session's row is searchable."""
    text = searchable_text(row)
    if not text:
        return None
    time = seconds_of(row.get("timestamp"))
    return SearchableText(time, str(row["role"]), text, trust_in(row, key), str(row.get("turn_id") or ""))


def searchable_text(row: Row) -> str:
    """Return the searchable text of a message; empty if it has none."""
    role = row.get("role")
    if role not in ("user", "assistant", "tool") or row.get("_command") or is_record(row):
        return ""
    if row.get("error") not in (None, INTERRUPTED) or row.get("name") == SEARCH_TOOL:
        return ""
    text = visible_text(as_message(row))
    if role == "assistant" and row.get("tool_calls"):
        text = "\n".join([text, *_sent_texts(row["tool_calls"])])
    return text[: LONGEST_RESULT if role == "tool" else LONGEST_SAID].strip()


def _sent_texts(calls: object) -> Iterator[str]:
    """Yield the messages that these calls send to other chats."""
    for call in calls if isinstance(calls, list) else ():
        try:
            function = call["function"]
            arguments = json.loads(function["arguments"]) if function["name"] in _MESSAGES else {}
            yield from (text for text in [arguments.get("content")] if isinstance(text, str))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # files may hold anything


def entries_in(data: bytes, name: str, changed: float) -> Iterator[SearchableText]:
    """Yield the entries of a memory file: those of a log with their stamps, else paragraphs with the file's date."""
    if name == OLD_LOG:
        for row in json_objects(data):
            if isinstance(content := row.get("content"), str) and content.strip():
                stamp = row.get("timestamp")
                text = f"{stamp}\n{content}" if isinstance(stamp, str) else content
                yield _entry(seconds_of(stamp), text.strip())
        return
    day = _DAY.fullmatch(name.removesuffix(".md"))
    time = seconds_of(day[0]) if day else changed
    for paragraph in _GAP.split(data.decode(errors="replace")):
        text = paragraph.strip()
        if stamped := _STAMP.match(text):
            time = seconds_of(f"{stamped[1]}T{stamped[2]}")
        if text and not text.startswith("#"):
            yield _entry(time, text)


def _entry(time: float, text: str) -> SearchableText:
    """Return an entry of the memory, trusted according to its own marks."""
    marks = (kind for kind, mark in IN_PART.items() if mark in text)
    return SearchableText(time, "memory", text, least_trusted([Provenance.FILE, *marks]))


def seconds_of(timestamp: object) -> float:
    """Convert a stored time to seconds since 1970; 0 if it is invalid."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0


def trust_in(row: Row, key: str) -> Provenance:
    """Return the trust of a message and its turn; for old messages, by their kind."""
    marks = [str(row[name]) for name in ("provenance", "own_provenance") if row.get(name)]
    return least_trusted(marks) if marks else stored_provenance(row, key)


def as_message(row: Row) -> ChatMessage:
    """Cast a row of a file, which may hold anything, to a chat message."""
    return row  # type: ignore[return-value]
