"""Old messages as a model is shown them, to be summarised. Content from mail and the web is left out. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import (
    INTERRUPTED,
    ChatMessage,
    Provenance,
    is_outside,
    least_trusted,
    shown_text,
    stored_provenance,
)
from nanobot.utils.text import clip, clip_line

_MAX_MESSAGE_CHARS = 4_000
_MAX_RESULT_CHARS = 600
_MAX_ARGUMENT_CHARS = 200
"""Characters shown of a message, a tool result and a tool call."""
_ROLES = {"user": "USER", "assistant": "ASSISTANT", "tool": "TOOL"}


@dataclass(frozen=True, slots=True)
class MemoryTranscript:
    """Rows as shown to a model. `provenance` is the least trusted of them; with an empty text no call is made."""

    text: str
    provenance: Provenance = Provenance.OWNER
    rows: int = 0
    """How many rows have a line in it."""


def transcript_lines(rows: Sequence[ChatMessage]) -> list[str]:
    """Format each row as `[YYYY-MM-DDTHH:MM] ROLE: content`; empty if memory must not take it.

    Continuation lines are indented, so that no content can imitate another row.
    """
    return [_line(row, provenance) for row, provenance in _with_provenance(rows)]


def add_provenance(rows: Sequence[ChatMessage], session_key: str) -> list[ChatMessage]:
    """Return the rows with a provenance on every user message, also on those stored without one."""
    return [
        {**row, "provenance": stored_provenance(row, session_key)} if row.get("role") == "user" else row for row in rows
    ]


def build_transcript(
    rows: Sequence[ChatMessage],
    max_tokens: int = 25_000,
    *,
    is_trusted_only: bool = False,
    person_is_owner: bool = False,
) -> MemoryTranscript:
    """Build the transcript of rows, of trusted ones only if wanted; a text beyond `max_tokens` keeps its beginning and
    end. `person_is_owner`: no owner is configured and only one person writes, so that person is the owner.
    """
    if person_is_owner:  # answers to them keep the trust of what precedes them
        rows = [
            {**row, "provenance": Provenance.OWNER}
            if row.get("role") in ("user", "assistant") and row.get("provenance") == Provenance.PERSON
            else row
            for row in rows
        ]
    if is_trusted_only:
        rows = [row for row, provenance in _with_provenance(rows) if not is_outside(provenance)]
    shown = [(line, provenance) for row, provenance in _with_provenance(rows) if (line := _line(row, provenance))]
    text = "\n".join(line for line, _ in shown)
    if (tokens := estimate_tokens(text)) > max_tokens:
        text = clip(text, len(text) * max_tokens // tokens)
    return MemoryTranscript(text, least_trusted(provenance for _, provenance in shown), len(shown))


def _with_provenance(rows: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, Provenance]]:
    """Yield each row with its provenance. A model's words are never more trusted than what it had read before."""
    least = Provenance.OWNER
    for row in rows:
        own = stored_provenance(row)
        if row.get("role") == "assistant":
            own = least_trusted([least, own])
        least = least_trusted([least, own])
        yield row, own


def _line(row: ChatMessage, provenance: Provenance) -> str:
    role = _ROLES.get(str(row.get("role")))
    is_left_out = least_trusted([provenance, Provenance.PERSON]) is not Provenance.PERSON  # mail, web
    is_error_text = row.get("error") not in (None, INTERRUPTED)  # our text for a failed turn
    if role is None or is_left_out or row.get("_command") or is_error_text:
        return ""
    text = shown_text(row).strip()
    if role == "TOOL":
        text = f"{row.get('name') or 'tool'}: {clip(text, _MAX_RESULT_CHARS)}" if text else ""
    else:
        text = "\n".join(filter(None, [clip(text, _MAX_MESSAGE_CHARS), *_calls_of(row)]))
    if role == "USER" and provenance is Provenance.PERSON:
        role = "USER (not the owner)"
    return f"[{_minute(row.get('timestamp'))}] {role}: {text}".replace("\n", "\n  ") if text else ""


def _calls_of(row: ChatMessage) -> Iterator[str]:
    calls = cast("object", row.get("tool_calls"))
    for call in calls if isinstance(calls, list) else ():  # old files may hold anything
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            arguments = " ".join(str(function.get("arguments", "")).split())
            yield f"(calls {function.get('name')} {clip_line(arguments, _MAX_ARGUMENT_CHARS)})"


def _minute(timestamp: object) -> str:
    try:
        return f"{datetime.fromisoformat(str(timestamp)):%Y-%m-%dT%H:%M}"
    except ValueError:
        return "unknown time"
