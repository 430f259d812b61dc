"""What the real APIs refuse about a conversation, as pure functions: a sentence like theirs, or None where it is legal.

Sources: platform.openai.com/docs/api-reference/chat/create and docs.anthropic.com/en/api/messages, and the texts of the
refusals that people report.
"""

import json
import re
from typing import Any

_OPENAI_FIELDS = {
    *("model", "messages", "tools", "tool_choice", "parallel_tool_calls", "stream", "stream_options", "max_tokens"),
    *("max_completion_tokens", "temperature", "top_p", "n", "stop", "seed", "user", "reasoning_effort", "metadata"),
}
_OPENAI_ROW = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "reasoning_content"},
    "tool": {"role", "content", "tool_call_id"},
}


def openai_problem(body: dict[str, Any], reasoning: str = "optional") -> str | None:
    """What OpenAI would refuse about this request, in a sentence like its own; None where it is legal."""
    unknown = sorted(set(body) - _OPENAI_FIELDS)
    if unknown:
        return f"Unrecognized request argument supplied: {unknown[0]}"
    if not isinstance(body.get("model"), str) or not body["model"]:
        return "you must provide a model parameter"
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        return "[] is too short - 'messages'"
    open_calls: list[str] = []
    for index, row in enumerate(rows):
        place = f"messages.[{index}]"
        role = row.get("role")
        if role not in _OPENAI_ROW:
            return f"Invalid value: {role!r} at {place}.role"
        extra = sorted(set(row) - _OPENAI_ROW[role])
        if extra:
            return f"Additional properties are not allowed ({extra[0]!r} was unexpected) - {place!r}"
        if open_calls and role != "tool":
            return (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
            )
        if role == "tool":
            if row.get("tool_call_id") not in open_calls:
                return (
                    "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                    f"'tool_calls' - {place}"
                )
            open_calls.remove(row["tool_call_id"])
        if not _content_ok(row, role):
            return f"Invalid value for 'content': expected a string, got {type(row.get('content')).__name__} - {place}"
        if role == "assistant" and "tool_calls" in row:
            problem = _calls_problem(row, place, reasoning, signed="gemini" in body["model"])
            if problem:
                return problem
            open_calls = [call["id"] for call in row["tool_calls"]]
        elif role == "assistant" and reasoning == "forbidden" and "reasoning_content" in row:
            return f"Unrecognized field reasoning_content in {place}: extra fields are not permitted"
    if open_calls:
        return f"The following tool_call_ids did not have response messages: {', '.join(open_calls)}"
    return _tools_problem(body)


def _content_ok(row: dict[str, Any], role: str) -> bool:
    content = row.get("content")
    if isinstance(content, str):
        return True
    if content is None:
        return role == "assistant" and bool(row.get("tool_calls"))
    kinds = {"text"} if role != "user" else {"text", "image_url", "input_audio", "file"}
    return isinstance(content, list) and bool(content) and all(_block_ok(block, kinds) for block in content)


def _block_ok(block: Any, kinds: set[str]) -> bool:
    if not isinstance(block, dict) or block.get("type") not in kinds:
        return False
    if block["type"] == "image_url":
        url = (block.get("image_url") or {}).get("url", "")
        return isinstance(url, str) and url.startswith(("data:image/", "http://", "https://"))
    return True


def _calls_problem(row: dict[str, Any], place: str, reasoning: str, *, signed: bool) -> str | None:
    calls = row["tool_calls"]
    if not calls:
        return f"[] is too short - '{place}.tool_calls'"
    for call in calls:
        function = call.get("function") or {}
        extra = sorted(set(call) - {"id", "type", "function"} - ({"extra_content"} if signed else set()))
        if extra:
            return f"Additional properties are not allowed ({extra[0]!r} was unexpected) - {place}.tool_calls"
        if call.get("type") != "function" or not call.get("id") or not function.get("name"):
            return f"Missing required parameter in {place}.tool_calls"
        if not isinstance(function.get("arguments"), str):
            return f"Invalid type for '{place}.tool_calls[0].function.arguments': expected a string"
        try:
            if not isinstance(json.loads(function["arguments"]), dict):
                return f"{place}.tool_calls: function.arguments is not a JSON object"
        except ValueError:
            return f"{place}.tool_calls: function.arguments is not valid JSON"
    if len({call["id"] for call in calls}) < len(calls):
        return f"Duplicate tool call ids in {place}.tool_calls"
    if reasoning == "required" and not row.get("reasoning_content"):
        return f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {place}"
    if reasoning == "forbidden" and "reasoning_content" in row:
        return f"Unrecognized field reasoning_content in {place}: extra fields are not permitted"
    return None


def _tools_problem(body: dict[str, Any]) -> str | None:
    tools = body.get("tools")
    if tools is None:
        return None
    if not tools:
        return "[] is too short - 'tools'"
    names = [tool.get("function", {}).get("name") for tool in tools if tool.get("type") == "function"]
    if len(names) < len(tools) or len(set(names)) < len(names):
        return "Invalid 'tools': each needs type function and a name of its own"
    return None


def signature_of(thinking: str) -> str:
    """The signature this server gives to a thought, and wants back with it."""
    return f"sig-{sum(thinking.encode()):x}-{len(thinking)}"


def anthropic_problem(body: dict[str, Any]) -> str | None:
    """What Anthropic would refuse about this request, in a sentence like its own; None where it is legal."""
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        return "messages: at least one message is required"
    if rows[0].get("role") != "user":
        return "messages: first message must use the 'user' role"
    markers = json.dumps([body.get("system"), body.get("tools"), rows]).count('"cache_control"')
    if markers > 4:
        return f"A maximum of 4 blocks with cache_control may be provided. Found {markers}."
    # Thoughts of turns before may be missing; those before the calls that are answered now may not.
    loop_begins = max(index for index, row in enumerate(rows) if row.get("role") == "user" and not _has_results(row))
    open_uses: list[str] = []
    for index, row in enumerate(rows):
        place = f"messages.{index}"
        if row.get("role") not in ("user", "assistant"):
            return f"{place}.role: Input should be 'user' or 'assistant'"
        if set(row) - {"role", "content"}:
            return f"{place}.{min(set(row) - {'role', 'content'})}: Extra inputs are not permitted"
        content = row.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list) or not blocks:
            return f"{place}.content: all messages must have non-empty content"
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        if open_uses and set(results) != set(open_uses):
            return f"{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {open_uses}"
        if set(results) - set(open_uses):
            return f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: {results[0]}"
        if len(results) != len(set(results)):
            return f"{place}: each tool_use must have a single result"
        open_uses = [block["id"] for block in blocks if block.get("type") == "tool_use"]
        problem = next((found for block in blocks if (found := _block_problem(block, row["role"], place))), None)
        if problem:
            return problem
        thinking = body.get("thinking") or {}
        if (
            open_uses
            and index > loop_begins
            and thinking.get("type") == "enabled"
            and blocks[0].get("type") not in ("thinking", "redacted_thinking")
        ):
            return f"{place}.content.0.type: Expected `thinking`, but found `{blocks[0].get('type')}`"
    if open_uses:
        return f"messages: `tool_use` ids were found without `tool_result` blocks: {', '.join(open_uses)}"
    return None


def _has_results(row: dict[str, Any]) -> bool:
    content = row.get("content")
    return isinstance(content, list) and any(block.get("type") == "tool_result" for block in content)


def _block_problem(block: dict[str, Any], role: str, place: str) -> str | None:
    kind = block.get("type")
    if kind == "text" and not str(block.get("text", "")).strip():
        return f"{place}: text content blocks must be non-empty"
    if kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        return f"{place}: `{kind}` blocks can only be in `assistant` messages"
    if kind in ("tool_result", "image") and role != "user":
        return f"{place}: `{kind}` blocks can only be in `user` messages"
    call_id = block.get({"tool_use": "id", "tool_result": "tool_use_id"}.get(str(kind), ""))
    if kind in ("tool_use", "tool_result") and not re.fullmatch(r"[a-zA-Z0-9_-]+", str(call_id)):
        return f"{place}.{kind}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        return f"{place}.tool_use.input: Input should be a valid dictionary"
    if kind == "thinking" and block.get("signature") != signature_of(str(block.get("thinking"))):
        return f"{place}: Invalid `signature` in `thinking` block"
    return None
