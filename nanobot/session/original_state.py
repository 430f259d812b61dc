"""Work in progress as release 0.2 of the original design stores it in session metadata. Read once.

runtime_checkpoint   {phase, assistant_message, completed_tool_results, pending_tool_calls, ...}: the last step of
                     the interrupted turn, whose messages are not in the session yet
pending_user_turn    true: the session ends with a message that was not answered
goal_state           {status: active | completed, objective, ...}, or the same as JSON text
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from nanobot.messages.types import ChatMessage

METADATA_KEYS = ("runtime_checkpoint", "pending_user_turn", "goal_state")


def missing_rows(metadata: Mapping[str, Any], history: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Return the checkpoint's messages that are not in the session yet: the assistant's message and finished results.

    Calls without a result stay open, as after a crash of ours. Returns nothing if the checkpoint is invalid or does not
    fit the end of the history.
    """
    checkpoint = metadata.get("runtime_checkpoint")
    if not isinstance(checkpoint, dict) or (message := _assistant_row(checkpoint.get("assistant_message"))) is None:
        return []
    call_ids = [call["id"] for call in message.get("tool_calls", ())]
    results = {row["tool_call_id"]: row for row in _result_rows(checkpoint.get("completed_tool_results"))}
    finished = [results[call_id] for call_id in call_ids if call_id in results]
    at = len(history)
    while at and history[at - 1]["role"] == "tool":
        at -= 1
    last = history[at - 1] if at else None
    if last is None or last["role"] != "assistant":
        return [message, *finished]
    stored = {row.get("tool_call_id") for row in history[at:]}
    if call_ids and [call.get("id") for call in last.get("tool_calls", ())] == call_ids:
        return [row for row in finished if row["tool_call_id"] not in stored]
    if not call_ids and last.get("content") == message["content"]:
        return []
    return [message, *finished]


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


def _assistant_row(message: object) -> ChatMessage | None:
    """Convert the assistant's message with its readable calls; None if it has no content."""
    if not isinstance(message, dict):
        return None
    row: dict[str, Any] = {"role": "assistant", "content": message.get("content")}
    for name, kind in (("reasoning_content", str), ("thinking_blocks", list), ("timestamp", str)):
        if isinstance(message.get(name), kind):
            row[name] = message[name]
    calls = list(_calls(message.get("tool_calls")))
    if calls:
        row["tool_calls"] = calls
    return cast("ChatMessage", row) if calls or (isinstance(row["content"], str | list) and row["content"]) else None


def _calls(calls: object) -> Iterator[dict[str, Any]]:
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not call.get("id"):
            continue
        arguments = function.get("arguments", "{}")
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        yield {"id": str(call["id"]), "type": "function", "function": {"name": function["name"], "arguments": text}}


def _result_rows(results: object) -> Iterator[ChatMessage]:
    for result in results if isinstance(results, list) else ():
        if isinstance(result, dict) and result.get("tool_call_id") and isinstance(result.get("content"), str | list):
            row = {"role": "tool", "tool_call_id": str(result["tool_call_id"]), "name": str(result.get("name") or "")}
            row |= {"content": result["content"]}
            row |= {"timestamp": result["timestamp"]} if isinstance(result.get("timestamp"), str) else {}
            yield cast("ChatMessage", row)
