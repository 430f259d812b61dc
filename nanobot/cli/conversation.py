"""A stored conversation as people read it: who said what when, and one line for each tool call."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from nanobot.cli.common import one_line
from nanobot.messages.shown import seen_text
from nanobot.messages.types import ChatMessage, Origin
from nanobot.session.manager import Session

CALL_CHARS, RESULT_CHARS = 100, 160
SPEAKERS = {"user": "You", "assistant": "nanobot"}


@dataclass
class Speech:
    """What somebody said in one go, and the tools that were used for it."""

    speaker: str
    time: str
    text: str
    calls: list[str] = field(default_factory=list)


def as_text(key: str, messages: Iterable[ChatMessage]) -> str:
    """For a terminal."""
    parts = [one_line(key)]
    for speech in _speeches(messages):
        calls = [f"  > {call}" for call in speech.calls]
        parts.append("\n".join([f"{speech.speaker}  {speech.time}".rstrip(), *filter(None, [speech.text]), *calls]))
    return "\n\n".join(parts)


def as_markdown(session: Session) -> str:
    """For a file to keep or to send."""
    span = f"{session.created_at:%Y-%m-%d %H:%M} to {session.updated_at:%Y-%m-%d %H:%M}"
    parts = [f"# {one_line(session.key)}", f"{span}, {len(session.messages)} messages"]
    for speech in _speeches(session.messages):
        parts.append(f"## {speech.speaker}" + (f" ({speech.time})" if speech.time else ""))
        parts += filter(None, [speech.text, "\n".join(f"- {_as_code(call)}" for call in speech.calls)])
    return "\n\n".join(parts) + "\n"


def _speeches(messages: Iterable[ChatMessage]) -> Iterator[Speech]:
    """What a person may see of the messages. Our own words to the model are left out, results stand at their calls."""
    rows = list(messages)
    for at, row in enumerate(rows):
        if row.get("role") not in SPEAKERS:
            continue
        text = seen_text(row).strip()
        results = _results_behind(rows, at) if row.get("tool_calls") else {}
        calls = [_call_line(call, results) for call in _calls(row)]
        if row.get("error"):
            text = f"{text}\n[failed: {row['error']}]".strip()
        if text or calls:
            yield Speech(_speaker(row), _time(row), text, calls)


def _results_behind(rows: Sequence[ChatMessage], at: int) -> dict[str, ChatMessage]:
    """What came of the calls of this row. Some servers give the calls of each answer the same ids."""
    found: dict[str, ChatMessage] = {}
    for row in rows[at + 1 :]:
        if row.get("role") == "assistant" and row.get("tool_calls"):
            break
        if row.get("role") == "tool":
            found.setdefault(str(row.get("tool_call_id")), row)
    return found


def _speaker(row: ChatMessage) -> str:
    """What a subagent reports, and what it is asked, no person has said."""
    reports = row["role"] == "user" and row.get("origin") == Origin.SUBAGENT
    return "Subagent" if reports else SPEAKERS[row["role"]]


def _calls(row: ChatMessage) -> list[dict[str, Any]]:
    """The tool calls of a row, whatever a file holds under that name."""
    calls: Any = row.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _call_line(call: dict[str, Any], results: dict[str, ChatMessage]) -> str:
    """`read_file {"path": "notes.md"} -> 1: first line`, cut to fit a line."""
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    arguments = function.get("arguments") or ""
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    result = results.get(str(call.get("id")))
    answer = one_line(seen_text(result)) if result else "no result"
    return f"{function.get('name', '?')} {_cut(one_line(said), CALL_CHARS)} -> {_cut(answer, RESULT_CHARS)}"


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def _as_code(text: str) -> str:
    """Inline code, whatever backticks are in it."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _time(row: ChatMessage) -> str:
    try:
        return f"{datetime.fromisoformat(row.get('timestamp', '')):%Y-%m-%d %H:%M}"
    except (TypeError, ValueError):
        return ""
