"""Interrupted runs: what their rows say about them, and the notice for the person."""

from collections.abc import Sequence

from nanobot.messages.types import INTERRUPTED, ChatMessage, is_synthetic, text_of
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import count_noun

FINISH_RESUMED = "resumed"
"""Finish reason of a step without a model call, in which a resumed run gives pending calls their results."""
CONTINUE_TRUNCATED = (
    "Your answer was cut off by the length limit. Go on exactly where it stopped, without repeating anything."
)
CONTINUE_INTERRUPTED = "Your answer broke off. Go on exactly where it stopped, without repeating anything."


def pending_calls(rows: Sequence[ChatMessage]) -> list[ToolCallRequest]:
    """The calls at the end of a history that have no result, in order."""
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


def is_interrupted(row: ChatMessage) -> bool:
    """Whether this row is the partial text of an interrupted answer."""
    return row["role"] == "assistant" and row.get("error") == INTERRUPTED and not row.get("tool_calls")


def is_answer(row: ChatMessage) -> bool:
    """Whether a turn may end with this row."""
    return row["role"] == "assistant" and not row.get("tool_calls")


def outcome_text(rows: Sequence[ChatMessage]) -> str:
    """The reply of a turn that ended with these rows: the whole answer, or why there is none."""
    last = rows[-1]
    if last.get("error") not in (None, INTERRUPTED):
        return last.get("reply") or text_of(last["content"])
    return "".join(parts_of_answer(rows, last.get("turn_id", ""))).strip()


def is_continuation(row: ChatMessage) -> bool:
    """Whether this row asks for the rest of an answer."""
    return is_synthetic(row) and row["content"] in (CONTINUE_TRUNCATED, CONTINUE_INTERRUPTED)


def parts_of_answer(rows: Sequence[ChatMessage], turn_id: str) -> list[str]:
    """The parts of this turn's answer at the end of these rows, in order; each but the last was interrupted."""
    parts: list[str] = []
    may_end_here = True
    """Whether the row before may be a part: it was interrupted, or CONTINUE_TRUNCATED follows it."""
    for row in reversed(rows):
        if row.get("turn_id") != turn_id or row.get("tool_calls") or row["role"] not in ("user", "assistant"):
            break
        if row["role"] == "user":
            if is_synthetic(row) and not is_continuation(row):
                break
            may_end_here = is_synthetic(row)
        elif may_end_here or is_interrupted(row):
            parts.append(text_of(row["content"]))
            may_end_here = False
        else:
            break
    return [part for part in reversed(parts) if part.strip()]


def results_at_end(rows: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The tool results at the end, after the last assistant row."""
    index = len(rows)
    while index and rows[index - 1]["role"] == "tool":
        index -= 1
    return list(rows[index:])


def describe_interruption(
    finished_count: int, rerun: Sequence[ToolCallRequest], unknown: Sequence[ToolCallRequest]
) -> str:
    """The notice about interrupted calls."""
    parts = ["nanobot was interrupted in the middle of this turn and continues from there."]
    if finished_count:
        parts.append(f"{count_noun(finished_count, 'call')} had finished.")
    if rerun:
        parts.append(f"Runs now: {', '.join(call.name for call in rerun)}.")
    if unknown:
        parts.append(f"May or may not have run: {', '.join(call.name for call in unknown)}.")
    return " ".join(parts)
