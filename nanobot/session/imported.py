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
from nanobot.session.lines import Row, decode_lines, parse_time
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
        """Build a session of that key. An unfinished conversation gets a final answer: it is not resumed here, and its
        calls do not run.
        """
        rows, last = [*self.rows], self.rows[-1]
        if last["role"] != "assistant" or last.get("tool_calls") or last.get("error") == INTERRUPTED:
            rows.append(cast("ChatMessage", {**_NO_ANSWER, "timestamp": last.get("timestamp")}))
        updated = parse_time(last.get("timestamp")) or self.created_at
        return Session(key, rows, self.created_at, updated, dict(self.metadata), min(self.consolidated, len(self.rows)))


def read_conversations(source: Path) -> tuple[list[ImportedConversation], list[NanobotError]]:
    """Read the conversation of a file, or those of a folder of session files. Also return the errors of single files.

    Raises NotAConversationError or StorageError if there is no conversation at all.
    """
    if not source.is_dir():
        return [_read(source)], []
    conversations: list[ImportedConversation] = []
    errors: list[NanobotError] = []
    for path in sorted(path for path in source.glob("*.jsonl") if path.is_file()):
        try:
            conversations.append(_read(path))
        except NanobotError as error:
            errors.append(error)
    if not conversations:
        raise errors[0] if errors else NotAConversationError(f"{source} has no session files (*.jsonl).")
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
    record: Row = document if isinstance(document, dict) else {}
    messages = record.get("messages") if record else document
    damaged, is_ours, default_key = 0, isinstance(record.get("key"), str), f"cli:{path.stem}"
    if not isinstance(messages, list):
        lines = decode_lines(data.split(b"\n"))
        record, messages, damaged = lines.record or {}, lines.rows, lines.damaged
        is_ours, default_key = True, key_of(path.stem)
    rows = _check_messages(path, messages)
    prompts = len(messages) - len(rows)
    key, cursor, metadata = record.get("key"), record.get("last_consolidated"), record.get("metadata")
    return ImportedConversation(
        key if isinstance(key, str) and key.strip() else default_key,
        [_with_defaults(row, changed) for row in (rows if is_ours else legalise(rows))],
        parse_time(record.get("created_at")) or parse_time(rows[0].get("timestamp")) or changed,
        {name: metadata[name] for name in metadata if name not in _NOT_PORTABLE} if isinstance(metadata, dict) else {},
        cursor if is_ours and isinstance(cursor, int) and cursor > 0 and not prompts else 0,
        damaged + prompts,
    )


def _check_messages(path: Path, messages: Sequence[object]) -> list[ChatMessage]:
    """Return the messages without system prompts. Raises NotAConversationError."""
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
    return rows


def _with_defaults(row: ChatMessage, changed: datetime) -> ChatMessage:
    """Add what is missing of timestamp and provenance; the provenance of an import is a file."""
    defaults = {"timestamp": changed.isoformat(), "provenance": Provenance.FILE}
    return cast("ChatMessage", {**row, **{name: value for name, value in defaults.items() if not row.get(name)}})


def describe_import(conversation: ImportedConversation) -> str:
    """Describe the size of an imported conversation."""
    skipped = f", {conversation.left_out} left out (damaged lines, system prompts)" if conversation.left_out else ""
    return f"{count_noun(len(conversation.rows), 'message')}{skipped}"
