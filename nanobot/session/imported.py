"""Import of conversations: our own exports, session files of the original, lists of chat messages.

Session files are taken as they are, since they would load as they are. Lists of messages are repaired first, since
anybody may have written them. System prompts are left out; sessions have our own.
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
from nanobot.session import original_state
from nanobot.session.file_names import key_of
from nanobot.session.lines import DecodedLines, Row, parse_time
from nanobot.session.types import Session
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import count_noun, decode

_ROLES = ("user", "assistant", "tool")
_PROMPTS = ("system", "developer")
_NOT_PORTABLE = frozenset({"window", *original_state.METADATA_KEYS})
"""Session metadata that refers to rows of the original file or to work in progress."""
_NO_ANSWER = {"role": "assistant", "content": "(No answer: it was cut off there.)", "error": "stopped"}
EXPECTED = "a session file (JSON lines, as `nanobot sessions export` writes it) or a JSON list of chat messages"


class NotAConversationError(NanobotError):
    """A file has nothing to import."""


@dataclass(frozen=True, slots=True)
class ImportedConversation:
    """A parsed conversation; nothing is written yet."""

    key: str
    rows: list[ChatMessage]
    created_at: datetime
    metadata: dict[str, Any] = field(default_factory=dict)
    consolidated: int = 0
    left_out: int = 0
    """Lines and messages that could not be read, and system prompts."""

    def as_session(self, key: str) -> Session:
        """Build a session of that key."""
        rows = [*self.rows, *_final_answer(self.rows)]
        last = parse_time(rows[-1].get("timestamp")) or self.created_at
        return Session(key, rows, self.created_at, last, dict(self.metadata), min(self.consolidated, len(self.rows)))


def read_conversations(source: Path) -> tuple[list[ImportedConversation], list[NanobotError]]:
    """Read the conversation of a file, or those of a folder of session files. Also return the errors of single files.

    Raises NotAConversationError or StorageError if there is no conversation at all.
    """
    if not source.is_dir():
        return [_read(source)], []
    files = sorted(path for path in source.glob("*.jsonl") if path.is_file())
    if not files:
        raise NotAConversationError(f"{source} has no session files (*.jsonl).")
    conversations: list[ImportedConversation] = []
    errors: list[NanobotError] = []
    for path in files:
        try:
            conversations.append(_read(path))
        except NanobotError as error:
            errors.append(error)
    if not conversations:
        raise errors[0]
    return conversations, errors


def _read(path: Path) -> ImportedConversation:
    with storage_errors(f"{path} cannot be read"):
        data = path.read_bytes()
        changed = datetime.fromtimestamp(path.stat().st_mtime)
    text = decode(data).removeprefix("\ufeff").lstrip()
    try:
        document = json.loads(text) if text[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        document = None
    record: Row = {}
    damaged, is_ours, default_key = 0, True, f"cli:{path.stem}"
    if isinstance(document, list):
        found, is_ours = document, False
    elif isinstance(document, dict) and isinstance(document.get("messages"), list):
        record, found = document, document["messages"]
        is_ours = isinstance(document.get("key"), str)
    else:
        lines = DecodedLines()
        lines.add_all(data)
        record, found, damaged, default_key = lines.record or {}, lines.rows, len(lines.damaged), key_of(path.stem)
    rows, prompts = _check_messages(path, found)
    key, cursor = record.get("key"), record.get("last_consolidated")
    return ImportedConversation(
        key if isinstance(key, str) and key.strip() else default_key,
        _with_defaults(rows if is_ours else legalise(rows), changed),
        parse_time(record.get("created_at")) or parse_time(rows[0].get("timestamp")) or changed,
        _portable(record.get("metadata")),
        cursor if is_ours and isinstance(cursor, int) and cursor > 0 and not prompts else 0,
        damaged + prompts,
    )


def _final_answer(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return a final answer for an unfinished conversation: it is not resumed here, and its calls do not run."""
    last = rows[-1]
    is_over = last["role"] == "assistant" and not last.get("tool_calls") and last.get("error") != INTERRUPTED
    return [] if is_over else [cast("ChatMessage", {**_NO_ANSWER, "timestamp": last.get("timestamp")})]


def _check_messages(path: Path, messages: Sequence[object]) -> tuple[list[ChatMessage], int]:
    """Return the messages, and how many system prompts were skipped. Raises NotAConversationError."""
    rows: list[ChatMessage] = []
    for number, message in enumerate(messages, 1):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in (*_ROLES, *_PROMPTS):
            raise NotAConversationError(
                f"{path}: entry {number} is not a chat message: its role is {json.dumps(role, default=str)[:60]}, not "
                f"one of {', '.join(_ROLES)}. Nothing was imported. Expected {EXPECTED}."
            )
        if role in _ROLES:
            rows.append(cast("ChatMessage", message))
    if not rows:
        raise NotAConversationError(f"{path} has no chat messages. Expected {EXPECTED}.")
    return rows, len(messages) - len(rows)


def _with_defaults(rows: Sequence[ChatMessage], changed: datetime) -> list[ChatMessage]:
    """Add missing timestamps and provenances; the provenance of an import is a file."""
    defaults = {"timestamp": changed.isoformat(), "provenance": Provenance.FILE}
    return [
        cast("ChatMessage", {**row, **{name: defaults[name] for name in defaults if not row.get(name)}}) for row in rows
    ]


def _portable(metadata: object) -> dict[str, Any]:
    if not isinstance(metadata, dict):
        return {}
    return {name: value for name, value in metadata.items() if name not in _NOT_PORTABLE}


def describe_import(conversation: ImportedConversation) -> str:
    """Describe the size of an imported conversation."""
    skipped = f", {conversation.left_out} left out (damaged lines, system prompts)" if conversation.left_out else ""
    return f"{count_noun(len(conversation.rows), 'message')}{skipped}"
