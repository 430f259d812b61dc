"""A stored conversation for people (speaker, time and text, one line for each tool call) and as a session file."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from nanobot.messages.types import ChatMessage, Origin, visible_text
from nanobot.session.lines import encode, parse_time
from nanobot.session.types import Session, record_of

CALL_CHARS, RESULT_CHARS = 100, 160
SPEAKERS = {"user": "You", "assistant": "nanobot"}


@dataclass
class ConversationEntry:
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


def _entries(messages: Iterable[ChatMessage]) -> Iterator[ConversationEntry]:
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
            yield ConversationEntry(speaker, f"{time:%Y-%m-%d %H:%M}" if time else "", text, calls)


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
