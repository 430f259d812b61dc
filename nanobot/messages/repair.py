"""Repair of histories: whatever was truncated, duplicated or reordered, the result is valid for the strictest API.

`legalise` is pure and runs on load and before every request. It guarantees:

- System rows come first; the first row after them is a user row; roles alternate from there.
- Each call has exactly one result, right after the row with the calls, in their order. A missing result gets a
  placeholder; stray and duplicate results are dropped.
- The last user message is never dropped.
- Adjacent rows of one role are joined in order. So appending rows only extends the last row that was sent before, or
  fills in results of its calls; everything before stays byte-for-byte the same.
- Valid rows are returned as the same objects; repaired rows are new. The input is never modified.

Call ids are unique in the history (required by Anthropic); a duplicate gets a numeric suffix. Which characters an id
may have depends on the wire and is handled there.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import chain
from operator import is_
from typing import Any, TypeVar, cast

from nanobot.messages.types import ChatMessage, Origin, least_trusted
from nanobot.utils.text import is_well_formed, repair_json

NO_RESULT = "No result: the call was interrupted; its outcome is unknown."
EMPTY_MESSAGE = "[empty message]"
EMPTY_RESULT = "(no output)"

_Row = dict[str, Any]
T = TypeVar("T")

_FOREIGN_FIELDS = {
    "system": ("tool_calls", "tool_call_id", "name"),
    "user": ("tool_calls", "tool_call_id", "name"),
    "assistant": ("tool_call_id", "name"),
    "tool": ("tool_calls",),
}
"""Fields of other roles, which are dropped."""
_OWN_TYPES: dict[str, type] = {"runtime_context": str, "reasoning_content": str, "thinking_blocks": list}
"""Fields sent as they are; dropped if they have another type or cannot be encoded."""
_PICTURES = {"user": ("image_url", "input_audio", "file"), "tool": ("image_url",)}
"""Content blocks besides text that a role may have."""

_GOOD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z").match
_GOOD_ID = re.compile(r"[!-~]+\Z").match


def legalise(messages: Iterable[object]) -> list[ChatMessage]:
    """Repair a history for the strictest API. Never raises, never modifies its input; idempotent."""
    return LegalHistory().of([*messages])


class LegalHistory:
    """Incremental `legalise` for a growing history. Rows must not be changed after they were passed in."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seen: list[object] = []
        self._rows: list[_Row | None] = []
        """The repaired rows; None for results that may still come."""
        self._waiting_ids: dict[str, deque[tuple[int, str, str]]] = {}
        """By original call id: the reserved row indexes, with the new id and the name of each call."""
        self._unanswered: dict[int, _Row] = {}
        self._ids: dict[str, int] = {}
        self._started = False

    def __len__(self) -> int:
        return len(self._seen)

    def of(self, messages: Sequence[object]) -> list[ChatMessage]:
        """Like `legalise`; fast if `messages` begins with the same row objects as last time."""
        if len(self._seen) > len(messages) or not all(map(is_, self._seen, messages)):
            self._reset()
        by_role = {
            "system": self._add_system, "user": self._add_user, "assistant": self._add_assistant, "tool": self._add_tool
        }  # fmt: skip
        for message in messages[len(self._seen) :]:
            self._seen.append(message)
            if isinstance(message, dict) and not message.get("_command"):
                role = message.get("role")
                if isinstance(role, str) and role in by_role:
                    by_role[role](_drop_invalid_fields(message, role))
        rows = self._rows.copy()
        for index, row in self._unanswered.items():
            rows[index] = row
        return cast("list[ChatMessage]", rows)

    def _add_system(self, row: _Row) -> None:
        """Kept at the start, dropped anywhere else."""
        content = _repair_content(row.get("content"), "system")
        if content is not None and not self._started:
            self._rows.append(_with(row, content=content))

    def _add_user(self, row: _Row) -> None:
        self._started = True
        content = _repair_content(row.get("content"), "user")
        row = _with(row, content=EMPTY_MESSAGE if content is None else content)
        if (last := self._last("user")) is None:
            self._rows.append(row)
        else:
            self._rows[-1] = _join_user_rows(last, row)

    def _add_assistant(self, row: _Row) -> None:
        content = _repair_content(row.get("content"), "assistant")
        calls = self._calls(row.get("tool_calls")) if self._started else []
        if not self._started or (content is None and not calls):
            return
        self._finalize_results()
        row = _with(row, content=content)
        if calls:
            row = _with(row, tool_calls=[call for call, _ in calls])
        elif "tool_calls" in row:
            row = {name: value for name, value in row.items() if name != "tool_calls"}
        if (last := self._last("assistant")) is None:
            self._rows.append(row)
        else:
            self._rows[-1] = row = {
                **_merge_fields(last, row), "content": _join_contents(last["content"], row["content"])
            }  # fmt: skip
        for call, original_id in calls:
            index = len(self._rows)
            self._rows.append(None)
            name = call["function"]["name"]
            self._waiting_ids.setdefault(original_id, deque()).append((index, call["id"], name))
            self._unanswered[index] = _no_result(row, call["id"], name)

    def _add_tool(self, row: _Row) -> None:
        original_id = row.get("tool_call_id")
        slots = self._waiting_ids.get(original_id) if isinstance(original_id, str) else None
        if not slots:
            return
        index, call_id, name = slots.popleft()
        content = _repair_content(row.get("content"), "tool")
        content = EMPTY_RESULT if content is None else content
        self._rows[index] = _with(row, content=content, tool_call_id=call_id, name=name)
        del self._unanswered[index]

    def _finalize_results(self) -> None:
        """Make placeholders permanent: the model has seen them, so a late result is dropped."""
        for index, row in self._unanswered.items():
            self._rows[index] = row
        self._unanswered.clear()
        self._waiting_ids.clear()

    def _last(self, role: str) -> _Row | None:
        """The last row, if it has this role."""
        last = self._rows[-1] if self._rows else None
        return last if last is not None and last["role"] == role else None

    def _calls(self, tool_calls: object) -> list[tuple[_Row, str]]:
        """The repaired calls without duplicates, each with its original id."""
        calls: list[tuple[_Row, str]] = []
        seen: list[tuple[str, _Row]] = []
        for number, raw in enumerate(tool_calls if isinstance(tool_calls, list) else ()):
            call = _repair_call(raw)
            if call is None:
                continue
            original_id = call["id"] if isinstance(call["id"], str) else ""
            if original_id and (original_id, call["function"]) in seen:
                continue
            seen.append((original_id, call["function"]))
            call_id = original_id if _GOOD_ID(original_id) else _sanitize(original_id, f"call_{number}")
            calls.append((_with(call, id=self._unique_id(call_id)), original_id))
        return calls

    def _unique_id(self, call_id: str) -> str:
        unique = call_id
        while unique in self._ids:
            self._ids[call_id] += 1
            unique = f"{call_id}-{self._ids[call_id]}"
        self._ids[unique] = 1
        return unique


def _with(row: _Row, **fields: object) -> _Row:
    """The row with these fields; the same object if nothing differs."""
    for name, value in fields.items():
        if name not in row or (row[name] is not value and row[name] != value):
            return {**row, **fields}
    return row


def _drop_invalid_fields(row: _Row, role: str) -> _Row:
    """Drop fields of other roles, of the wrong type, or that cannot be encoded."""
    invalid = [name for name in _FOREIGN_FIELDS[role] if name in row]
    for name, kind in _OWN_TYPES.items():
        value = row.get(name)
        if value is not None and not (isinstance(value, kind) and _encodable(value) is value and _are_blocks(value)):
            invalid.append(name)
    return {name: value for name, value in row.items() if name not in invalid} if invalid else row


def _are_blocks(value: object) -> bool:
    return not isinstance(value, list) or (bool(value) and all(isinstance(block, dict) for block in value))


def _encodable(value: T) -> T | None:
    """The value with lone surrogates replaced, which cannot be encoded as UTF-8; the same object if it has none. None
    if it is no JSON or nested too deeply.
    """
    try:
        if _is_clean(value):
            return value
        return cast("T", json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")))
    except (ValueError, TypeError, RecursionError):
        return None


def _is_clean(value: object) -> bool:
    if isinstance(value, str):
        return is_well_formed(value)
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_clean(name) and _is_clean(inner) for name, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_clean, value))
    return value is None or isinstance(value, int | float)


def _repair_content(content: object, role: str) -> str | list[_Row] | None:
    """The content as allowed for this role; None if nothing is left. Valid content is returned as it is."""
    if content is None or isinstance(content, str):
        return _encodable(content) if content and not content.isspace() else None
    if not isinstance(content, list):
        return _repair_content(_as_json(content), role)
    blocks = [block for raw in content if (block := _repair_block(raw, _PICTURES.get(role, ()))) is not None]
    is_valid = len(blocks) == len(content) and all(map(is_, blocks, content))
    return (content if is_valid else blocks) or None


def _repair_block(raw: object, pictures: tuple[str, ...]) -> _Row | None:
    block = _encodable({"type": "text", "text": raw} if isinstance(raw, str) else raw)
    if not isinstance(block, dict):
        return None
    kind, text = block.get("type"), block.get("text")
    if isinstance(kind, str) and kind in pictures:
        inner = block.get(kind)
        if kind == "image_url" and isinstance(inner, str) and inner:
            return {**block, "image_url": {"url": inner}}
        url = inner.get("url") if isinstance(inner, dict) else None
        is_valid = isinstance(url, str) and url if kind == "image_url" else isinstance(inner, dict) and inner
        return block if is_valid else None
    return _with(block, type="text") if isinstance(text, str) and text and not text.isspace() else None


def _repair_call(raw: object) -> _Row | None:
    """A call in OpenAI's format with its original id; None if it names no tool."""
    raw = _encodable(raw)
    if not isinstance(raw, dict):
        return None
    inner = raw.get("function")
    function: _Row = inner if isinstance(inner, dict) else raw
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    repaired = {
        "name": name if _GOOD_NAME(name) else _sanitize(name, "unknown")[:64],
        "arguments": _object_text(function.get("arguments")),
    }
    call = {"id": raw.get("id"), **raw, "type": "function", "function": repaired}
    if function is inner:
        call["function"] = {**function, **repaired}
    else:  # the fields of the function are those of the call
        call = {name: value for name, value in call.items() if name not in repaired}
    return raw if call == raw else call


def _sanitize(text: str, default: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "_", text).strip("_") or default


def _reject_constant(constant: str) -> object:
    raise ValueError(constant)


_STRICT_JSON = json.JSONDecoder(parse_constant=_reject_constant)  # NaN is not JSON


def _object_text(arguments: object) -> str:
    """The arguments as JSON text of an object: unchanged if valid, repaired if possible, else an empty object."""
    if isinstance(arguments, dict):
        return _as_json(arguments)
    if not isinstance(arguments, str) or not arguments.strip():
        return "{}"
    try:
        parsed: object = _STRICT_JSON.decode(arguments)
        if isinstance(parsed, dict):
            return arguments
    except (ValueError, RecursionError):
        try:
            parsed = repair_json(arguments)
        except ValueError:
            return "{}"
    return _as_json(parsed) if isinstance(parsed, dict) else "{}"


def _as_json(value: object) -> str:
    """Strict JSON; an empty object if the value cannot be serialized."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=str).encode("utf-8", "replace").decode()
    except (ValueError, TypeError, RecursionError):
        return "{}"


def _no_result(call_row: _Row, call_id: str, name: str) -> _Row:
    row = {"role": "tool", "tool_call_id": call_id, "name": name, "content": NO_RESULT, "provenance": "system"}
    return {**row, "turn_id": call_row["turn_id"]} if "turn_id" in call_row else row


def _join_contents(first: Any, second: Any) -> Any:
    """Concatenate two contents."""
    if first is None or second is None:
        return second if first is None else first
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    blocks = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content for content in (first, second)
    )
    return [*chain.from_iterable(blocks)]


def _merge_fields(first: _Row, second: _Row) -> _Row:
    """The fields of both rows; the second wins, but the provenance is the lower one."""
    row = {**first, **{name: value for name, value in second.items() if value is not None}}
    return _lower_provenance(row, first.get("provenance"), second.get("provenance"))


def _lower_provenance(row: _Row, *provenances: object) -> _Row:
    """The row with the lowest of these provenances that are known."""
    known = [str(provenance) for provenance in provenances if provenance is not None]
    return {**row, "provenance": str(least_trusted(known))} if known else row


def _join_user_rows(first: _Row, second: _Row) -> _Row:
    """Join two user rows; the runtime context of the first stays behind its text."""
    row = _merge_fields(first, second)
    content = first["content"]
    if (context := first.get("runtime_context")) and not context.isspace():
        content = _join_contents(content, context)
        if first.get("context_provenance") is not None:
            row = _lower_provenance(row, row.get("provenance"), first["context_provenance"])
        if not second.get("runtime_context"):
            del row["runtime_context"]
    if isinstance(first.get("media"), list) and isinstance(second.get("media"), list):
        row["media"] = [*first["media"], *second["media"]]
    if second.get("origin") == Origin.SYSTEM and first.get("origin") != Origin.SYSTEM:
        row["origin"] = first.get("origin", Origin.USER.value)
    return {**row, "content": _join_contents(content, second["content"])}
