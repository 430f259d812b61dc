"""A run that was cut off: what its rows tell of it, and what a person is told."""

from collections.abc import Sequence
from dataclasses import dataclass

from nanobot.messages.types import INTERRUPTED, ChatMessage
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import counted

TAKEN_UP = "taken_up"
"""How a step ends that asked no model: it gave the calls of a run that was cut off their results."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is known of a run that was cut off."""

    started: frozenset[str] | None = None
    """Ids of the calls that began to run; None where each may have."""


def open_calls(rows: Sequence[ChatMessage]) -> list[ToolCallRequest]:
    """The calls at the end of a history that nobody answered, in their order."""
    results = results_at_end(rows)
    last = rows[len(rows) - len(results) - 1] if len(rows) > len(results) else None
    if last is None or last["role"] != "assistant":
        return []
    answered = {row.get("tool_call_id") for row in results}
    return [
        ToolCallRequest.from_text(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in last.get("tool_calls") or ()
        if call["id"] not in answered
    ]


def is_broken_off(row: ChatMessage) -> bool:
    """Whether this is what a model had said when it was cut off."""
    return row["role"] == "assistant" and row.get("error") == INTERRUPTED and not row.get("tool_calls")


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
