"""A stored conversation for people (speaker, time and text, one line for each tool call) and as a session file."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nanobot.messages.shown import visible_text
from nanobot.messages.types import ChatMessage, Origin
from nanobot.session.lines import encode
from nanobot.session.types import Session

CALL_CHARS, RESULT_CHARS = 100, 160
SPEAKERS = {"user": "You", "assistant": "nanobot"}


@dataclass
class ConversationEntry:
    """One message and the tool calls it made."""

    speaker: str
    time: str
    text: str
    calls: list[str] = field(default_factory=list)


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
        parts.append(f"## {entry.speaker}" + (f" ({entry.time})" if entry.time else ""))
        parts += filter(None, [entry.text, "\n".join(f"- {_inline_code(call)}" for call in entry.calls)])
    return "\n\n".join(parts) + "\n"


def to_jsonl(session: Session) -> bytes:
    """A session file: the metadata line, then the valid messages."""
    record = {
        "_type": "metadata",
        "key": session.key,
        "created_at": session.created_at.isoformat(),
        "updated_at": session.updated_at.isoformat(),
        "metadata": session.metadata,
        "last_consolidated": session.last_consolidated,
    }
    return b"".join(encode(dict(row)) for row in (record, *session.messages))


def _entries(messages: Iterable[ChatMessage]) -> Iterator[ConversationEntry]:
    """The visible messages. nanobot's own text for the model is left out; tool results are shown at their calls."""
    rows = list(messages)
    for index, row in enumerate(rows):
        if row.get("role") not in SPEAKERS:
            continue
        text = visible_text(row).strip()
        results = _results_of_calls(rows, index) if row.get("tool_calls") else {}
        calls = [_format_call(call, results) for call in _calls(row)]
        if row.get("error"):
            text = f"{text}\n[failed: {row['error']}]".strip()
        if text or calls:
            yield ConversationEntry(_speaker(row), _format_timestamp(row), text, calls)


def _results_of_calls(rows: Sequence[ChatMessage], index: int) -> dict[str, ChatMessage]:
    """The results of this row's calls, by call id. Some servers reuse the ids in every answer."""
    results: dict[str, ChatMessage] = {}
    for row in rows[index + 1 :]:
        if row.get("role") == "assistant" and row.get("tool_calls"):
            break
        if row.get("role") == "tool":
            results.setdefault(str(row.get("tool_call_id")), row)
    return results


def _speaker(row: ChatMessage) -> str:
    is_report = row["role"] == "user" and row.get("origin") == Origin.SUBAGENT
    return "Subagent" if is_report else SPEAKERS[row["role"]]


def _calls(row: ChatMessage) -> list[dict[str, Any]]:
    """The tool calls of a row; a file may hold anything under that key."""
    calls: Any = row.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _format_call(call: dict[str, Any], results: dict[str, ChatMessage]) -> str:
    """`read_file {"path": "notes.md"} -> 1: first line`, truncated."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments") or ""
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False, default=str)
    result = results.get(str(call.get("id")))
    shown_result = _in_one_line(visible_text(result)) if result else "no result"
    shown_call = f"{function.get('name', '?')} {_truncate(_in_one_line(arguments), CALL_CHARS)}"
    return f"{shown_call} -> {_truncate(shown_result, RESULT_CHARS)}"


def _truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _inline_code(text: str) -> str:
    """Markdown inline code; the text may contain backticks."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _format_timestamp(row: ChatMessage) -> str:
    try:
        return f"{datetime.fromisoformat(row.get('timestamp', '')):%Y-%m-%d %H:%M}"
    except (TypeError, ValueError):
        return ""


def _in_one_line(text: str) -> str:
    return " ".join("".join(char for char in text if char.isprintable() or char.isspace()).split())
