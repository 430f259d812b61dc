"""What of a stored file can be found: the messages of a conversation that people see, entries of the memory. Pure.

Not found are what was said to nanobot itself, our own words to the model, what was sent beside a message, and what an
earlier search brought: it would find itself.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from nanobot.messages.shown import seen_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Provenance, least_trusted
from nanobot.security.provenance import IN_PART
from nanobot.session.lines import Row, decode, is_record
from nanobot.utils.text import json_objects

SEARCH_TOOL = "session_search"
OLD_LOG = "history.jsonl"
"""The log of a memory as later releases of the original wrote it: `{cursor, timestamp, content}` a line."""
LONGEST_RESULT = 4_000
"""Characters of a tool's result that can be found: a page or a file lies elsewhere, and would bury what people said."""
LONGEST_SAID = 60_000
_MESSAGES = ("message", "message_user")
"""Tools that say something to people elsewhere."""

_STAMP = re.compile(rb"^\[(\d{4}-\d{2}-\d{2})[ T](\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_GAP = re.compile(rb"\n[ \t\r]*\n")
_OF_TOOLS = {"web_": Provenance.WEB, "mcp_": Provenance.MCP, "inbox": Provenance.MAIL}
_OWNERS_OWN = frozenset({"cli", "sdk", "api", "heartbeat", "cron", "unified"})
"""What session keys begin with where nobody but the owner writes, as far as a row does not say whose words it holds."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Something that can be found: the bytes it stands in, and which of the messages in them it is."""

    at: int
    size: int
    nth: int
    time: float
    role: str
    text: str


def messages_in(data: bytes, begin: int) -> Iterator[tuple[int, int, int, Row]]:
    """The rows in these bytes, which begin at that place in their file: place, size, which one in its line, the row."""
    at = begin
    for line in data.split(b"\n"):
        if line:
            for nth, row in enumerate(decode(line)[0]):
                yield at, len(line), nth, row
        at += len(line) + 1


def findable(row: Row) -> str:
    """The words by which a message is found; empty where it is not."""
    role = row.get("role")
    if role not in ("user", "assistant", "tool") or row.get("_command") or is_record(row):
        return ""
    if row.get("error") not in (None, INTERRUPTED) or row.get("name") == SEARCH_TOOL:
        return ""
    text = seen_text(as_message(row))
    if role == "assistant" and row.get("tool_calls"):
        text = "\n".join([text, *_sent(row["tool_calls"])])
    return text[: LONGEST_RESULT if role == "tool" else LONGEST_SAID].strip()


def _sent(calls: object) -> Iterator[str]:
    """What was written to other chats."""
    for call in calls if isinstance(calls, list) else ():
        try:
            function = call["function"]
            told = json.loads(function["arguments"]) if function["name"] in _MESSAGES else {}
            yield from (text for text in [told.get("content")] if isinstance(text, str))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # a row of a file, whatever it holds


def entries_in(data: bytes, begin: int, name: str, changed: float) -> Iterator[Piece]:
    """The entries of a memory file: those of a log by their stamps, else paragraphs of the day it is named by."""
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
            yield Piece(begin + at, len(entry), 0, time, "memory", text)
        at = gap.end() if gap else end


def entry_of(data: bytes, name: str) -> str:
    """An entry of a memory file as people read it."""
    text = data.decode(errors="replace").strip()
    if name != OLD_LOG:
        return text
    [row, *_] = [*json_objects(data), {}]
    return "\n".join(str(row[field]) for field in ("timestamp", "content") if isinstance(row.get(field), str)).strip()


def _entries_of_rows(data: bytes, begin: int) -> Iterator[Piece]:
    at = begin
    for line in data.split(b"\n"):
        for row in json_objects(line):
            if isinstance(text := row.get("content"), str) and text.strip():
                yield Piece(at, len(line), 0, seconds_of(row.get("timestamp")), "memory", text)
        at += len(line) + 1


def seconds_of(timestamp: object) -> float:
    """A stored time as seconds since 1970; 0 where it is none."""
    try:
        return datetime.fromisoformat(timestamp).timestamp() if isinstance(timestamp, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0


def trust_in(row: Row, key: str) -> Provenance:
    """How far the words of a message are trusted, those of its turn included. Of an old one its kind tells."""
    said = [str(row[name]) for name in ("provenance", "own_provenance") if row.get(name)]
    if said:
        return least_trusted(said)
    if row.get("role") == "tool":
        name = str(row.get("name", ""))
        return next((kind for begin, kind in _OF_TOOLS.items() if name.startswith(begin)), Provenance.TOOL)
    if row.get("role") == "user" and key.partition(":")[0] not in _OWNERS_OWN:
        return Provenance.PERSON
    return Provenance.OWNER


def trust_in_entry(text: str) -> Provenance:
    """How far an entry of the memory is trusted by what it says itself."""
    return least_trusted([Provenance.FILE, *(kind for kind, mark in IN_PART.items() if mark in text)])


def as_message(row: Row) -> ChatMessage:
    """A row of a file, whatever it holds, as what it is meant to be."""
    return row  # type: ignore[return-value]
