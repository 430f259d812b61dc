"""Shrink rows so that a request fits. Pure and deterministic; input rows are never modified.

A result keeps its head, its tail and a hint how to see the rest; a picture becomes a text tag; the arguments of a call
stay valid JSON.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

from nanobot.messages.tokens import estimate_tokens, is_picture
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolCall
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import clip, count_noun

STUB_FROM_CHARS = 300
"""Shorter results are not replaced by a stub."""
_TEXT_CHARS = 8_000
"""Length of a shrunk text of a person or the model."""
_SPARE_ROWS = 100

_REASONING_FIELDS = ("reasoning_content", "thinking_blocks")
_SPILLED = re.compile(r"(?:are|is) in ([^\n]{1,500}?[\\/]\.nanobot[\\/]spill[\\/][\w.-]+\.txt)")


class RowCache:
    """Weighs and shrinks rows, each once. They must not change meanwhile.

    Entries are keyed by the id() of a row, which is referenced so that the id cannot be reused.
    """

    def __init__(self) -> None:
        self._tokens: dict[int, tuple[ChatMessage, int]] = {}
        self._made: dict[tuple[int, int, bool | None], tuple[ChatMessage, ChatMessage]] = {}

    def weigh(self, rows: Sequence[ChatMessage]) -> int:
        """The estimated tokens of these rows."""
        total = 0
        for row in rows:
            known = self._tokens.get(id(row))
            if known is None:
                known = self._tokens[id(row)] = (row, estimate_tokens([row]))
            total += known[1]
        return total

    def shrink(self, row: ChatMessage, chars: int, *, is_over: bool) -> ChatMessage:
        """`shrink_row`; the same object for the same row."""
        key = (id(row), chars, is_over)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = (row, shrink_row(row, chars, is_over=is_over))
        return known[1]

    def note(self, omitted: Sequence[ChatMessage]) -> ChatMessage:
        """The note that replaces these dropped rows of the running turn; there must be at least one."""
        key = (id(omitted[0]), len(omitted), None)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = (omitted[0], _omission_note(omitted))
        return known[1]

    def trim(self, rows: int) -> None:
        """Forget everything once there is much more than that many rows need."""
        if len(self._tokens) + len(self._made) > 4 * rows + _SPARE_ROWS:
            self._tokens, self._made = {}, {}


def shrink_row(row: ChatMessage, chars: int, *, is_over: bool) -> ChatMessage:
    """The row with results and call arguments of about `chars` characters; the same object if nothing changes.

    If its turn is over, reasoning and attachments go too, and very long texts of people and the model shrink.
    """
    match row["role"]:
        case "tool":
            return _shrink_result(row, chars)
        case "assistant":
            return _shrink_assistant(row, chars, is_over=is_over)
        case "user" if is_over:
            return _shrink_user(row)
        case _:
            return row


def _shrink_result(row: ChatMessage, chars: int) -> ChatMessage:
    content = row.get("content")
    text = _as_text(content)
    spilled = _SPILLED.search(text)
    rest = f"more of it is in {spilled[1]}" if spilled else "to see it, repeat the call if it changes nothing"
    note = "{left_out} characters left out to make room; " + rest.replace("{", "(").replace("}", ")")
    short = clip(text, chars, note)
    unchanged = content if isinstance(content, str) else None
    if short == unchanged or (short == text and not _has_pictures(content)):
        return row
    return {**row, "content": short}


def _omission_note(omitted: Sequence[ChatMessage]) -> ChatMessage:
    names = Counter(row.get("name") or "a tool" for row in omitted if row["role"] == "tool")
    steps = count_noun(sum(1 for row in omitted if row["role"] == "assistant"), "earlier step")
    used = ", ".join(f"{name} x{count}" for name, count in names.items())
    text = (
        f"[{steps} of this turn left out to make room{f': {used}' if used else ''}. What was done stays done: "
        "do not do it again, but look again at what you need to know.]"
    )
    return {"role": "user", "content": text, "origin": Origin.SYSTEM, "provenance": Provenance.SYSTEM}


def stub_for(call: ToolCallRequest, content: str | list[dict[str, Any]], rows: Sequence[ChatMessage]) -> str | None:
    """A stub for a result that the model still sees above; None if it does not, or if the result is short.

    `rows` is the last request. It must contain the whole result, of the same tool with the same arguments. Only for
    read-only tools; the caller checks that.
    """
    if not isinstance(content, str) or len(content) < STUB_FROM_CHARS:
        return None
    calls = {earlier_call["id"]: earlier_call for row in rows for earlier_call in row.get("tool_calls") or ()}
    for row in reversed(rows):
        if row["role"] == "tool" and row.get("name") == call.name and row["content"] == content:
            earlier_call = calls.get(row.get("tool_call_id", ""))
            if earlier_call is not None and _is_same_call(earlier_call, call):
                return f"Unchanged since {call.name} returned it above; read it there."
    return None


def _is_same_call(earlier_call: ToolCall, call: ToolCallRequest) -> bool:
    text = earlier_call["function"]["arguments"]
    if text == call.arguments_text:
        return True
    try:
        return bool(json.loads(text) == call.arguments)
    except (ValueError, RecursionError):
        return False


def _shrink_assistant(row: ChatMessage, chars: int, *, is_over: bool) -> ChatMessage:
    calls = _as_list(row.get("tool_calls"))
    short_calls = [_short_call(call, chars) for call in calls]
    content = row.get("content")
    short = clip(content, _TEXT_CHARS) if is_over and isinstance(content, str) else content
    dropped_fields = _REASONING_FIELDS if is_over else ()
    same = short == content and all(item is other for item, other in zip(calls, short_calls, strict=True))
    if same and not any(row.get(name) for name in dropped_fields):
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name not in dropped_fields})
    small["content"] = short
    if calls:
        small["tool_calls"] = short_calls
    return small


def _short_call(call: Any, chars: int) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    text = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(function, dict) or not isinstance(text, str) or len(text) <= chars:
        return call
    short = _short_arguments(text, chars)
    return {**call, "function": {**function, "arguments": short}} if len(short) < len(text) else call


def _short_arguments(text: str, chars: int) -> str:
    """The arguments with long texts clipped; a placeholder if that is not enough or they cannot be parsed."""
    try:
        parsed: object = json.loads(text)
        short = json.dumps(_short_value(parsed, max(chars // 2, 1)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        parsed, short = None, ""
    if isinstance(parsed, dict) and len(short) <= 2 * chars:
        return short
    return json.dumps({"left_out": f"{len(text)} characters of arguments, to make room"})


def _short_value(value: object, chars: int) -> object:
    if isinstance(value, str):
        return clip(value, chars)
    if isinstance(value, dict):
        return {name: _short_value(item, chars) for name, item in value.items()}
    if isinstance(value, list):
        return [_short_value(item, chars) for item in value]
    return value


def _shrink_user(row: ChatMessage) -> ChatMessage:
    content, media = row.get("content"), _as_list(row.get("media"))
    text = _as_text(content)
    tags = [f"[{'image' if is_picture(path) else 'file'}: {path}]" for path in media if str(path) not in text]
    short = clip("\n".join([text, *tags]), _TEXT_CHARS)
    if short == text and not media and not _has_pictures(content):
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name != "media"})
    small["content"] = short
    return small


def _has_pictures(content: object) -> bool:
    return any(isinstance(block, dict) and block.get("type") != "text" for block in _as_list(content))


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_text(content: object) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(_block_as_text(block) for block in _as_list(content) if isinstance(block, dict))


def _block_as_text(block: dict[str, Any]) -> str:
    kind = str(block.get("type", ""))
    if kind == "text":
        return str(block.get("text", ""))
    inner = block.get(kind)
    url = inner.get("url") if isinstance(inner, dict) else inner
    path = url if isinstance(url, str) and url and not url.startswith("data:") else ""
    name = {"image_url": "image", "input_audio": "audio"}.get(kind, kind or "attachment")
    return f"[{name}: {path}]" if path else f"[{name}, no longer shown]"
