"""Where a session's window is kept, so that a restart shows a model what it was shown before.

The positions of a window count from the first row of a run's history; in the session they count from its first message
ever. They stand in its metadata, with the last message there was when they were noted: should the count of older
messages have changed since (a damaged line, another writer), that message is found again by its time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nanobot.agent.run.allowance import MOST_ROWS
from nanobot.agent.run.window import Window
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session

_NAME = "window"
_FURTHEST = 10 * MOST_ROWS
"""Messages of the end among which a window is looked for: the last six turns of the busiest session are fewer."""


def open_window(session: Session) -> tuple[list[ChatMessage], Window]:
    """The rows a run begins with, and its window in them. May read older messages; raises StorageError.

    The first of them is message number `session.message_count - len(rows)`.
    """
    found = session.metadata.get(_NAME)
    kept: Mapping[str, Any] = found if isinstance(found, dict) else {}
    window = Window.from_json(kept)
    if kept:
        rows, first = _rows_from(session, window.start)
        shift = _shift(kept.get("at"), rows, first)
        if shift:  # the numbers have changed: it may begin before these rows
            rows, first = _rows_from(session, window.start + shift)
            shift = _shift(kept.get("at"), rows, first)
        if shift is not None:
            return rows, window.moved(shift - first)
    usual = session.message_count - MOST_ROWS
    rows, first = _rows_from(session, usual)
    window = Window(learned=window.learned)
    if usual > session.last_consolidated:  # the beginning was cut off, and should not move with every turn
        keep_window(session, first, window)
    return rows, window


def keep_window(session: Session, first: int, window: Window) -> None:
    """Note the window of a run whose history begins at message number `first`. On the disk with the next message."""
    last = session.last_message
    at = [session.message_count - 1, None if last is None else last.get("timestamp")]
    session.metadata[_NAME] = {**window.moved(first).to_json(), "at": at}


def _rows_from(session: Session, index: int) -> tuple[list[ChatMessage], int]:
    """The rows from this message on, and the number of the first one."""
    rows = session.since(max(index, session.message_count - _FURTHEST))
    return rows, session.message_count - len(rows)


def _shift(noted: object, rows: Sequence[ChatMessage], first: int) -> int | None:
    """By how much the noted message stands elsewhere now; None where it cannot be found."""
    if not isinstance(noted, list) or len(noted) != 2 or not isinstance(noted[0], int):
        return None
    index, time = noted
    if 0 <= index - first < len(rows) and rows[index - first].get("timestamp") == time:
        return 0
    places = [at for at, row in enumerate(rows, first) if row.get("timestamp") == time]
    nearest = min(places, key=lambda at: abs(at - index), default=None)
    return None if nearest is None else nearest - index
