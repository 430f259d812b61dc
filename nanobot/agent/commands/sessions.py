"""`/sessions` and `/resume`: the stored conversations of a chat, and reopening one in the terminal."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nanobot.agent.command import CommandCall, CommandEntry
from nanobot.agent.memory.service import MemoryService
from nanobot.agent.scope import Scope
from nanobot.agent.status import AgentStatus
from nanobot.messages.shown import visible_text
from nanobot.messages.types import Origin
from nanobot.session.file import session_title
from nanobot.session.file_format import is_terminal_session, parse_time
from nanobot.session.manager import Session, SessionManager
from nanobot.utils.text import count_noun, duration

_LISTED = 20
_SHOWN_AFTER = 2
"""Messages shown of a reopened conversation."""
_SHOWN_LINES, _SHOWN_CHARS = 8, 1_000
"""How much of a message a list of messages shows."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A stored conversation in a list. `name` is its session key, or its file name if it is archived."""

    name: str
    key: str
    title: str
    messages: int
    updated_at: str
    archived: bool

    def describe(self) -> str:
        """Return its size and age, such as `12 messages, 2 h ago`."""
        updated = parse_time(self.updated_at)
        seconds = (datetime.now() - updated).total_seconds() if updated else 0
        age = f"{duration(seconds)} ago" if seconds >= 60 else "just now"
        return f"{count_noun(self.messages, 'message')}, {age}"


def list_conversations(sessions: SessionManager, scope: Scope, session_key: str) -> list[Conversation]:
    """Return the conversations that this chat may list, newest first: its own and, for the owner, the terminal's."""
    own = scope.chat or session_key

    def is_listed(key: str) -> bool:
        return key == own or key.startswith(f"{own}:") or (scope.is_owners and is_terminal_session(key))

    rows = [row for row in sessions.list_sessions() if row["messages"] and is_listed(row["key"])]
    return [
        Conversation(
            row["name"],
            row["key"],
            session_title(Path(row["path"]), row["metadata"]) or "(no title)",
            row["messages"],
            row["updated_at"],
            row["archived"],
        )
        for row in rows[:_LISTED]
    ]


def find_conversation(conversations: Sequence[Conversation], wanted: str) -> Conversation | None:
    """Return the conversation of this number in the list, or of this name."""
    if wanted.isdecimal() and 0 < int(wanted[:4]) <= len(conversations):
        return conversations[int(wanted[:4]) - 1]
    return next((conversation for conversation in conversations if conversation.name == wanted), None)


def format_messages(session: Session, count: int) -> str:
    """Return the last `count` messages of people and bot, long ones shortened. May read the whole session."""
    visible = [row for row in session.messages if row.get("role") in ("user", "assistant") and visible_text(row)]
    return "\n".join(
        f"{'you' if row['role'] == 'user' else 'bot'}: {_shorten(visible_text(row))}" for row in visible[-count:]
    )


def _shorten(text: str) -> str:
    lines = text.splitlines()
    shown = "\n".join(lines[:_SHOWN_LINES])
    shown = shown if len(shown) <= _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"
    return shown if len(lines) <= _SHOWN_LINES else f"{shown}\n… {len(lines) - _SHOWN_LINES} more lines"


@dataclass(frozen=True)
class SessionCommands:
    """Answers `/sessions` and `/resume`."""

    sessions: SessionManager
    status: AgentStatus
    memory: MemoryService

    def commands(self) -> dict[str, CommandEntry]:
        return {
            "sessions": CommandEntry(self._list, "list the conversations"),
            "resume": CommandEntry(self._resume, "reopen a conversation", "NUMBER"),
        }

    async def _list(self, call: CommandCall) -> str:
        conversations = await self._conversations(call)
        if not conversations:
            return "There are no conversations yet."
        at_terminal = call.message.origin is Origin.CLI
        lines = [
            f"{number}. {item.title} ({item.describe()})"
            + (" - this one" if item.name == call.session.key else "" if at_terminal else f" - {item.name}")
            for number, item in enumerate(conversations, 1)
        ]
        hint = (
            "/resume NUMBER reopens one. Those of chat apps: nanobot sessions list"
            if at_terminal
            else "To read one, run in the terminal: nanobot sessions show NAME"
        )
        return "\n".join([*lines, "", hint])

    async def _resume(self, call: CommandCall) -> str:
        """Reopen a conversation of this session's key. The terminal first changes to the key of the one it wants."""
        conversations = await self._conversations(call)
        if not call.argument:
            return await self._list(call)
        found = find_conversation(conversations, call.argument)
        if found is None:
            return f"There is no conversation {call.argument[:60]!r}. /sessions lists them."
        if call.message.origin is not Origin.CLI:
            return (
                f"A chat stays one conversation. To read that one, in the terminal: nanobot sessions show {found.name}"
            )
        if found.key != call.session.key:
            return f"To continue it: nanobot agent -s {found.key}"
        if found.archived:
            former = await asyncio.to_thread(self.sessions.reopen, call.session, found.name)
            self.status.forget(found.key)
            if former is not None:
                await self.memory.on_session_archived(found.key, former)
        last = await asyncio.to_thread(format_messages, call.session, _SHOWN_AFTER)
        return f"Reopened: {found.title} ({found.describe()})\n\n{last}"

    async def _conversations(self, call: CommandCall) -> list[Conversation]:
        return await asyncio.to_thread(list_conversations, self.sessions, call.scope, call.session.key)
