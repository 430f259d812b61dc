"""Stores a session's window in its metadata, so that after a restart the model sees the same history.

A window's indexes count from the first row of a run's history; stored ones count from the session's first message. The
index and time of the last message are stored with them: if they do not fit any more, since somebody edited the file,
the session gets a new window.
"""

from nanobot.agent.window.state import MAX_ROWS, Window
from nanobot.messages.types import ChatMessage
from nanobot.session.manager import Session

_METADATA_KEY = "window"


def open_window(session: Session) -> tuple[list[ChatMessage], Window]:
    """Load the rows that a run begins with and its window. May read older messages; raises StorageError.

    The first row is message number `session.message_count - len(rows)`.
    """
    stored = session.metadata.get(_METADATA_KEY)
    window = Window.from_json(stored)
    match stored:
        case {"at": [int(number), timestamp]}:
            rows = session.since(max(window.start, session.message_count - 10 * MAX_ROWS))
            first = session.message_count - len(rows)
            if first <= number < session.message_count and rows[number - first].get("timestamp") == timestamp:
                return rows, window.shifted(-first)
    default_start = session.message_count - MAX_ROWS
    rows = session.since(default_start)
    window = Window(learned=window.learned)
    if default_start > session.last_consolidated:  # fix the truncated start, so that it does not move every turn
        save_window(session, session.message_count - len(rows), window)
    return rows, window


def save_window(session: Session, first: int, window: Window) -> None:
    """Set the window of a run whose history begins at message number `first`. Stored with the next message."""
    last = session.last_message
    mark = [session.message_count - 1, None if last is None else last.get("timestamp")]
    session.metadata[_METADATA_KEY] = {**window.shifted(first).to_json(), "at": mark}
