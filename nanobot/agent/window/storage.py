"""Stores a session's window in its metadata, so that after a restart the model sees the same history.

A window's indexes count from the first row of a run's history; stored ones count from the session's first message. The
index and time of the last message are stored with them: if the number of older messages changes (a damaged line,
another writer), that message is found again by its time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nanobot.agent.window.state import Window
from nanobot.agent.window.token_budget import MAX_ROWS
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session

_METADATA_KEY = "window"
_MAX_ROWS_BACK = 10 * MAX_ROWS
"""How many of the last messages are searched for the window's start."""


def open_window(session: Session) -> tuple[list[ChatMessage], Window]:
    """Load the rows that a run begins with and its window. May read older messages; raises StorageError.

    The first row is message number `session.message_count - len(rows)`.
    """
    stored = session.metadata.get(_METADATA_KEY)
    stored_window: Mapping[str, Any] = stored if isinstance(stored, dict) else {}
    window = Window.from_json(stored_window)
    if stored_window:
        rows, first = _rows_from(session, window.start)
        shift = _shift(stored_window.get("at"), rows, first)
        if shift:  # the numbering changed: the window may begin before these rows
            rows, first = _rows_from(session, window.start + shift)
            shift = _shift(stored_window.get("at"), rows, first)
        if shift is not None:
            return rows, window.shifted(shift - first)
    default_start = session.message_count - MAX_ROWS
    rows, first = _rows_from(session, default_start)
    window = Window(learned=window.learned)
    if default_start > session.last_consolidated:  # fix the truncated start, so that it does not move every turn
        save_window(session, first, window)
    return rows, window


def save_window(session: Session, first: int, window: Window) -> None:
    """Set the window of a run whose history begins at message number `first`. Stored with the next message."""
    last = session.last_message
    mark = [session.message_count - 1, None if last is None else last.get("timestamp")]
    session.metadata[_METADATA_KEY] = {**window.shifted(first).to_json(), "at": mark}


def _rows_from(session: Session, index: int) -> tuple[list[ChatMessage], int]:
    rows = session.since(max(index, session.message_count - _MAX_ROWS_BACK))
    return rows, session.message_count - len(rows)


def _shift(mark: object, rows: Sequence[ChatMessage], first: int) -> int | None:
    """By how much the marked message has moved; None if it cannot be found."""
    if not isinstance(mark, list) or len(mark) != 2 or not isinstance(mark[0], int):
        return None
    index, time = mark
    if 0 <= index - first < len(rows) and rows[index - first].get("timestamp") == time:
        return 0
    candidates = [position for position, row in enumerate(rows, first) if row.get("timestamp") == time]
    nearest = min(candidates, key=lambda position: abs(position - index), default=None)
    return None if nearest is None else nearest - index
