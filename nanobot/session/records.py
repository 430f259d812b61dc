"""Metadata records of session files: read tolerantly, written in one format."""

import os
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from nanobot.messages.shown import visible_text
from nanobot.messages.types import ChatMessage
from nanobot.session.file_names import key_of
from nanobot.session.lines import Row, decode, encode
from nanobot.session.reader import Anchor, count_messages, peek
from nanobot.session.types import Session
from nanobot.utils.open_no_follow import open_own

_HEAD_BYTES = 1 << 16
"""How much of a file is read to find its first user message."""
TITLE_CHARS = 60


def session_key(record: Row, path: Path) -> str:
    """Return the key of a record, else the one of the file name."""
    key = record.get("key")
    return key if isinstance(key, str) else key_of(path.stem)


def owner_of(path: Path) -> str | None:
    """Return the key that a file names; None if it names none or cannot be read."""
    try:
        key = peek(path)[0].record.get("key")
    except OSError:
        return None
    return key if isinstance(key, str) else None


def parse_time(text: object) -> datetime | None:
    """Parse a stored time, with or without a zone, to naive local time; None if it is invalid."""
    try:
        time = datetime.fromisoformat(text) if isinstance(text, str) else None
        return time.astimezone().replace(tzinfo=None) if time is not None and time.tzinfo else time
    except (ValueError, OverflowError, OSError):
        return None


def apply_record(session: Session, record: Row, rows: list[Row]) -> None:
    """Set the session's metadata and times from its record, ignoring invalid values."""
    now = datetime.now()
    metadata = record.get("metadata")
    session.metadata = metadata if isinstance(metadata, dict) else {}
    first = parse_time(rows[0].get("timestamp")) if rows else None
    last = parse_time(rows[-1].get("timestamp")) if rows else None
    session.created_at = parse_time(record.get("created_at")) or first or now
    updated = parse_time(record.get("updated_at")) or session.created_at
    session.updated_at = max(updated, last or updated)


def changeable_part(session: Session) -> bytes:
    """Encode the part of a record whose change requires writing it again."""
    return encode({"metadata": session.metadata, "last_consolidated": session.last_consolidated})


def record_of(session: Session, lines: int | None, anchor: Anchor) -> bytes:
    """Encode a record. `lines` is the number of messages before it, None if unknown."""
    record: Row = {
        "_type": "metadata",
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
        "last_consolidated": anchor.lines,
        "offset": anchor.offset,
        "count": anchor.count,
    }
    return encode(record if lines is None else {**record, "lines": lines})


def list_entry(path: Path, archived: bool) -> dict[str, Any] | None:
    """Describe a session for `list_sessions`, counting messages without parsing; None if it cannot be read."""
    try:
        opened, last = peek(path)
        messages = count_messages(path, opened.anchor)
    except OSError:
        return None
    record = opened.record
    modified = datetime.fromtimestamp(opened.fingerprint.mtime_ns / 1e9)
    created = parse_time(record.get("created_at")) or modified
    updated = parse_time(last) or parse_time(record.get("updated_at")) or modified
    return {
        "key": session_key(record, path),
        "created_at": created.isoformat(),
        "updated_at": updated.isoformat(),
        "path": str(path),
        "archived": archived,
        "messages": messages,
        "metadata": metadata if isinstance(metadata := record.get("metadata"), dict) else {},
    }


def session_title(path: Path) -> str:
    """Return the first line of a session's first user message, shortened; empty if its first bytes have none."""
    try:
        with open(open_own(path, os.O_RDONLY), "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:  # deleted since it was listed
        return ""
    rows = [row for line in head.splitlines() for row in decode(line)[0]]
    users = (row for row in rows if row.get("role") == "user" and not row.get("_command"))
    lines = (visible_text(cast(ChatMessage, row)).strip().partition("\n")[0] for row in users)
    texts = (" ".join(line.split()) for line in lines)
    title = next(filter(None, texts), "")
    return title if len(title) <= TITLE_CHARS else f"{title[:TITLE_CHARS].rstrip()}…"
