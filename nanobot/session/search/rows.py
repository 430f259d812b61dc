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
from nanobot.session.lines import Row, decode, is_record
from nanobot.utils.text import json_objects

SEARCH_TOOL = "session_search"
OLD_LOG = "history.jsonl"
"""The memory log of later releases of the original: one `{cursor, timestamp, content}` per line."""
LONGEST_RESULT = 4_000
"""Indexed characters of a tool result: pages and files are stored elsewhere, and would bury what people said."""
LONGEST_SAID = 60_000
_MESSAGES = ("message", "message_user")
"""Tools that send a message to people."""

_STAMP = re.compile(rb"^\[(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_GAP = re.compile(rb"\n[ \t\r]*\n")


@dataclass(frozen=True, slots=True)
class SearchableText:
    """A searchable text: offset and size of its line or entry, and which message of the line it is."""

    at: int
    size: int
    nth: int
    time: float
    role: str
    text: str


def messages_in(data: bytes, begin: int) -> Iterator[tuple[int, int, int, Row]]:
    """Yield offset, size, number within the line, and row for the rows in these bytes, which start at `begin`."""
    at = begin
    for line in data.split(b"\n"):
        if line:
            for nth, row in enumerate(decode(line)[0]):
                yield at, len(line), nth, row
        at += len(line) + 1


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


def entries_in(data: bytes, begin: int, name: str, changed: float) -> Iterator[SearchableText]:
    """Yield the entries of a memory file: those of a log with their stamps, else paragraphs with the file's date."""
    if name == OLD_LOG:
        yield from _entries_of_rows(data, begin)
        return
    day = _DAY.fullmatch(name.removesuffix(".md"))
    time = seconds_of(day[0]) if day else changed
    at = 0
    for gap in [*_GAP.finditer(data), None]:
        end = gap.start() if gap else len(data)
        entry = data[at:end]
        stamp = _STAMP.match(entry.lstrip())
        if stamp:
            time = seconds_of(f"{stamp[1].decode()}T{stamp[2].decode()}")
        text = entry.decode(errors="replace").strip()
        if text and not text.startswith("#"):
            yield SearchableText(begin + at, len(entry), 0, time, "memory", text)
        at = gap.end() if gap else end


def format_entry(data: bytes, name: str) -> str:
    """Return an entry of a memory file as readable text."""
    text = data.decode(errors="replace").strip()
    if name != OLD_LOG:
        return text
    [row, *_] = [*json_objects(data), {}]
    return "\n".join(str(row[field]) for field in ("timestamp", "content") if isinstance(row.get(field), str)).strip()


def _entries_of_rows(data: bytes, begin: int) -> Iterator[SearchableText]:
    at = begin
    for line in data.split(b"\n"):
        for row in json_objects(line):
            if isinstance(text := row.get("content"), str) and text.strip():
                yield SearchableText(at, len(line), 0, seconds_of(row.get("timestamp")), "memory", text)
        at += len(line) + 1


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


def trust_in_entry(text: str) -> Provenance:
    """Return the trust of a memory entry according to its own marks."""
    return least_trusted([Provenance.FILE, *(kind for kind, mark in IN_PART.items() if mark in text)])


def as_message(row: Row) -> ChatMessage:
    """Cast a row of a file, which may hold anything, to a chat message."""
    return row  # type: ignore[return-value]
