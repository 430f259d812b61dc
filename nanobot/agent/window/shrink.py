"""Shrink rows so that a request fits. Pure and deterministic; input rows are never modified.

A result keeps its head, its tail and a hint how to see the rest; a picture becomes a text tag; the arguments of a call
stay valid JSON.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Sequence
from enum import IntEnum
from typing import Any, cast

from nanobot.messages.tokens import is_picture
from nanobot.messages.types import ChatMessage, Origin, Provenance, ToolCall
from nanobot.providers.base import ToolCallRequest
from nanobot.utils.text import clip, count_noun

WORDS_CHARS = 4_000
"""Length of a shrunk message of a person or the model."""
STUB_FROM_CHARS = 300
"""Shorter results are not replaced by a stub."""
_MAX_OTHER_ROWS = 64

_REASONING_FIELDS = ("reasoning_content", "thinking_blocks")
_SPILLED = re.compile(r"(?:are|is) in ([^\n]{1,500}?[\\/]\.nanobot[\\/]spill[\\/][\w.-]+\.txt)")


class Depth(IntEnum):
    """What is shrunk in a span of rows."""

    RESULTS = 0
    """Tool results and call arguments."""
    ASIDES = 1
    """Also attachments and reasoning; for turns that have ended."""
    WORDS = 2
    """Also very long texts of people and the model."""


class Shrinker:
    """Shrinks rows and caches the results. `rereadable` names the read-only tools, which may be called again."""

    def __init__(self, rereadable: Collection[str] = ()) -> None:
        self._rereadable = frozenset(rereadable)
        self._shrunk_rows: dict[tuple[int, int, Depth], tuple[ChatMessage, ChatMessage]] = {}
        """Keyed by the id() of the row, which is referenced so that the id cannot be reused."""
        self._notes: dict[tuple[int, int], tuple[ChatMessage, ChatMessage]] = {}

    def shrink(self, row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
        """The row with no part longer than about `chars` characters; the same object if nothing changes."""
        key = (id(row), chars, depth)
        cached = self._shrunk_rows.get(key)
        if cached is None:
            cached = self._shrunk_rows[key] = (row, self._shrink_row(row, chars, depth))
        return cached[1]

    def note(self, omitted: Sequence[ChatMessage]) -> ChatMessage:
        """The note that replaces these dropped rows of the running turn; there must be at least one."""
        key = (id(omitted[0]), len(omitted))
        cached = self._notes.get(key)
        if cached is None:
            cached = self._notes[key] = (omitted[0], _omission_note(omitted))
        return cached[1]

    def forget_others(self, rows: Sequence[ChatMessage]) -> None:
        """Drop cached rows that are not among these, once there are many of them."""
        if len(self._shrunk_rows) + len(self._notes) > 4 * len(rows) + _MAX_OTHER_ROWS:
            kept = set(map(id, rows))
            self._shrunk_rows = {key: cached for key, cached in self._shrunk_rows.items() if key[0] in kept}
            self._notes = {key: cached for key, cached in self._notes.items() if key[0] in kept}

    def _shrink_row(self, row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
        match row["role"]:
            case "tool":
                return self._shrink_result(row, chars)
            case "assistant":
                return _shrink_assistant(row, chars, depth)
            case "user" if depth >= Depth.ASIDES:
                return _shrink_user(row, depth)
            case _:
                return row

    def _shrink_result(self, row: ChatMessage, chars: int) -> ChatMessage:
        content = row.get("content")
        text = _as_text(content)
        short = clip(text, chars, self._how_to_see_rest(row, text))
        unchanged = content if isinstance(content, str) else None
        if short == unchanged or (short == text and not _has_pictures(content)):
            return row
        return {**row, "content": short}

    def _how_to_see_rest(self, row: ChatMessage, text: str) -> str:
        name = row.get("name") or "the tool"
        if (spill_match := _SPILLED.search(text)) is not None:
            hint = f"more of it is in {spill_match[1]}"
        elif name in self._rereadable:
            hint = f"call {name} again to see it"
        else:
            hint = "if you need it, look again with a call that changes nothing"
        return "{left_out} characters left out to make room; " + hint.replace("{", "(").replace("}", ")")


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


def _shrink_assistant(row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
    calls = _as_list(row.get("tool_calls"))
    short = [_short_call(call, chars) for call in calls]
    content = row.get("content")
    shortened_content = clip(content, WORDS_CHARS) if depth >= Depth.WORDS and isinstance(content, str) else content
    dropped_fields = _REASONING_FIELDS if depth >= Depth.ASIDES else ()
    same = shortened_content == content and all(item is other for item, other in zip(calls, short, strict=True))
    if same and not any(row.get(name) for name in dropped_fields):
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name not in dropped_fields})
    small["content"] = shortened_content
    if calls:
        small["tool_calls"] = short
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


def _shrink_user(row: ChatMessage, depth: Depth) -> ChatMessage:
    content = row.get("content")
    media = _as_list(row.get("media"))
    text_content = _as_text(content) if media or _has_pictures(content) or depth >= Depth.WORDS else content
    if isinstance(text_content, str):
        tags = [
            f"[{'image' if is_picture(path) else 'file'}: {path}]" for path in media if str(path) not in text_content
        ]
        text_content = "\n".join([text_content, *tags])
        text_content = clip(text_content, WORDS_CHARS) if depth >= Depth.WORDS else text_content
    if text_content == content and not media:
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name != "media"})
    small["content"] = text_content
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
