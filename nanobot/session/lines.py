"""The lines of a session file: encode rows, and decode any bytes to the valid rows in them. Pure, no I/O."""

import json
import math
import re
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any

from nanobot.messages.types import Origin, Provenance

Row = dict[str, Any]

_OBJECT = re.compile(r'\{\s*"')
_MAX_ATTEMPTS = 1000
"""Positions tried in one damaged line, to bound the time."""
_COMMON_VALUES = {
    word: word for word in ("system", "user", "assistant", "tool", "function", *map(str, (*Origin, *Provenance)))
}
"""Values that occur in most rows."""


def _intern_strings(row: Row) -> Row:
    """Intern names and common values of a decoded object; this halves the memory of a session."""
    return {
        intern(name): _COMMON_VALUES.get(value, value) if type(value) is str else value for name, value in row.items()
    }


_DECODER = json.JSONDecoder(object_hook=_intern_strings)
_PADDING = "\ufeff\x00 \t\r\n"


def encode(row: Row) -> bytes:
    """Encode a row as one line. Unknown types become text, lone surrogates their escapes."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_without_nan(row), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


@dataclass(slots=True)
class DecodedLines:
    """The content of some lines. `record` is the last metadata record."""

    rows: list[Row] = field(default_factory=list)
    record: Row | None = None
    damaged: list[bytes] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        """Decode one more line. Never raises."""
        if not line.strip(b"\r\n\t \x00"):
            return
        rows, sound = decode(line)
        if not sound:
            self.damaged.append(line.rstrip(b"\r\n"))
        for row in rows:
            if is_record(row):
                self.record = row
            else:
                self.rows.append(row)

    def add_all(self, data: bytes) -> None:
        """Decode the lines of these bytes."""
        for line in data.split(b"\n"):
            if line:
                self.add(line)


def decode(line: bytes) -> tuple[list[Row], bool]:
    """Return the valid objects of a line, and whether the line has nothing else. Never raises."""
    try:
        value = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return _salvage(line)
    if is_row(value):
        return [value], True
    return [], False


def is_row(value: object) -> bool:
    """Whether a value is a chat message or a metadata record."""
    return isinstance(value, dict) and (isinstance(value.get("role"), str) or is_record(value))


def is_record(value: Row) -> bool:
    """Whether a row is a metadata record."""
    return value.get("_type") == "metadata"


def parse_time(text: object) -> datetime | None:
    """Parse a stored time, with or without a zone, to naive local time; None if it is invalid."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        return time.astimezone().replace(tzinfo=None) if time is not None and time.tzinfo else time
    except (ValueError, OverflowError, OSError):
        return None


def _salvage(line: bytes) -> tuple[list[Row], bool]:
    """Return the whole objects in a damaged line: several in one line, or one after a truncated one or zeros."""
    text = line.decode(errors="replace")
    rows: list[Row] = []
    is_clean = "\ufffd" not in text
    at = 0
    for _ in range(_MAX_ATTEMPTS):
        start = _OBJECT.search(text, at)
        if start is None:
            break
        is_clean = is_clean and not text[at : start.start()].strip(_PADDING)
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except ValueError:
            value, at = None, start.end()
        except RecursionError:  # so is each of the objects inside
            break
        if is_row(value):
            rows.append(value)
        else:
            is_clean = False
    return rows, is_clean and bool(rows) and not text[at:].strip(_PADDING)


def _without_nan(value: Any) -> Any:
    """Replace numbers that JSON does not have by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_nan(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return value
