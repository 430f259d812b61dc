"""A session that has become too large or too old goes to the archive, and a fresh one goes on where it stood.

What was said last stands at the head of the fresh one, as a word of ours to the model; the old one is found by search.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from nanobot.agent.run.cut import open_calls
from nanobot.errors import StorageError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage, Origin, least_trusted
from nanobot.security.vault import masked
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.aio import finish
from nanobot.utils.text import clip

_TURNS = 6
"""Of the old session, told in the fresh one."""
_MOST_CHARS = 1_200
"""Of one of these messages."""
_NOTE = """\
This conversation became {why} and goes on in a fresh session. The old one is {name}; session_search finds what was \
said in it. What was said last, for you to go on from, nothing of it to be done again:"""


async def _nobody(session_key: str, path: Path) -> None:
    """Nobody wants to hear of it."""


@dataclass(frozen=True, slots=True)
class RollOver:
    """When a session is too large or too old, and what is done then. Zero: never."""

    max_bytes: int = 0
    max_days: int = 0
    archived: Callable[[str, Path], Awaitable[None]] = _nobody
    """Told of a session and where its old file lies now."""

    def why(self, session: Session, now: datetime) -> str:
        """Why it is to begin afresh, in a word; empty where it is not."""
        stored = session.stored.print if session.stored is not None else None
        if stored is None:
            return ""
        if self.max_bytes and stored.size > self.max_bytes:
            return "long"
        age = now.replace(tzinfo=None) - session.created_at
        return "old" if self.max_days and age > timedelta(days=self.max_days) else ""

    async def begin_afresh(self, sessions: SessionManager, session: Session, why: str) -> str | None:
        """Put a held session away and go on with a fresh one of the same key; the name of the old one's file.

        None where that cannot be done: while a call waits for its result, or the disk refuses. Then all is as it was.
        """
        history = session.get_history()
        if open_calls(history):
            return None
        metadata = {name: value for name, value in session.metadata.items() if name != "window"}
        try:
            path = await finish(asyncio.to_thread(sessions.archive, session.key))
        except StorageError:
            return None
        if path is None:
            return None
        session.metadata = metadata
        if rows := _last_turns(history):
            await sessions.append(session, _note_of(rows, _NOTE.format(why=why, name=path.stem)))
        await self.archived(session.key, path)
        return path.stem


def _last_turns(history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What people and the model said in the last turns."""
    said = [row for row in history if row["role"] in ("user", "assistant") and shown_text(row).strip()]
    begins = [at for at, row in enumerate(said) if row["role"] == "user"][-_TURNS:]
    return said[begins[0] :] if begins else []


def _note_of(rows: Sequence[ChatMessage], head: str) -> ChatMessage:
    lines = [f"[{str(row.get('timestamp', ''))[:16]}] {row['role']}: {_cut(shown_text(row))}" for row in rows]
    return {
        "role": "user",
        "content": masked("\n".join([head, *lines])),
        "origin": Origin.SYSTEM,
        "provenance": least_trusted(row.get("provenance", "owner") for row in rows),
    }


def _cut(text: str) -> str:
    return clip(text.strip(), _MOST_CHARS)
