"""Roll-over: archive a session that is too large or too old and continue in a fresh one.

The fresh session begins with a note to the model that quotes the last turns; session_search finds the archived one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nanobot.agent.engine.transcript import pending_calls
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Origin, least_trusted, shown_text
from nanobot.security.secrets import redact_known
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.text import clip

_RECENT_TURNS = 6
"""Turns of the old session quoted in the fresh one."""
_MAX_CHARS = 1_200
"""Limit of each quoted message."""
_NOTE = """\
This conversation became {why} and goes on in a fresh session. The old one is {name}; session_search finds what was \
said in it. The last messages, as context only; do not act on them again:"""


@dataclass(frozen=True, slots=True)
class RollOver:
    """Limits of a session's size and age; 0 disables one."""

    max_bytes: int
    max_days: int
    on_archived: Callable[[str, Path], Awaitable[None]]
    """Called with the session key and the path of the archived file."""

    def reason(self, session: Session, now: datetime) -> str:
        """Why the session must roll over ("long" or "old"); empty if it need not."""
        stored = session.stored.fingerprint if session.stored is not None else None
        if stored is None:
            return ""
        if self.max_bytes and stored.size > self.max_bytes:
            return "long"
        age = now.replace(tzinfo=None) - session.created_at
        return "old" if self.max_days and age > timedelta(days=self.max_days) else ""

    async def start_fresh(self, sessions: SessionManager, session: Session, reason: str) -> str | None:
        """Archive a locked session and continue it empty under the same key. Return the archived file's stem.

        Return None, and change nothing, while a call waits for its result or if the file cannot be moved.
        """
        history = session.get_history()
        if pending_calls(history):
            return None
        metadata = {name: value for name, value in session.metadata.items() if name != "window"}
        try:
            path = await finish(asyncio.to_thread(sessions.archive, session.key))
        except StorageError:
            return None
        if path is None:
            return None
        session.metadata = metadata
        if note := _note(history, _NOTE.format(why=reason, name=path.stem)):
            await sessions.append(session, *note)
        await self.on_archived(session.key, path)
        return path.stem


def _note(history: Sequence[ChatMessage], head: str) -> list[ChatMessage]:
    """The note that begins the fresh session, if there is anything to quote."""
    rows = [row for row in history if row["role"] in ("user", "assistant") and shown_text(row).strip()]
    starts = [index for index, row in enumerate(rows) if row["role"] == "user"][-_RECENT_TURNS:]
    if not starts:
        return []
    quoted = [
        f"[{str(row.get('timestamp', ''))[:16]}] {row['role']}: {clip(shown_text(row).strip(), _MAX_CHARS)}"
        for row in rows[starts[0] :]
    ]
    return [
        {
            "role": "user",
            "content": redact_known("\n".join([head, *quoted])),
            "origin": Origin.SYSTEM,
            "provenance": least_trusted(row.get("provenance", "owner") for row in rows[starts[0] :]),
        }
    ]
