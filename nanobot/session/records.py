"""Metadata records: what a session's file says of itself, read with care and written in one shape."""

from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.session.lines import Row, encode
from nanobot.session.reader import Anchor, peek
from nanobot.session.stems import key_of
from nanobot.session.types import Session


def key_in(record: Row, path: Path) -> str:
    """The key a file says, else the one its name says."""
    key = record.get("key")
    return key if isinstance(key, str) else key_of(path.stem)


def owner_of(path: Path) -> str | None:
    """The key that a file says it belongs to, if it says so."""
    try:
        key = peek(path)[0].record.get("key")
    except OSError:
        return None
    return key if isinstance(key, str) else None


def moment(text: object) -> datetime | None:
    """A time as it was written, with or without a zone, as local time without one."""
    try:
        moment = datetime.fromisoformat(text) if isinstance(text, str) else None
        return moment.astimezone().replace(tzinfo=None) if moment is not None and moment.tzinfo else moment
    except (ValueError, OverflowError, OSError):
        return None


def apply_record(session: Session, record: Row, rows: list[Row]) -> None:
    """Give the session what its metadata record says, as far as it makes sense."""
    now = datetime.now()
    metadata = record.get("metadata")
    session.metadata = metadata if isinstance(metadata, dict) else {}
    first = moment(rows[0].get("timestamp")) if rows else None
    last = moment(rows[-1].get("timestamp")) if rows else None
    session.created_at = moment(record.get("created_at")) or first or now
    said = moment(record.get("updated_at")) or session.created_at
    session.updated_at = max(said, last or said)


def changeable(session: Session) -> bytes:
    """What a metadata record is written again for."""
    return encode({"metadata": session.metadata, "last_consolidated": session.last_consolidated})


def record_of(session: Session, lines: int | None, anchor: Anchor) -> bytes:
    """The line. `lines` is how many messages stand before it, None where we do not know."""
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


def listing_of(path: Path, archived: bool) -> dict[str, Any] | None:
    """A session for a list of them, its messages counted and not read; None where the file cannot be opened."""
    try:
        opened, last = peek(path)
    except OSError:
        return None
    record = opened.record
    seen = datetime.fromtimestamp(opened.print.mtime_ns / 1e9)
    created = moment(record.get("created_at")) or seen
    updated = moment(last) or moment(record.get("updated_at")) or seen
    return {
        "key": key_in(record, path),
        "created_at": created.isoformat(),
        "updated_at": updated.isoformat(),
        "path": str(path),
        "archived": archived,
        "messages": opened.lines,
    }
