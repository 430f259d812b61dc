"""The rules by which the strictest model servers reject a conversation, for the fake server and for tests.

`openai_problem` and `anthropic_problem` check a request as a server gets it, and return its error text, or None.
`openai_problems` and `anthropic_problems` check a history as `legalise` returns it, and return all errors.
`responses_problems` returns all errors of a request.

Sources: platform.openai.com/docs/api-reference/chat/create and .../responses/create,
docs.anthropic.com/en/api/messages, and reported error texts.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

_Row = dict[str, Any]

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
_CALL = {"id", "type", "function"}
_OPENAI_BLOCKS = {"user": {"text", "image_url", "input_audio", "file"}}
_HISTORY_BLOCKS = {**_OPENAI_BLOCKS, "tool": {"text", "image_url"}}
"""In a history a result may contain images; in a request they follow in a user row."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


# --- chat completions


def openai_problem(body: _Row, reasoning: str = "optional") -> str | None:
    """Return why OpenAI would reject this request; None if it would not."""
    return next(_openai_request(body, reasoning), None)


def openai_problems(history: Sequence[Any]) -> list[str]:
    """Return why OpenAI would reject this history. Our own fields are ignored."""
    return list(_openai_conversation(history, _HISTORY_BLOCKS))


def _openai_request(body: _Row, reasoning: str) -> Iterator[str]:
    for name in sorted(set(body) - _OPENAI_FIELDS):
        yield f"Unrecognized request argument supplied: {name}"
    if not isinstance(body.get("model"), str) or not body["model"]:
        yield "you must provide a model parameter"
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        yield "[] is too short - 'messages'"
        return
    for index, row in enumerate(rows):
        place = f"messages.[{index}]"
        for name in sorted(set(row) - _OPENAI_ROW.get(row.get("role"), set(row))):
            yield f"Additional properties are not allowed ({name!r} was unexpected) - {place!r}"
        if row.get("role") == "assistant":
            yield from _reasoning_problems(row, index, reasoning)
            signed = {"extra_content"} if "gemini" in str(body.get("model")) else set()
            for name in sorted({name for call in row.get("tool_calls") or () for name in call} - _CALL - signed):
                yield f"Additional properties are not allowed ({name!r} was unexpected) - '{place}.tool_calls'"
        for block in row["content"] if isinstance(row.get("content"), list) else ():
            url = str((block.get("image_url") or {}).get("url", ""))
            if block.get("type") == "image_url" and not url.startswith(("data:image/", "http://", "https://")):
                yield f"Invalid '{place}.content[0].image_url.url'. Expected a valid URL, but got {url[:40]!r}"
    yield from _openai_conversation(rows, _OPENAI_BLOCKS)
    yield from _tools_problems(body.get("tools"))


def _openai_conversation(rows: Sequence[Any], blocks: dict[str, set[str]]) -> Iterator[str]:
    """Check roles, contents, and that exactly one result follows each call."""
    pending: list[str] = []
    for index, row in enumerate(rows):
        place = f"messages.[{index}]"
        role = row.get("role") if isinstance(row, dict) else None
        if role not in _OPENAI_ROW:
            yield f"Invalid value: {role!r} at {place}.role"
            continue
        if pending and role != "tool":
            yield (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(pending)}"
            )
            pending = []
        if role == "tool" and row.get("tool_call_id") not in pending:
            yield (
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message with "
                f"'tool_calls' - {place}"
            )
        elif role == "tool":
            pending.remove(row["tool_call_id"])
        if not _content_ok(row, role, blocks):
            yield f"Invalid value for 'content': expected a string, got {type(row.get('content')).__name__} - {place}"
        if "tool_calls" in row:
            yield from _calls_problems(row["tool_calls"], place, role)
            pending = [call["id"] for call in row["tool_calls"] or () if isinstance(call, dict) and call.get("id")]
        if not _encodes(row):
            yield f"We could not parse the JSON body of your request: {place} is not UTF-8"
    if pending:
        yield f"The following tool_call_ids did not have response messages: {', '.join(pending)}"


def _content_ok(row: _Row, role: str, blocks: dict[str, set[str]]) -> bool:
    content = row.get("content")
    if isinstance(content, str):
        return True
    if content is None:
        return role == "assistant" and bool(row.get("tool_calls"))
    kinds = blocks.get(role, {"text"})
    return isinstance(content, list) and bool(content) and all(_block_ok(block, kinds) for block in content)


def _block_ok(block: Any, kinds: set[str]) -> bool:
    if not isinstance(block, dict) or block.get("type") not in kinds:
        return False
    if block["type"] == "image_url":
        url = (block.get("image_url") or {}).get("url")
        return isinstance(url, str) and bool(url)
    return block["type"] != "text" or isinstance(block.get("text"), str)


def _calls_problems(calls: Any, place: str, role: str) -> Iterator[str]:
    if role != "assistant":
        yield f"Additional properties are not allowed ('tool_calls' was unexpected) - {place!r}"
    if not isinstance(calls, list) or not calls:
        yield f"[] is too short - '{place}.tool_calls'"
        return
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type") != "function" or not function.get("name"):
            yield f"Missing required parameter in {place}.tool_calls"
            continue
        if not isinstance(call.get("id"), str) or not call["id"]:
            yield f"Missing required parameter: '{place}.tool_calls[0].id'"
        if not _NAME.match(str(function["name"])):
            yield f"Invalid '{place}.tool_calls[0].function.name': string does not match pattern '^[a-zA-Z0-9_-]+$'"
        yield from _arguments_problems(function.get("arguments"), place)
    if len({str(call.get("id")) for call in calls if isinstance(call, dict)}) < len(calls):
        yield f"Duplicate tool call ids in {place}.tool_calls"


def _arguments_problems(arguments: Any, place: str) -> Iterator[str]:
    if not isinstance(arguments, str):
        yield f"Invalid type for '{place}.tool_calls[0].function.arguments': expected a string"
        return
    try:
        if not isinstance(json.loads(arguments), dict):
            yield f"{place}.tool_calls: function.arguments is not a JSON object"
    except ValueError:
        yield f"{place}.tool_calls: function.arguments is not valid JSON"


def _reasoning_problems(row: _Row, index: int, reasoning: str) -> Iterator[str]:
    """Models with visible reasoning require `reasoning_content`, others reject it."""
    if reasoning == "required" and row.get("tool_calls") and not row.get("reasoning_content"):
        yield f"thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}"
    if reasoning == "forbidden" and "reasoning_content" in row:
        yield f"Unrecognized field reasoning_content in messages.[{index}]: extra fields are not permitted"


def _tools_problems(tools: Any) -> Iterator[str]:
    if tools is None:
        return
    if not tools:
        yield "[] is too short - 'tools'"
    names = [tool.get("function", {}).get("name") for tool in tools if tool.get("type") == "function"]
    if len(names) < len(tools) or len(set(names)) < len(names):
        yield "Invalid 'tools': each needs type function and a name of its own"


def _encodes(row: _Row) -> bool:
    sent = {name: row.get(name) for name in ("content", "tool_calls", "tool_call_id", "name", "reasoning_content")}
    try:
        json.dumps(sent, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError:
        return False
    return True


# --- Responses

_RESPONSES_FIELDS = {
    *("model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "store", "stream"),
    *("include", "prompt_cache_key", "text", "max_output_tokens", "temperature", "top_p", "metadata"),
}
_RESPONSES_BLOCKS = {"user": {"input_text", "input_image"}, "developer": {"input_text"}, "assistant": {"output_text"}}
_ENCRYPTED = re.compile(r"enc-[0-9a-f]{16}-\d+\Z")


def encrypted(reasoning: str) -> str:
    """Return the reasoning as the fake server encrypts it, and accepts it back."""
    return f"enc-{hashlib.sha256(reasoning.encode()).hexdigest()[:16]}-{len(reasoning)}"


def responses_problems(body: _Row) -> list[str]:
    """Return why OpenAI Responses would reject this request, which stores nothing."""
    return list(_responses_request(body))


def _responses_request(body: _Row) -> Iterator[str]:
    for name in sorted(set(body) - _RESPONSES_FIELDS):
        yield f"Unsupported parameter: {name}"
    if (body.get("max_output_tokens") or 16) < 16:
        yield "Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16."
    items = body.get("input")
    if not isinstance(items, list) or not items:
        yield "Input must be a list"
        return
    for place, tool in enumerate(body.get("tools") or ()):
        if tool.get("type") != "function" or not _NAME.match(str(tool.get("name"))) or "function" in tool:
            yield f"Missing required parameter: 'tools[{place}].name'."
        if tool.get("strict") is not False:
            yield f"Invalid schema for function {tool.get('name')!r}: 'additionalProperties' is required to be false"
    yield from _item_problems(items)


def _item_problems(items: list[_Row]) -> Iterator[str]:
    owed: list[str] = []
    called: set[str] = set()
    for place, item in enumerate(items):
        where, kind = f"input[{place}]", item.get("type")
        if "id" in item:
            yield f"Item with id {item['id']!r} not found. Items are not persisted when `store` is set to false."
        if kind == "message":
            blocks = item.get("content")
            allowed = _RESPONSES_BLOCKS.get(str(item.get("role")))
            if allowed is None:
                yield f"Invalid value: {item.get('role')!r} at {where}.role"
            elif (
                not isinstance(blocks, list) or not blocks or any(block.get("type") not in allowed for block in blocks)
            ):
                yield f"Invalid value at {where}.content. Supported values are: {sorted(allowed)}"
            else:
                yield from _picture_problems(blocks, where)
        elif kind == "function_call":
            call_id = item.get("call_id")
            if not isinstance(call_id, str) or not 0 < len(call_id) <= 64 or call_id in called:
                yield f"Invalid '{where}.call_id': string too long or empty, or not the only one"
            if not _NAME.match(str(item.get("name"))) or not isinstance(item.get("arguments"), str):
                yield f"Invalid type for '{where}': a function call has a name and arguments"
            called.add(str(call_id))
            owed.append(str(call_id))
        elif kind == "function_call_output":
            if item.get("call_id") not in owed:
                yield f"No tool call found for function call output with call_id {item.get('call_id')}."
            else:
                owed.remove(item["call_id"])
            output = item.get("output")
            if isinstance(output, list):
                yield from _picture_problems(output, where)
            elif not isinstance(output, str):
                yield f"Invalid type for '{where}.output'"
        elif kind == "reasoning":
            if not isinstance(item.get("summary"), list):
                yield f"Missing required parameter: '{where}.summary'."
            if not _ENCRYPTED.match(str(item.get("encrypted_content"))):
                yield f"The encrypted content {str(item.get('encrypted_content'))[:8]} could not be verified."
            after = items[place + 1] if place + 1 < len(items) else {}
            if after.get("type") not in ("reasoning", "function_call") and after.get("role") != "assistant":
                yield f"Item {where} of type 'reasoning' was provided without its required following item."
        else:
            yield f"Invalid value: {kind!r} at {where}.type"
        if kind != "function_call" and kind != "function_call_output" and owed:
            yield f"No tool output found for function call {owed[0]}."
            owed = []
    if owed:
        yield f"No tool output found for function call {owed[0]}."


def _picture_problems(blocks: list[_Row], where: str) -> Iterator[str]:
    for block in blocks:
        url = block.get("image_url")
        if block.get("type") == "input_image" and not str(url).startswith(("data:image/", "https://", "http://")):
            yield f"Invalid '{where}.image_url'. Expected a valid URL, but got {str(url)[:40]!r}"
        if block.get("type") != "input_image" and not isinstance(block.get("text"), str):
            yield f"Missing required parameter: '{where}.text'"


# --- messages


def signature_of(thinking: str) -> str:
    """The signature that the fake server gives to a thinking block, and expects back."""
    return f"sig-{sum(thinking.encode()):x}-{len(thinking)}"


def anthropic_problem(body: _Row) -> str | None:
    """Return why Anthropic would reject this request; None if it would not."""
    return next(_anthropic_request(body), None)


def anthropic_problems(history: Sequence[Any]) -> list[str]:
    """Return why Anthropic would reject this history, converted to its format. Our own fields are ignored."""
    head = next((place for place, row in enumerate(history) if row.get("role") != "system"), len(history))
    return list(_anthropic_conversation(_in_anthropic_shape(history[head:])))


def _anthropic_request(body: _Row) -> Iterator[str]:
    if not isinstance(body.get("max_tokens"), int):
        yield "max_tokens: Field required"
    rows = body.get("messages")
    if not isinstance(rows, list) or not rows:
        yield "messages: at least one message is required"
        return
    markers = json.dumps([body.get("system"), body.get("tools"), rows]).count('"cache_control"')
    if markers > 4:
        yield f"A maximum of 4 blocks with cache_control may be provided. Found {markers}."
    for index, row in enumerate(rows):
        for name in sorted(set(row) - {"role", "content"}):
            yield f"messages.{index}.{name}: Extra inputs are not permitted"
        for block in _blocks(row.get("content")):
            call_id = block.get({"tool_use": "id", "tool_result": "tool_use_id"}.get(str(block.get("type")), ""), "a")
            if not re.fullmatch(r"[a-zA-Z0-9_-]+", str(call_id)):
                yield f"messages.{index}.{block['type']}.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    yield from _anthropic_conversation(rows)
    if (body.get("thinking") or {}).get("type") == "enabled":
        yield from _lost_thinking(rows)


def _anthropic_conversation(rows: Sequence[_Row]) -> Iterator[str]:
    """Check that roles alternate, and that exactly the results of its calls follow each row with calls."""
    if rows and rows[0].get("role") != "user":
        yield "messages: first message must use the 'user' role"
    before = ""
    pending: list[str] = []
    seen: set[str] = set()
    for index, row in enumerate(rows):
        place, role = f"messages.{index}", str(row.get("role"))
        if role not in ("user", "assistant"):
            yield f"{place}.role: Input should be 'user' or 'assistant'"
        if role == before:
            yield f'messages: roles must alternate between "user" and "assistant", but found multiple "{role}" in a row'
        before = role
        blocks = _blocks(row.get("content"))
        if not blocks:
            yield f"{place}.content: all messages must have non-empty content"
        results = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
        if pending and results != pending:
            yield f"{place}: `tool_use` ids were found without `tool_result` blocks immediately after: {pending}"
        elif results != pending:
            yield f"{place}: unexpected `tool_use_id` found in `tool_result` blocks: {results[0]}"
        pending = [str(block.get("id")) for block in blocks if block.get("type") == "tool_use"]
        if len(pending) > len(set(pending)) or seen.intersection(pending):
            yield f"{place}: `tool_use` ids must be unique"
        seen.update(pending)
        for block in blocks:
            yield from _block_problems(block, role, place)
    if pending:
        yield f"messages: `tool_use` ids were found without `tool_result` blocks: {', '.join(pending)}"


def _block_problems(block: _Row, role: str, place: str) -> Iterator[str]:
    kind = block.get("type")
    if kind == "text" and not str(block.get("text", "")).strip():
        yield f"{place}: text content blocks must be non-empty"
    if kind in ("tool_use", "thinking", "redacted_thinking") and role != "assistant":
        yield f"{place}: `{kind}` blocks can only be in `assistant` messages"
    if kind in ("tool_result", "image") and role != "user":
        yield f"{place}: `{kind}` blocks can only be in `user` messages"
    if kind == "tool_use" and not isinstance(block.get("input"), dict):
        yield f"{place}.tool_use.input: Input should be a valid dictionary"
    if kind == "thinking" and block.get("signature") != signature_of(str(block.get("thinking"))):
        yield f"{place}: Invalid `signature` in `thinking` block"
    if kind == "tool_result":
        for inner in _blocks(block.get("content")):
            yield from _block_problems(inner, role, f"{place}.tool_result")


def _lost_thinking(rows: Sequence[_Row]) -> Iterator[str]:
    """Thinking blocks of earlier turns may be missing; those before calls of the current turn may not."""
    asked = [index for index, row in enumerate(rows) if row.get("role") == "user" and not _has_results(row)]
    for index, row in enumerate(rows):
        if index < max(asked, default=0):
            continue
        kinds = [block.get("type") for block in _blocks(row.get("content"))]
        if "tool_use" in kinds and kinds[0] not in ("thinking", "redacted_thinking"):
            yield f"messages.{index}.content.0.type: Expected `thinking`, but found `{kinds[0]}`"


def _has_results(row: _Row) -> bool:
    return any(block.get("type") == "tool_result" for block in _blocks(row.get("content")))


def _in_anthropic_shape(history: Sequence[_Row]) -> list[_Row]:
    """Convert chat messages: a call becomes a block of the assistant's row, a result one of a user row."""
    rows: list[_Row] = []
    for row in history:
        role, blocks = row.get("role"), _blocks(row.get("content"))
        if role == "tool":
            blocks = [{"type": "tool_result", "tool_use_id": row.get("tool_call_id"), "content": blocks}]
        for call in row.get("tool_calls") or ():
            arguments = json.loads(call["function"]["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": call["function"]["name"], "input": arguments})
        behind_results = rows and rows[-1]["role"] == "user" and rows[-1]["content"][-1].get("type") == "tool_result"
        if role in ("tool", "user") and behind_results:
            rows[-1]["content"] += blocks
        else:
            rows.append({"role": "user" if role == "tool" else role, "content": blocks})
    return rows


def _blocks(content: Any) -> list[_Row]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [block for block in content or () if isinstance(block, dict)]
