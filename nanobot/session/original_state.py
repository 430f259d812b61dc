"""Work in progress as release 0.2 of the original design stores it in session metadata. Read once.

runtime_checkpoint   {phase, assistant_message, completed_tool_results, pending_tool_calls, ...}: the last step of
                     the interrupted turn, whose messages are not in the session yet
pending_user_turn    true: the session ends with a message that was not answered
goal_state           {status: active | completed, objective, ...}, or the same as JSON text
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from nanobot.messages.repair import NO_RESULT, legalise
from nanobot.messages.types import ChatMessage

METADATA_KEYS = ("runtime_checkpoint", "pending_user_turn", "goal_state")
_FIELDS = ("content", "tool_calls", "reasoning_content", "thinking_blocks", "timestamp")


def missing_rows(metadata: Mapping[str, Any], history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the checkpoint's messages that are not in the session yet: the assistant's message and finished results.

    Calls without a result stay open, as after a crash of ours. Returns nothing if the checkpoint is invalid or does not
    fit the end of the history.
    """
    checkpoint = metadata.get("runtime_checkpoint")
    if not isinstance(checkpoint, dict) or not isinstance(checkpoint.get("assistant_message"), dict):
        return []
    message = {name: value for name, value in checkpoint["assistant_message"].items() if name in _FIELDS}
    results = checkpoint.get("completed_tool_results")
    results = results if isinstance(results, list) else []
    tool_rows = [{**row, "role": "tool"} for row in results if isinstance(row, dict)]
    rows = legalise([{"role": "user", "content": "?"}, {**message, "role": "assistant"}, *tool_rows])[1:]
    if not rows:
        return []
    step, *finished = [row for row in rows if row["content"] != NO_RESULT]
    at = len(history)
    while at and history[at - 1]["role"] == "tool":
        at -= 1
    last = history[at - 1] if at else None
    if last is None or last["role"] != "assistant":
        return [step, *finished]
    stored = {row.get("tool_call_id") for row in history[at:]}
    call_ids = [call["id"] for call in step.get("tool_calls", ())]
    if call_ids and [call.get("id") for call in last.get("tool_calls", ())] == call_ids:
        return [row for row in finished if row.get("tool_call_id") not in stored]
    if not call_ids and last.get("content") == step["content"]:
        return []
    return [step, *finished]


def active_goal(metadata: Mapping[str, Any]) -> str:
    """Return the objective of an unfinished goal; empty if there is none."""
    state = metadata.get("goal_state")
    if isinstance(state, str):
        with suppress(ValueError, RecursionError):
            state = json.loads(state)
    if not isinstance(state, dict) or state.get("status") != "active":
        return ""
    objective = state.get("objective")
    return objective.strip() if isinstance(objective, str) else ""
