"""A run that was cut off: what its rows tell of it, and what a person is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.messages.types import INTERRUPTED, ChatMessage, is_our_word, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import counted

TAKEN_UP = "taken_up"
"""How a step ends that asked no model: it gave the calls of a run that was cut off their results."""
GO_ON = "Your answer was cut off by the length limit. Go on exactly where it stopped, without repeating anything."
BROKEN_OFF = "Your answer broke off. Go on exactly where it stopped, without repeating anything."


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of a run that was cut off."""

    started: frozenset[str] | None = None
    """Ids of the calls that began to run; None where each may have."""


def open_calls(rows: Sequence[ChatMessage]) -> list[ToolCallRequest]:
    """The calls at the end of a history that nobody answered, in their order."""
    results = results_at_end(rows)
    if len(rows) == len(results):
        return []
    last = rows[len(rows) - len(results) - 1]
    answered = {row.get("tool_call_id") for row in results}
    return [
        ToolCallRequest.from_text(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in last.get("tool_calls") or ()
        if call["id"] not in answered
    ]


def is_broken_off(row: ChatMessage) -> bool:
    """Whether this is what a model had said when it was cut off."""
    return row["role"] == "assistant" and row.get("error") == INTERRUPTED and not row.get("tool_calls")


def parts_of_answer(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """What this turn has said of the answer at the end of these rows, part by part: each but the last broke off."""
    parts: list[str] = []
    ends = True
    """Whether the answer may end here: a part before another ends where it broke off, or where we had it go on."""
    for row in reversed(rows):
        if row.get("turn_id") != turn_id or row.get("tool_calls") or row["role"] not in ("user", "assistant"):
            break
        if row["role"] == "user":
            if is_our_word(row) and row["content"] not in (GO_ON, BROKEN_OFF):
                break
            ends = is_our_word(row)
        elif ends or is_broken_off(row):
            parts.append(text_of(row["content"]))
            ends = False
        else:
            break
    return [part for part in reversed(parts) if part.strip()]


def results_at_end(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The results behind the last thing a model said."""
    at = len(rows)
    while at and rows[at - 1]["role"] == "tool":
        at -= 1
    return list(rows[at:])


def account_of_cut(finished: int, again: Sequence[ToolCallRequest], unknown: Sequence[ToolCallRequest]) -> str:
    """What a person is told of calls that were cut off."""
    parts = ["nanobot was interrupted in the middle of this turn and goes on from there."]
    if finished:
        parts.append(f"{counted(finished, 'call')} had finished.")
    if again:
        parts.append(f"Runs now: {', '.join(call.name for call in again)}.")
    if unknown:
        parts.append(f"May or may not have run: {', '.join(call.name for call in unknown)}.")
    return " ".join(parts)
