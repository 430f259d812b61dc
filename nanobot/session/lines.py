"""The lines of a session file: rows to bytes, and any bytes to all the sound rows in them. Pure."""

import json
import math
import re
from dataclasses import dataclass, field
from sys import intern
from typing import Any

from nanobot.messages.types import Origin, Provenance

Row = dict[str, Any]

_OBJECT = re.compile(r'\{\s*"')
_STARTS = 1000
"""How many beginnings of an object are tried in one damaged line, so that nobody can make us try for ever."""
_WORDS = {word: word for word in ("system", "user", "assistant", "tool", "function", *map(str, (*Origin, *Provenance)))}
"""Words that rows are full of."""


def _sharing(found: Row) -> Row:
    """The object with its names, and the words that stand in every row, shared with all others: half the memory."""
    return {intern(name): _WORDS.get(value, value) if type(value) is str else value for name, value in found.items()}


_DECODER = json.JSONDecoder(object_hook=_sharing)
_PADDING = "\ufeff\x00 \t\r\n"


def encode(row: Row) -> bytes:
    """One line. What JSON does not know is written as text, half a surrogate pair as its escape."""
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:
        text = json.dumps(_finite(row), ensure_ascii=False, default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


@dataclass(slots=True)
class Found:
    """What some lines held. `record` is the last metadata record; `lines` counts the lines that are none."""

    rows: list[Row] = field(default_factory=list)
    record: Row | None = None
    lines: int = 0
    damaged: list[bytes] = field(default_factory=list)

    def add(self, line: bytes) -> None:
        """Take in one more line. Never raises."""
        if not line.strip(b"\r\n\t \x00"):
            return
        rows, sound = decode(line)
        if not sound:
            self.damaged.append(line.rstrip(b"\r\n"))
        chat = [row for row in rows if not is_record(row)]
        self.rows += chat
        if len(chat) < len(rows):
            self.record = next(row for row in reversed(rows) if is_record(row))
        if chat or not rows:
            self.lines += 1

    def add_all(self, data: bytes) -> None:
        """Take in the lines of these bytes."""
        for line in data.split(b"\n"):
            if line:
                self.add(line)


def decode(line: bytes) -> tuple[list[Row], bool]:
    """The sound objects of a line, and whether that was all there is in it. Never raises."""
    try:
        found = _DECODER.decode(line.decode())
    except (ValueError, RecursionError):
        return _salvaged(line)
    if is_row(found):
        return [found], True
    return [], False


def is_row(found: object) -> bool:
    """Whether this is a chat message or a metadata record, as far as a reader needs it."""
    return isinstance(found, dict) and (isinstance(found.get("role"), str) or is_record(found))


def is_record(found: Row) -> bool:
    """Whether this is a metadata record."""
    return found.get("_type") == "metadata"


def _salvaged(line: bytes) -> tuple[list[Row], bool]:
    """Whole objects in a line that is not one: two in a line, half a one before a whole one, zeros, bad bytes."""
    text = line.decode(errors="replace")
    rows: list[Row] = []
    clean = "\ufffd" not in text
    at = 0
    for _ in range(_STARTS):
        begin = _OBJECT.search(text, at)
        if begin is None:
            break
        clean = clean and not text[at : begin.start()].strip(_PADDING)
        try:
            found, at = _DECODER.raw_decode(text, begin.start())
        except (ValueError, RecursionError):
            found, at = None, begin.end()
        if is_row(found):
            rows.append(found)
        else:
            clean = False
    return rows, clean and bool(rows) and not text[at:].strip(_PADDING)


def _finite(value: Any) -> Any:
    """The value without the numbers JSON has no word for."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
