"""Any history made legal: whatever was cut, doubled, reordered or killed, what a model is sent obeys the strictest API.

`legalise` is pure and runs on load and before every request. What it promises:

- System rows stand at the head; the first row after them is the user's; roles alternate from there.
- A call is answered once, right after the row that made it, in the order of the calls. A missing answer is a neutral
  sentence; a stray or second one goes.
- The user's last message is always there.
- Neighbours of one role become one row, the earlier words first. So appending to a history only ever extends the last
  row of what was sent before or fills in the answers of its last calls: the head stays byte for byte.
- A legal row comes out as the same object. Rows that had to be mended are new; the input is never touched.

Ids of calls are unique within the whole history (Anthropic asks for it); a used one gets a number behind it. Which
characters an id may have differs from wire to wire and is each wire's own business.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from operator import is_
from typing import Any, cast

from nanobot.messages.types import ChatMessage, Origin, least_trusted
from nanobot.utils.text import mended_json

NO_RESULT = "No result: the call was interrupted; its outcome is unknown."
EMPTY_MESSAGE = "[empty message]"
EMPTY_RESULT = "(no output)"

_Row = dict[str, Any]

_FOREIGN = {
    "system": ("tool_calls", "tool_call_id", "name"),
    "user": ("tool_calls", "tool_call_id", "name"),
    "assistant": ("tool_call_id", "name"),
    "tool": ("tool_calls",),
}
"""Fields that belong to another role."""

_TYPED: dict[str, type] = {"runtime_context": str, "reasoning_content": str, "thinking_blocks": list}
"""Fields that reach a wire as they are; of another type they are left out."""

_PICTURES = {"user": ("image_url", "input_audio", "file"), "tool": ("image_url",)}
"""Which blocks besides text a role may hold."""

_GOOD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z").match
_GOOD_ID = re.compile(r"[!-~]+\Z").match


def legalise(messages: Iterable[object]) -> list[ChatMessage]:
    """The history as the strictest API takes it. Never raises, never mutates; doing it twice changes nothing more."""
    history = _History()
    history.add_all(messages)
    return history.so_far()


class LegalHistory:
    """A history that grows, made legal as it does: what was seen once is not looked at again.

    Rows that were handed in must not be changed afterwards.
    """

    def __init__(self) -> None:
        self._seen: list[object] = []
        self._history = _History()

    def __len__(self) -> int:
        """How many rows it remembers."""
        return len(self._seen)

    def of(self, messages: Sequence[object]) -> list[ChatMessage]:
        """The same as `legalise`; quick where `messages` begin with the very rows of the last time."""
        known = len(self._seen)
        if known > len(messages) or not all(map(is_, self._seen, messages)):
            self._history, self._seen, known = _History(), [], 0
        new = messages[known:]
        self._seen += new
        self._history.add_all(new)
        return self._history.so_far()


class _History:
    """The legal rows so far, and the calls of the last one that still wait for their answers."""

    def __init__(self) -> None:
        self._rows: list[_Row | None] = []
        self._open: dict[str, deque[tuple[int, str, str]]] = {}
        """By the id a result will name: the places kept free, with the id and the name of each call."""
        self._unanswered: dict[int, _Row] = {}
        self._ids: dict[str, int] = {}
        self._started = False

    def add_all(self, messages: Iterable[object]) -> None:
        for message in messages:
            if isinstance(message, dict) and not message.get("_command"):
                role = message.get("role")
                if isinstance(role, str) and role in _FOREIGN:
                    getattr(self, role)(_without_strays(message, role))

    def system(self, row: _Row) -> None:
        """Only at the head; a stray one further down is nobody's and goes."""
        content = _mended(row.get("content"), "system")
        if content is not None and not self._started:
            self._rows.append(_with(row, content=content))

    def user(self, row: _Row) -> None:
        self._started = True
        content = _mended(row.get("content"), "user")
        row = _with(row, content=EMPTY_MESSAGE if content is None else content)
        last = self._last("user")
        if last is None:
            self._rows.append(row)
        else:
            self._rows[-1] = _joined_user(last, row)

    def assistant(self, row: _Row) -> None:
        if not self._started:
            return
        content = _mended(row.get("content"), "assistant")
        calls = self._calls(row["tool_calls"]) if "tool_calls" in row else None
        if content is None and not calls:
            return
        self._settle()
        row = _with(row, content=content)
        if calls:
            row = _with(row, tool_calls=[call for call, _ in calls])
        elif "tool_calls" in row:
            row = {name: value for name, value in row.items() if name != "tool_calls"}
        last = self._last("assistant")
        if last is not None:
            self._rows[-1] = row = _joined_assistant(last, row)
        else:
            self._rows.append(row)
        for call, asked_as in calls or ():
            place = len(self._rows)
            self._rows.append(None)
            name = call["function"]["name"]
            self._open.setdefault(asked_as, deque()).append((place, call["id"], name))
            self._unanswered[place] = _no_result(row, call["id"], name)

    def tool(self, row: _Row) -> None:
        asked_as = row.get("tool_call_id")
        waiting = self._open.get(asked_as) if isinstance(asked_as, str) else None
        if not waiting:
            return
        place, call_id, name = waiting.popleft()
        content = _mended(row.get("content"), "tool")
        content = EMPTY_RESULT if content is None else content
        self._rows[place] = _with(row, content=content, tool_call_id=call_id, name=name)
        del self._unanswered[place]

    def so_far(self) -> list[ChatMessage]:
        """The rows as they are to be sent now; more may be added."""
        rows = self._rows.copy()
        for place, row in self._unanswered.items():
            rows[place] = row
        return cast("list[ChatMessage]", rows)

    def _settle(self) -> None:
        """What is unanswered when the next step begins stays unanswered: the model has read it so."""
        for place, row in self._unanswered.items():
            self._rows[place] = row
        self._unanswered.clear()
        self._open.clear()

    def _last(self, role: str) -> _Row | None:
        """The last row, if it is of this role."""
        last = self._rows[-1] if self._rows else None
        return last if last is not None and last["role"] == role else None

    def _calls(self, found: object) -> list[tuple[_Row, str]]:
        """The calls, mended, each with the id its result will name. A call that is there twice is one call."""
        calls: list[tuple[_Row, str]] = []
        seen: list[tuple[object, str, str]] = []
        for number, raw in enumerate(found if isinstance(found, list) else ()):
            call = _mended_call(raw)
            if call is None:
                continue
            function = call["function"]
            asked_as = call["id"] if isinstance(call["id"], str) else ""
            twin = (asked_as, function["name"], function["arguments"])
            if asked_as and twin in seen:
                continue
            seen.append(twin)
            call_id = self._unique(asked_as if _GOOD_ID(asked_as) else _cleaned(asked_as, f"call_{number}"))
            calls.append((_with(call, id=call_id), asked_as))
        return calls

    def _unique(self, call_id: str) -> str:
        unique = call_id
        while unique in self._ids:
            self._ids[call_id] += 1
            unique = f"{call_id}-{self._ids[call_id]}"
        self._ids[unique] = 1
        return unique


def _with(row: _Row, **fields: object) -> _Row:
    """The row with these fields: itself where nothing differs."""
    for name, value in fields.items():
        if name not in row or (row[name] is not value and row[name] != value):
            return {**row, **fields}
    return row


def _without_strays(row: _Row, role: str) -> _Row:
    """The row without fields of other roles or of the wrong type."""
    strays = [name for name in _FOREIGN[role] if name in row]
    for name, kind in _TYPED.items():
        value = row.get(name)
        if value is not None and (not isinstance(value, kind) or _is_odd(value)):
            strays.append(name)
    return {name: value for name, value in row.items() if name not in strays} if strays else row


def _is_odd(value: object) -> bool:
    """A text no wire can encode, or blocks that are none."""
    if isinstance(value, str):
        return _sound(value) is not value
    return not isinstance(value, list) or not value or not all(isinstance(block, dict) for block in value)


def _sound(text: str) -> str:
    """The text without halves of surrogate pairs, which cannot be sent as UTF-8."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _mended(content: object, role: str) -> str | list[_Row] | None:
    """The content as this role may hold it; None where nothing is left. A legal one comes out as it is."""
    if isinstance(content, str):
        return _sound(content) if content and not content.isspace() else None
    if content is None:
        return None
    if not isinstance(content, list):
        return _mended(_as_json(content), role)
    blocks = [block for raw in content if (block := _mended_block(raw, _PICTURES.get(role, ()))) is not None]
    if len(blocks) == len(content) and all(block is raw for block, raw in zip(blocks, content, strict=True)):
        return content or None
    return blocks or None


def _mended_block(raw: object, pictures: tuple[str, ...]) -> _Row | None:
    block: object = {"type": "text", "text": raw} if isinstance(raw, str) else raw
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if isinstance(kind, str) and kind in pictures:
        return _mended_picture(block, kind)
    text = block.get("text")
    if not isinstance(text, str) or not text or text.isspace():
        return None
    return _with(block, type="text", text=_sound(text))


def _mended_picture(block: _Row, kind: str) -> _Row | None:
    inner = block.get(kind)
    if kind != "image_url":
        return block if isinstance(inner, dict) and inner else None
    if isinstance(inner, str) and inner:
        return {**block, "image_url": {"url": _sound(inner)}}
    url = inner.get("url") if isinstance(inner, dict) else None
    if not isinstance(url, str) or not url:
        return None
    return block if _sound(url) is url else {**block, "image_url": {**cast(_Row, inner), "url": _sound(url)}}


def _mended_call(raw: object) -> _Row | None:
    """A call in OpenAI's shape, its id still as it was; None where it names no tool."""
    if not isinstance(raw, dict):
        return None
    found = raw.get("function")
    function: _Row = found if isinstance(found, dict) else raw
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    name = name if _GOOD_NAME(name) else _cleaned(name, "unknown")[:64]
    arguments = _object_text(function.get("arguments"))
    sound = function["name"] == name and function.get("arguments") == arguments
    if sound and found is function and raw.get("type") == "function" and "id" in raw:
        return raw
    call = {key: value for key, value in raw.items() if key not in {"function", "name", "arguments", "type", "id"}}
    kept = function if function is found else {}
    return {"id": raw.get("id"), "type": "function", **call, "function": {**kept, "name": name, "arguments": arguments}}


def _cleaned(text: str, otherwise: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or otherwise


def _refused(constant: str) -> object:
    raise ValueError(constant)


_STRICT_JSON = json.JSONDecoder(parse_constant=_refused)  # NaN is not JSON


def _object_text(arguments: object) -> str:
    """JSON text of one object: as it came where it is one, mended where it can be, else that of an empty object."""
    if isinstance(arguments, dict):
        return _as_json(arguments)
    if not isinstance(arguments, str) or not arguments.strip():
        return "{}"
    try:
        found: object = _STRICT_JSON.decode(arguments)
        if isinstance(found, dict):
            return _sound(arguments)
    except (ValueError, RecursionError):
        try:
            found = mended_json(arguments)
        except ValueError:
            return "{}"
    return _as_json(found) if isinstance(found, dict) else "{}"


def _as_json(value: object) -> str:
    """Strict JSON of anything; of what cannot be written, an empty object."""
    try:
        return _sound(json.dumps(value, ensure_ascii=False, allow_nan=False, default=str))
    except (ValueError, TypeError, RecursionError):
        return "{}"


def _no_result(asked: _Row, call_id: str, name: str) -> _Row:
    row = {"role": "tool", "tool_call_id": call_id, "name": name, "content": NO_RESULT, "provenance": "system"}
    return {**row, "turn_id": asked["turn_id"]} if "turn_id" in asked else row


def _joined(first: object, second: object) -> object:
    """Two legal contents as one, the first one's words first."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_as_blocks(first), *_as_blocks(second)]


def _as_blocks(content: object) -> list[object]:
    return content if isinstance(content, list) else [{"type": "text", "text": content}]


def _overlaid(first: _Row, second: _Row) -> _Row:
    """The fields of both; where both have one, the later word counts, but trust never rises."""
    row = {**first, **{name: value for name, value in second.items() if value is not None}}
    marks = [str(mark) for mark in (first.get("provenance"), second.get("provenance")) if mark is not None]
    return {**row, "provenance": str(least_trusted(marks))} if marks else row


def _joined_user(first: _Row, second: _Row) -> _Row:
    """Two messages in a row; the runtime context of the first stays where it stood, behind its words."""
    row = _overlaid(first, second)
    if (context := first.get("runtime_context")) and not context.isspace():
        first = {**first, "content": _joined(first["content"], context)}
        if (beside := first.get("context_provenance")) is not None:
            row["provenance"] = str(least_trusted([str(row.get("provenance", beside)), str(beside)]))
        if not second.get("runtime_context"):
            del row["runtime_context"]
    if isinstance(first.get("media"), list) and isinstance(second.get("media"), list):
        row["media"] = [*first["media"], *second["media"]]
    if second.get("origin") == Origin.SYSTEM and first.get("origin") != Origin.SYSTEM:
        row["origin"] = first.get("origin", Origin.USER.value)
    return {**row, "content": _joined(first["content"], second["content"])}


def _joined_assistant(first: _Row, second: _Row) -> _Row:
    return {**_overlaid(first, second), "content": _joined(first["content"], second["content"])}
