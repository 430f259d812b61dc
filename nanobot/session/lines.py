"""The lines of a session file: encode rows, and decode any bytes to the valid rows in them. Pure, no I/O."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from sys import intern
from typing import Any

from nanobot.messages.types import Origin, Provenance

Row = dict[str, Any]

_OBJECT = re.compile(r'\{\s*"')
_MAX_ATTEMPTS = 1000
"""Positions tried in one damaged line, to bound the time."""
_PADDING = "\ufeff\x00 \t\r\n"
_ROLES = ("system", "user", "assistant", "tool", "function")
_COMMON_VALUES = {word: word for word in (*_ROLES, *map(str, (*Origin, *Provenance)))}
"""Values that occur in most rows."""


def _intern_strings(row: Row) -> Row:
    """Intern names and common values of a decoded object; this halves the memory of a session."""
    return {
        intern(name): _COMMON_VALUES.get(value, value) if type(value) is str else value for name, value in row.items()
    }


_DECODER = json.JSONDecoder(object_hook=_intern_strings)
_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def encode(row: Row) -> bytes:
    """Encode a row as one line. Unknown types become text, lone surrogates their escapes."""
    return _ENCODER.encode(row).encode("utf-8", "backslashreplace") + b"\n"


@dataclass(slots=True)
class DecodedLines:
    """The messages and the last metadata record of some lines."""

    rows: list[Row] = field(default_factory=list)
    record: Row | None = None
    damaged: int = 0
    """Number of lines that have anything else."""


def decode_lines(lines: Iterable[bytes]) -> DecodedLines:
    """Decode lines, such as those of an open file. Never raises, except for what reading them raises."""
    decoded = DecodedLines()
    for line in lines:
        rows, is_sound = decode(line)
        decoded.damaged += not is_sound
        for row in rows:
            if is_record(row):
                decoded.record = row
            else:
                decoded.rows.append(row)
    return decoded


def decode(line: bytes) -> tuple[list[Row], bool]:
    """Return the valid objects of a line, and whether it has nothing else. Never raises."""
    try:
        value = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return _salvage(line)
    return ([value], True) if is_row(value) else ([], False)


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
    junk, at = "", 0
    for _ in range(_MAX_ATTEMPTS):
        start = _OBJECT.search(text, at)
        if start is None:
            break
        junk += text[at : start.start()]
        try:
            value, at = _DECODER.raw_decode(text, start.start())
        except ValueError:
            value, at = None, start.end()
        except RecursionError:  # so is each of the objects inside
            break
        if is_row(value):
            rows.append(value)
        else:
            junk += start[0]
    junk += text[at:]
    return rows, not junk.strip(_PADDING) and "\ufffd" not in text
