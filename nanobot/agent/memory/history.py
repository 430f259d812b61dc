"""The log of a memory: HISTORY.md, and `history.jsonl` of the original's later format. Pure, no I/O."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from nanobot.utils.text import json_objects

STAMP = re.compile(r"^\[(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the log. `timestamp` is `YYYY-MM-DD HH:MM`, empty if the file has none."""

    timestamp: str
    content: str


def parse_entries(data: bytes, begin: int = 0) -> list[tuple[HistoryEntry, int]]:
    """Parse HISTORY.md from offset `begin` on, given its bytes from there. Return each entry with the offset where it
    ends. Text before the first stamp is an entry without one.
    """
    text = data.decode("utf-8", "surrogateescape")
    starts = [0, *(match.start() for match in STAMP.finditer(text)), len(text)]
    entries = []
    for start, stop in pairwise(starts):
        raw = text[start:stop].encode("utf-8", "surrogateescape")
        begin += len(raw)
        if piece := raw.decode("utf-8", "replace").strip():
            stamp = STAMP.match(piece)
            when, content = (stamp[1].replace("T", " "), piece[stamp.end() :]) if stamp else ("", piece)
            entries.append((HistoryEntry(when, content.strip()), begin))
    return entries


def entries_of_jsonl(data: bytes) -> Iterator[HistoryEntry]:
    """Parse history.jsonl, one `{cursor, timestamp, content}` per line; other lines are skipped."""
    for row in json_objects(data):
        if isinstance(content := row.get("content"), str):
            yield HistoryEntry(_minute(row.get("timestamp")), content.strip())


def _minute(timestamp: object) -> str:
    try:
        return f"{datetime.fromisoformat(str(timestamp)):%Y-%m-%d %H:%M}"
    except ValueError:
        return ""
