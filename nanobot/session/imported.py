"""Conversations from elsewhere: our own exports, session files of the original, lists of chat messages.

What is a session already is taken as it stands: it would load as it is, too. A list of messages is made legal first,
since anybody may have written it. System prompts stay behind: they were somebody else's, and ours stands there.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from nanobot.errors import NanobotError
from nanobot.messages.repair import legalise
from nanobot.messages.types import INTERRUPTED, ChatMessage, Provenance
from nanobot.session.lines import Found, Row
from nanobot.session.records import moment
from nanobot.session.stems import key_of
from nanobot.session.types import Session
from nanobot.utils.refusals import refusal
from nanobot.utils.text import counted, decode

_ROLES = ("user", "assistant", "tool")
_PROMPTS = ("system", "developer")
_NOT_OURS = frozenset({"window", "runtime_checkpoint", "pending_user_turn", "goal_state"})
"""Of the metadata of a session: what counts the rows of a file that is not this one, and what would go on with it."""
_NO_ANSWER = {"role": "assistant", "content": "(No answer: it was cut off there.)", "error": "stopped"}
EXPECTED = "a session file (JSON lines, as `nanobot sessions export` writes it) or a JSON list of chat messages"


class NotAConversationError(NanobotError):
    """A file that holds nothing to import."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A conversation that was read, and nothing written of it yet."""

    key: str
    rows: list[ChatMessage]
    created_at: datetime
    metadata: dict[str, Any] = field(default_factory=dict)
    consolidated: int = 0
    left_out: int = 0
    """Lines and messages that could not be read, and prompts."""

    def as_session(self, key: str) -> Session:
        """A session of that key with all that was said."""
        rows = [*self.rows, *_end_of(self.rows)]
        last = moment(rows[-1].get("timestamp")) or self.created_at
        return Session(key, rows, self.created_at, last, dict(self.metadata), min(self.consolidated, len(self.rows)))


def conversations_in(place: Path) -> tuple[list[Imported], list[NanobotError]]:
    """The conversation in a file, or all those in a folder of sessions; and why some files of the folder hold none.

    Raises NotAConversationError, StorageError where there is none at all.
    """
    if not place.is_dir():
        return [_read(place)], []
    files = sorted(path for path in place.glob("*.jsonl") if path.is_file())
    if not files:
        raise NotAConversationError(f"{place} holds no session files (*.jsonl).")
    found: list[Imported] = []
    faults: list[NanobotError] = []
    for path in files:
        try:
            found.append(_read(path))
        except NanobotError as error:
            faults.append(error)
    if not found:
        raise faults[0]
    return found, faults


def _read(path: Path) -> Imported:
    try:
        data = path.read_bytes()
        changed = datetime.fromtimestamp(path.stat().st_mtime)
    except OSError as error:
        raise refusal(f"{path} cannot be read", error) from error
    text = decode(data).removeprefix("\ufeff").lstrip()
    try:
        whole = json.loads(text) if text[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        whole = None
    if isinstance(whole, dict) and isinstance(whole.get("messages"), list):
        own = isinstance(whole.get("key"), str)
        found = _of_list(path, whole["messages"], changed, is_ours=own)
        metadata = whole.get("metadata")
        key = str(whole["key"]) if own else found.key
        return Imported(key, found.rows, found.created_at, _kept(metadata), left_out=found.left_out)
    if isinstance(whole, list):
        return _of_list(path, whole, changed, is_ours=False)
    return _of_lines(path, data, changed)


def _of_lines(path: Path, data: bytes, changed: datetime) -> Imported:
    """A session file."""
    found = Found()
    found.add_all(data)
    record: Row = found.record or {}
    rows, prompts = _checked(path, found.rows)
    key, cursor = record.get("key"), record.get("count", record.get("last_consolidated"))
    return Imported(
        key if isinstance(key, str) and key.strip() else key_of(path.stem),
        _stamped(rows, changed),
        moment(record.get("created_at")) or moment(rows[0].get("timestamp")) or changed,
        _kept(record.get("metadata")),
        cursor if isinstance(cursor, int) and cursor > 0 and not prompts else 0,
        len(found.damaged) + prompts,
    )


def _end_of(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What ends a conversation that was cut off: it is not gone on with here, and what it had asked for is not run."""
    last = rows[-1]
    is_over = last["role"] == "assistant" and not last.get("tool_calls") and last.get("error") != INTERRUPTED
    return [] if is_over else [cast("ChatMessage", {**_NO_ANSWER, "timestamp": last.get("timestamp")})]


def _of_list(path: Path, messages: Sequence[object], changed: datetime, *, is_ours: bool) -> Imported:
    rows, prompts = _checked(path, messages)
    legal = rows if is_ours else legalise(rows)
    return Imported(
        f"cli:{path.stem}",
        _stamped(legal, changed),
        moment(rows[0].get("timestamp")) or changed,
        left_out=prompts,
    )


def _checked(path: Path, messages: Sequence[object]) -> tuple[list[ChatMessage], int]:
    """The messages, and how many prompts were among them. Raises NotAConversationError where one is none."""
    rows: list[ChatMessage] = []
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in (*_ROLES, *_PROMPTS):
            raise NotAConversationError(
                f"{path}: entry {number} is no chat message: its role is {json.dumps(role, default=str)[:60]}, not one "
                f"of {', '.join(_ROLES)}. Nothing of it was imported. Give it {EXPECTED}."
            )
        if role in _ROLES:
            rows.append(cast("ChatMessage", message))
    if not rows:
        raise NotAConversationError(f"{path} holds no chat messages. Give it {EXPECTED}.")
    return rows, len(messages) - len(rows)


def _stamped(rows: Sequence[ChatMessage], changed: datetime) -> list[ChatMessage]:
    """Each with the time, and with where its words come from: of those that do not say it, from a file."""
    usual = {"timestamp": changed.isoformat(), "provenance": Provenance.FILE}
    return [cast("ChatMessage", {**row, **{name: usual[name] for name in usual if not row.get(name)}}) for row in rows]


def _kept(metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, dict):
        return {}
    return {name: value for name, value in metadata.items() if name not in _NOT_OURS}


def told(found: Imported) -> str:
    """How much it is, in words."""
    more = f", {found.left_out} left out (damaged lines, system prompts)" if found.left_out else ""
    return f"{counted(len(found.rows), 'message')}{more}"
