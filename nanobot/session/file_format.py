"""The format of session files: their names, which any file system accepts, and their lines. Pure, no I/O.

A row is encoded as one line; any bytes are decoded to the valid rows in them.
"""

import hashlib
import json
import re
from datetime import datetime
from sys import intern
from typing import Any

from nanobot.messages.types import Origin, Provenance

Row = dict[str, Any]

_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?\Z", re.IGNORECASE)
_LONGEST = 160
"""Bytes; a name may have 255 including `.jsonl.utf-16`, a time or a hash."""
_MAX_ATTEMPTS = 1000
"""Positions tried in one damaged line, to bound the time."""
_PADDING = "\ufeff\x00 \t\r\n"
_ROLES = ("system", "user", "assistant", "tool", "function")
_COMMON_VALUES = {word: word for word in (*_ROLES, *map(str, (*Origin, *Provenance)))}
"""Values that occur in most rows."""


def stem_of(key: str) -> str:
    """Return the preferred stem for a key. A key that is not a valid file name gets a hash appended."""
    stem = _UNSAFE.sub("_", key).strip()
    cut = stem.encode()[:_LONGEST].decode(errors="ignore")
    if cut != stem or not stem or stem.startswith(".") or stem.endswith(".") or _RESERVED.match(stem):
        return f"{cut.strip('. ') or 'session'}-{_hash(key)}"
    return stem


def hashed_stem(key: str) -> str:
    """Return the stem for a key whose preferred one belongs to another key."""
    return f"{stem_of(key)}-{_hash(key)}"


def key_of(stem: str) -> str:
    """Return the key of a file that does not name one: the first `_` was a `:`."""
    return stem.replace("_", ":", 1)


def is_terminal_session(key: str) -> bool:
    """Whether a session belongs to the terminal: `cli:...`, or a key without a channel."""
    return key.startswith("cli:") or ":" not in key


def is_temporary(key: str) -> bool:
    """Whether a session belongs to one request of a program and is deleted soon: `api:NAME:~ID`."""
    return key.startswith("api:") and key.rpartition(":")[2].startswith("~")


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]


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
    junk, at, find_object = "", 0, re.compile(r'\{\s*"').search
    for _ in range(_MAX_ATTEMPTS):
        start = find_object(text, at)
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
