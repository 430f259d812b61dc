"""A stored conversation as text, as Markdown and as a session file, and conversations of files as sessions.

Session files are imported as they are, since they would load as they are. Lists of messages are repaired first, since
anybody may have written them. System prompts are left out; sessions have our own.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

from nanobot.errors import NanobotError
from nanobot.messages.repair import legalise
from nanobot.messages.shown import visible_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, Provenance
from nanobot.session.checkpoint import ORIGINAL_KEYS
from nanobot.session.file_format import Row, decode, encode, is_record, key_of, parse_time
from nanobot.session.types import Session, record_of
from nanobot.utils.storage_error import storage_errors
from nanobot.utils.text import count_noun
from nanobot.utils.text import decode as decode_text

CALL_CHARS, RESULT_CHARS = 100, 160
SPEAKERS = {"user": "You", "assistant": "nanobot"}
_ROLES = ("user", "assistant", "tool")
_PROMPTS = ("system", "developer")
_NOT_PORTABLE = frozenset({"window", *ORIGINAL_KEYS})
"""Session metadata that refers to rows of the original file or to work in progress."""
_NO_ANSWER = {"role": "assistant", "content": "(No answer: it was cut off there.)", "error": "stopped"}
EXPECTED = "a session file (JSON lines, as `nanobot sessions export` writes it) or a JSON list of chat messages"


class _Entry(NamedTuple):
    """One message and the tool calls it made."""

    speaker: str
    time: str
    text: str
    calls: list[str]


def format_text(key: str, messages: Iterable[ChatMessage]) -> str:
    """For a terminal."""
    parts = [_in_one_line(key)]
    for entry in _entries(messages):
        calls = [f"  > {call}" for call in entry.calls]
        parts.append("\n".join([f"{entry.speaker}  {entry.time}".rstrip(), *filter(None, [entry.text]), *calls]))
    return "\n\n".join(parts)


def format_markdown(session: Session) -> str:
    """For a file to keep or to send."""
    span = f"{session.created_at:%Y-%m-%d %H:%M} to {session.updated_at:%Y-%m-%d %H:%M}"
    parts = [f"# {_in_one_line(session.key)}", f"{span}, {len(session.messages)} messages"]
    for entry in _entries(session.messages):
        calls = (f"`` {call} ``" if "`" in call else f"`{call}`" for call in entry.calls)
        parts.append(f"## {entry.speaker}" + (f" ({entry.time})" if entry.time else ""))
        parts += filter(None, [entry.text, "\n".join(f"- {call}" for call in calls)])
    return "\n\n".join(parts) + "\n"


def to_jsonl(session: Session) -> bytes:
    """A session file: the metadata line, then the valid messages."""
    record = record_of(session)
    return b"".join(encode(dict(row)) for row in (record, *session.messages))


def _entries(messages: Iterable[ChatMessage]) -> Iterator[_Entry]:
    """The visible messages. nanobot's own text for the model is left out; tool results are shown at their calls."""
    rows = list(messages)
    for index, row in enumerate(rows):
        if row.get("role") not in SPEAKERS:
            continue
        text = visible_text(row).strip()
        calls = [_format_call(call, (rows[at] for at in range(index + 1, len(rows)))) for call in _calls(row)]
        if row.get("error"):
            text = f"{text}\n[failed: {row['error']}]".strip()
        if text or calls:
            is_report = row["role"] == "user" and row.get("origin") == Origin.SUBAGENT
            speaker = "Subagent" if is_report else SPEAKERS[row["role"]]
            time = parse_time(row.get("timestamp"))
            yield _Entry(speaker, f"{time:%Y-%m-%d %H:%M}" if time else "", text, calls)


def _calls(row: ChatMessage) -> list[dict[str, Any]]:
    """The tool calls of a row; a file may hold anything under that key."""
    calls: Any = row.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _format_call(call: dict[str, Any], later: Iterable[ChatMessage]) -> str:
    """`read_file {"path": "notes.md"} -> 1: first line`, truncated. The result is among the rows before those of the
    next calls, since some servers use the ids again in every answer.
    """
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    result = "no result"
    for row in takewhile(lambda row: not row.get("tool_calls"), later):
        if row.get("role") == "tool" and row.get("tool_call_id") == call.get("id"):
            result = _in_one_line(visible_text(row))
            break
    shown_call = f"{function.get('name', '?')} {_truncate(_in_one_line(arguments), CALL_CHARS)}"
    return f"{shown_call} -> {_truncate(result, RESULT_CHARS)}"


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _in_one_line(text: str) -> str:
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())


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
    text = decode_text(data).removeprefix("\ufeff").lstrip()
    try:
        document = json.loads(text) if text[:1] in ("[", "{") else None
    except (ValueError, RecursionError):
        document = None
    record: Row = document if isinstance(document, dict) else {}
    messages = record.get("messages") if record else document
    damaged, is_ours, default_key = 0, isinstance(record.get("key"), str), f"cli:{path.stem}"
    if not isinstance(messages, list):
        record, messages = {}, []
        for line in data.split(b"\n"):
            found, is_sound = decode(line)
            damaged += not is_sound
            messages += [row for row in found if not is_record(row)]
            record = next(filter(is_record, reversed(found)), record)
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
