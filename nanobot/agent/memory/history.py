"""The log of a memory: HISTORY.md, and `history.jsonl` of the original's later format. Pure, no I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from nanobot.utils.text import json_objects

STAMP = re.compile(r"^\[(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the log. `timestamp` is `YYYY-MM-DD HH:MM`, empty if the file has none."""

    timestamp: str
    content: str


def parse_entries(text: str) -> Iterator[HistoryEntry]:
    """Parse HISTORY.md. Text before the first stamp is an entry without one."""
    return (_parse_entry(text[begin:end]) for begin, end in _entry_spans(text))


def parse_entries_with_ends(data: bytes, begin: int) -> list[tuple[HistoryEntry, int]]:
    """Parse the bytes of HISTORY.md from offset `begin` on. Return each entry with the offset where it ends."""
    text = data.decode("utf-8", "surrogateescape")
    entries = []
    for start, stop in _entry_spans(text):
        piece = text[start:stop].encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        end = begin + len(text[:stop].encode("utf-8", "surrogateescape"))
        entries.append((_parse_entry(piece), end))
    return entries


def _entry_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each entry of HISTORY.md."""
    starts = [match.start() for match in STAMP.finditer(text)]
    for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
        if text[start:end].strip():
            yield start, end


def _parse_entry(piece: str) -> HistoryEntry:
    piece = piece.strip()
    stamp = STAMP.match(piece)
    return HistoryEntry(stamp[1].replace("T", " ") if stamp else "", piece[stamp.end() if stamp else 0 :].strip())


def entries_of_jsonl(text: str) -> Iterator[HistoryEntry]:
    """Parse history.jsonl, one `{cursor, timestamp, content}` per line; other lines are skipped."""
    for row in json_objects(text.encode()):
        if isinstance(content := row.get("content"), str):
            yield HistoryEntry(_minute(row.get("timestamp")), content.strip())


def parse_history_line(line: str) -> str:
    """Return the content of a line of history.jsonl; empty if it has none."""
    return "".join(entry.content for entry in entries_of_jsonl(line))


def _minute(timestamp: object) -> str:
    try:
        return f"{datetime.fromisoformat(str(timestamp)):%Y-%m-%d %H:%M}"
    except ValueError:
        return ""
