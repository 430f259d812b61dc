"""Deleting a conversation: its file, the traces of its turns, and what the search index holds of it."""

from nanobot.agent.trace.store import TraceStore
from nanobot.errors import NanobotError
from nanobot.session.manager import SessionManager
from nanobot.session.search.index import SearchIndex


def delete_session(sessions: SessionManager, traces: TraceStore, index: SearchIndex, name: str) -> None:
    """Delete a session, live or archived, for good. Blocks. Raises NanobotError if there is none, StorageError."""
    session = sessions.read(name)
    if session is None or not sessions.delete(name):
        raise NanobotError(f"There is no session {name!r}.")
    traces.forget(session.key, {str(row["turn_id"]) for row in session.messages if row.get("turn_id")})
    index.forget_deleted()
