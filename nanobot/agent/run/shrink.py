"""Rows made smaller so that a request fits: pure, and the same small row for the same row every time.

A result keeps its head, its tail and a word that says how to see the rest again; a picture becomes the words for it;
the arguments of a call stay legal JSON. The rows handed in are never touched.
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
from nanobot.utils.text import clip, counted

WORDS_CHARS = 4_000
"""What is left of a person's or the model's own words, where even these must shrink."""
STUB_FROM_CHARS = 300
"""A result this short is its own stub."""
_OTHERS_KEPT = 64

_THOUGHTS = ("reasoning_content", "thinking_blocks")
_SPILLED = re.compile(r"(?:are|is) in ([^\n]{1,500}?[\\/]\.nanobot[\\/]spill[\\/][\w.-]+\.txt)")


class Depth(IntEnum):
    """Which rows of a stretch shrink."""

    RESULTS = 0
    """What tools returned, and the arguments they were called with."""
    ASIDES = 1
    """What people sent beside their words and what the model thought, too: for turns that are over."""
    WORDS = 2
    """What people and the model said, too, where it is very long."""


class Shrinker:
    """Makes rows small, each once. `rereadable` names the tools that only read, and so may be called again."""

    def __init__(self, rereadable: Collection[str] = ()) -> None:
        self._rereadable = frozenset(rereadable)
        self._made: dict[tuple[int, int, Depth], tuple[ChatMessage, ChatMessage]] = {}
        """By the identity of the row, which is held, so that nothing else can come to stand at its place."""
        self._notes: dict[tuple[int, int], tuple[ChatMessage, ChatMessage]] = {}

    def shrink(self, row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
        """The row with no part longer than about `chars` characters; itself where nothing is."""
        key = (id(row), chars, depth)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = (row, self._shrunk(row, chars, depth))
        return made[1]

    def note(self, left: Sequence[ChatMessage]) -> ChatMessage:
        """What a model is told of these rows of its running turn, which left the window. There is at least one."""
        key = (id(left[0]), len(left))
        made = self._notes.get(key)
        if made is None:
            made = self._notes[key] = (left[0], _note_of(left))
        return made[1]

    def forget_others(self, rows: Sequence[ChatMessage]) -> None:
        """Let go of rows that are not among these, once there are many of them."""
        if len(self._made) + len(self._notes) > 4 * len(rows) + _OTHERS_KEPT:
            kept = set(map(id, rows))
            self._made = {key: made for key, made in self._made.items() if key[0] in kept}
            self._notes = {key: made for key, made in self._notes.items() if key[0] in kept}

    def _shrunk(self, row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
        match row["role"]:
            case "tool":
                return self._result(row, chars)
            case "assistant":
                return _assistant(row, chars, depth)
            case "user" if depth >= Depth.ASIDES:
                return _user(row, depth)
            case _:
                return row

    def _result(self, row: ChatMessage, chars: int) -> ChatMessage:
        content = row.get("content")
        text = _in_words(content)
        short = clip(text, chars, self._note(row, text))
        unchanged = content if isinstance(content, str) else None
        if short == unchanged or (short == text and not _has_pictures(content)):
            return row
        return {**row, "content": short}

    def _note(self, row: ChatMessage, text: str) -> str:
        """How to see the rest again."""
        name = row.get("name") or "the tool"
        if (spilled := _SPILLED.search(text)) is not None:
            how = f"more of it is in {spilled[1]}"
        elif name in self._rereadable:
            how = f"call {name} again to see it"
        else:
            how = "if you need it, look again with a call that changes nothing"
        return "{left_out} characters left out to make room; " + how.replace("{", "(").replace("}", ")")


def _note_of(left: Sequence[ChatMessage]) -> ChatMessage:
    names = Counter(row.get("name") or "a tool" for row in left if row["role"] == "tool")
    steps = counted(sum(1 for row in left if row["role"] == "assistant"), "earlier step")
    used = ", ".join(f"{name} x{count}" for name, count in names.items())
    text = (
        f"[{steps} of this turn left out to make room{f': {used}' if used else ''}. What was done stays done: "
        "do not do it again, but look again at what you need to know.]"
    )
    return {"role": "user", "content": text, "origin": Origin.SYSTEM, "provenance": Provenance.SYSTEM}


def stub_for(call: ToolCallRequest, content: str | list[dict[str, Any]], shown: Sequence[ChatMessage]) -> str | None:
    """A word in place of a result that the model can still read above; None where it cannot, or where it is short.

    `shown` is the last request: a result counts that stands there whole, of the same tool called in the same way. For
    tools that only read; whether one does is for the caller to know.
    """
    if not isinstance(content, str) or len(content) < STUB_FROM_CHARS:
        return None
    calls = {asked["id"]: asked for row in shown for asked in row.get("tool_calls") or ()}
    for row in reversed(shown):
        if row["role"] == "tool" and row.get("name") == call.name and row["content"] == content:
            asked = calls.get(row.get("tool_call_id", ""))
            if asked is not None and _asks_the_same(asked, call):
                return f"Unchanged since {call.name} returned it above; read it there."[:99]
    return None


def _asks_the_same(asked: ToolCall, call: ToolCallRequest) -> bool:
    text = asked["function"]["arguments"]
    if text == call.arguments_text:
        return True
    try:
        return bool(json.loads(text) == call.arguments)
    except (ValueError, RecursionError):
        return False


def _assistant(row: ChatMessage, chars: int, depth: Depth) -> ChatMessage:
    calls = _list(row.get("tool_calls"))
    short = [_short_call(call, chars) for call in calls]
    content = row.get("content")
    said = clip(content, WORDS_CHARS) if depth >= Depth.WORDS and isinstance(content, str) else content
    thoughts = _THOUGHTS if depth >= Depth.ASIDES else ()
    same = said == content and all(one is other for one, other in zip(calls, short, strict=True))
    if same and not any(row.get(name) for name in thoughts):
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name not in thoughts})
    small["content"] = said
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
    """The arguments with long texts cut; where that is not enough, or they cannot be read, a word in their place."""
    try:
        given: object = json.loads(text)
        short = json.dumps(_short_value(given, max(chars // 2, 1)), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError):
        given, short = None, ""
    if isinstance(given, dict) and len(short) <= 2 * chars:
        return short
    return json.dumps({"left_out": f"{len(text)} characters of arguments, to make room"})


def _short_value(value: object, chars: int) -> object:
    if isinstance(value, str):
        return clip(value, chars)
    if isinstance(value, dict):
        return {name: _short_value(one, chars) for name, one in value.items()}
    if isinstance(value, list):
        return [_short_value(one, chars) for one in value]
    return value


def _user(row: ChatMessage, depth: Depth) -> ChatMessage:
    content = row.get("content")
    media = _list(row.get("media"))
    words = _in_words(content) if media or _has_pictures(content) or depth >= Depth.WORDS else content
    if isinstance(words, str):
        tags = [f"[{'image' if is_picture(path) else 'file'}: {path}]" for path in media if str(path) not in words]
        words = "\n".join([words, *tags])
        words = clip(words, WORDS_CHARS) if depth >= Depth.WORDS else words
    if words == content and not media:
        return row
    small = cast(ChatMessage, {name: value for name, value in row.items() if name != "media"})
    small["content"] = words
    return small


def _has_pictures(content: object) -> bool:
    return any(isinstance(block, dict) and block.get("type") != "text" for block in _list(content))


def _list(found: object) -> list[Any]:
    """What a stored row holds where a list should be."""
    return found if isinstance(found, list) else []


def _in_words(content: object) -> str:
    """A content as text, its pictures named."""
    if isinstance(content, str):
        return content
    return "\n".join(_block_in_words(block) for block in _list(content) if isinstance(block, dict))


def _block_in_words(block: dict[str, Any]) -> str:
    kind = str(block.get("type", ""))
    if kind == "text":
        return str(block.get("text", ""))
    inner = block.get(kind)
    url = inner.get("url") if isinstance(inner, dict) else inner
    path = url if isinstance(url, str) and url and not url.startswith("data:") else ""
    name = {"image_url": "image", "input_audio": "audio"}.get(kind, kind or "attachment")
    return f"[{name}: {path}]" if path else f"[{name}, no longer shown]"
