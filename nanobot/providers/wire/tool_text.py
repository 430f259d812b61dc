"""Converts tool calls that a model wrote as text, as local and small models do, into real ones.

Recognised: a JSON object with a name and arguments (bare at the start of a line, fenced, in a list, or in `<tool_call>`
tags), `[TOOL_CALLS]` before either, `<function=name>` with JSON or `<parameter=...>` inside, and `<invoke name="...">`
with `<parameter name="...">`. The name must be an offered tool; other JSON is just text. A call in markup always
counts. A bare, fenced or quoted one counts only at the very end of the answer: with prose after it, the model is
explaining a call, which must not run.

Calls are looked for once, in the whole answer. Until then, text from markup on is held back, and an answer that begins
with a JSON object; a bare call behind other text was shown before it is known to be one.
"""

import html
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from nanobot.messages.types import ToolSchema
from nanobot.providers.base import (
    Delta,
    Finished,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    new_call_id,
    parse_arguments,
)
from nanobot.utils.text import repair_json

_TAGS = (
    *("<tool_call>", "<tool_calls>", "<|tool_call|>", "<|tool_call_begin|>", "<|python_tag|>"),
    *("<function_call>", "<function_calls>", "[TOOL_CALLS]"),
)
_OPENERS = (*_TAGS, "<function=", "<invoke ")
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAMES = ("name", "tool", "tool_name", "function")
_KEYS = frozenset((*_ARGUMENTS, *_NAMES, "id", "type", "index", "call_id", "tool_call_id"))

_MARKUP = re.compile("|".join(map(re.escape, _OPENERS)))
_CANDIDATE = re.compile(rf"^[ \t]*(```|[{{\[])|({_MARKUP.pattern})", re.MULTILINE)
_FENCE = re.compile(r"^[ \t]*```", re.MULTILINE)
_OPENING = re.compile(rf"(?:```[\w+-]*[ \t]*\n)?(?:\s|{'|'.join(map(re.escape, _TAGS))})*")
_CLOSER = re.compile(
    r"\s*(?:</tool_calls?>|<\|/tool_call\|>|<\|tool_call_end\|>|</function_calls?>|</function>|</invoke>|\]|;|(?P<fence>```))"
)
_JSON_CALL = re.compile(rf'[\[\s]*\{{\s*"(?:{"|".join(sorted(_KEYS))}|tool_calls?)"\s*:')
_TOOL_NAME = re.compile(rf'"(?:{"|".join(_NAMES)})"\s*:\s*"([^"\n]+)"')
_NAMED_CALL = re.compile(r"([\w.-]+)(?:\[ARGS\])?\s*(?=\{)")
_XML_CALL = re.compile(r"(?:<function=|<invoke\s+name=[\"'])([\w.-]+)[\"']?\s*>")
_XML_END = re.compile(r"</function>|</invoke>|</tool_call>|(?=<function=|<invoke\s)")
_XML_PARAMETER = re.compile(
    r"<parameter(?:=|\s+name=)[\"']?([\w.-]+)[\"']?\s*>(.*?)(?:</parameter>|(?=<parameter[\s=])|\Z)", re.DOTALL
)
_JSON_END = re.compile(r"</tool_calls?>|</function_calls?>|\n```|<\|tool_call_end\|>")
_JSON_FIRST = re.compile(r'\s*(?:```[\w+-]*[ \t]*\n\s*)?(?:\[\s*)?\{\s*"')
_MAYBE_JSON_FIRST = re.compile(r"\s*(?:`{1,2}|```[\w+-]*[ \t]*(?:\n\s*)?)?(?:\[\s*)?(?:\{\s*)?")


class TextToolDeltas:
    """Replaces calls in the text of an answer's deltas by real ones. If the answer also has real calls, only those
    count.
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._tools = tools
        self._emitted: list[str] = []
        self._held = ""
        self._may_be_call = False
        """Whether the held text, and all behind it, is only emitted at the end."""
        self._behind: list[str] = []

    def filter(self, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """The deltas to pass on."""
        for delta in deltas:
            if not self._tools:
                yield delta
            elif isinstance(delta, TextDelta):
                if text := self._feed(delta.text):
                    yield TextDelta(text)
            elif isinstance(delta, Finished):
                yield from self._end(delta)
            else:
                yield delta

    def _feed(self, text: str) -> str:
        """The text to emit now."""
        if self._may_be_call:
            self._behind.append(text)
            return ""
        self._held += text
        if not self._emitted:
            self._may_be_call = _JSON_FIRST.match(self._held) is not None
            if self._may_be_call or _MAYBE_JSON_FIRST.fullmatch(self._held):
                return ""
        end = self._end_of_text()
        out, self._held = self._held[:end], self._held[end:]
        self._emitted += [out] * bool(out)
        return out

    def _end_of_text(self) -> int:
        """Up to where the held text is certainly text."""
        held = self._held
        for match in _MARKUP.finditer(held):
            body = _OPENING.match(held, match.start())
            rest = held[body.end() if body else match.end() :]
            if not rest or rest[0] in "{[<" or match[0] not in _TAGS or match[0] == "[TOOL_CALLS]":
                self._may_be_call = bool(rest)
                return match.start()
        start = max(held.rfind("<"), held.rfind("["))
        return start if start >= 0 and any(opener.startswith(held[start:]) for opener in _OPENERS) else len(held)

    def _end(self, finished: Finished) -> Iterator[Delta]:
        emitted, response = "".join(self._emitted), finished.response
        content, calls = split_calls("".join([emitted, self._held, *self._behind]), self._tools)
        if content.startswith(emitted) and (rest := content[len(emitted) :]):
            yield TextDelta(rest)
        if calls:
            real_calls = response.tool_calls
            for index, call in enumerate(() if real_calls else calls):
                yield ToolCallDelta(index, call.name, call.arguments_text or "")
            finish_reason = "tool_calls" if response.finish_reason in ("stop", "eos") else response.finish_reason
            response = replace(
                response, content=content or None, tool_calls=real_calls or calls, finish_reason=finish_reason
            )
        yield Finished(response)


_Types = Mapping[str, Mapping[str, object]]
"""The schema type of each argument of each tool."""


def split_calls(text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCallRequest]]:
    """The text of a whole answer without the calls in it, and the calls. Never raises."""
    if _CANDIDATE.search(text) is None:
        return text, []
    functions = [cast("dict[str, Any]", tool.get("function", {})) for tool in tools]
    types = {
        str(function["name"]): {
            key: schema.get("type") if isinstance(schema, dict) else None
            for key, schema in ((function.get("parameters") or {}).get("properties") or {}).items()
        }
        for function in functions
        if function.get("name")
    }
    pieces, calls = [], []
    position = piece_start = 0
    while match := _CANDIDATE.search(text, position):
        start = match.start(1 if match[1] else 2)
        found, end = _calls_at(text, start, types)
        if found:
            pieces.append(text[piece_start:start])
            piece_start = end
            calls += found
        position = max(end, start + 1)
    pieces.append(text[piece_start:])
    first, *others = pieces
    return "".join([first, *(piece for piece in others if piece.strip())]), calls


def _calls_at(text: str, start: int, types: _Types) -> tuple[list[ToolCallRequest], int]:
    """The calls that start here and their end; without any, the end of the text that was examined."""
    calls, end, _ = _call_at(text, start, types)
    if not calls:
        return [], start
    fenced = len(_FENCE.findall(text[:start])) % 2 == 1
    if _MARKUP.match(text, start) and not fenced and not text.endswith("`", 0, start):
        return calls, _skip_closers(text, end, fenced=False)[0]
    # It may be an explanation: it counts if nothing but calls follows up to the end.
    calls, position, first_end = [], start, 0
    while not (fenced and text.startswith("```", position)):
        fenced = fenced or text.startswith("```", position)
        found, end, complete = _call_at(text, position, types)
        if not found:
            break
        calls += found
        first_end = first_end or end
        end, fenced = _skip_closers(text, end, fenced=fenced)
        position = len(text) - len(text[end:].lstrip())
        if position == len(text):
            return calls if complete else [], position
    return [], first_end or start


def _call_at(text: str, start: int, types: _Types) -> tuple[list[ToolCallRequest], int, bool]:
    """The call written here, or several in one list; where it ends; and whether it is complete."""
    match = _OPENING.match(text, start)
    body = match.end() if match else start
    if match := _XML_CALL.match(text, body):
        return _xml_call(text, match, types)
    match = _NAMED_CALL.match(text, body)
    if match and match[1] in types and text.endswith("[TOOL_CALLS]", 0, body):
        value, end, complete = _json_at(text, match.end())
        return [_request(match[1], value if isinstance(value, dict) else {})], end, complete
    if not _JSON_CALL.match(text, body):
        return [], body, True
    value, end, complete = _json_at(text, body, types)
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    calls = [_from_object(item, types) for item in (value if isinstance(value, list) else [value])]
    return ([call for call in calls if call] if all(calls) else []), end, complete


def _xml_call(text: str, match: re.Match[str], types: _Types) -> tuple[list[ToolCallRequest], int, bool]:
    name, start = match[1], match.end()
    if name not in types:
        return [], start, True
    closing = _XML_END.search(text, start)
    end, after = (closing.start(), closing.end()) if closing else (len(text), len(text))
    body = text[start:end].strip()
    if body.startswith("{"):
        arguments, _ = parse_arguments(body.removesuffix("```").strip())
    else:
        arguments = {key: _convert(value, types[name].get(key)) for key, value in _XML_PARAMETER.findall(body)}
    return [_request(name, arguments)], after, closing is not None


def _convert(value: str, schema_type: object) -> object:
    """A parameter's value in its schema type; strings keep everything but the line breaks next to the tags."""
    value = html.unescape(value.removeprefix("\n").removesuffix("\n"))
    if schema_type in (None, "string"):
        return value
    try:
        return cast("object", json.loads(value.strip().lower() if value.strip() in ("True", "False") else value))
    except ValueError:
        return value


def _from_object(item: object, types: _Types) -> ToolCallRequest | None:
    if not isinstance(item, dict):
        return None
    function = item.get("function")
    inner = function if isinstance(function, dict) else item
    if not (set(item) <= _KEYS and set(inner) <= _KEYS):
        return None
    name = next((inner[key] for key in _NAMES if isinstance(inner.get(key), str)), "")
    arguments = next((inner[key] for key in _ARGUMENTS if key in inner), None)
    if isinstance(arguments, str):
        arguments, problem = parse_arguments(arguments)
        arguments = None if problem else arguments
    return _request(name, arguments) if name in types and isinstance(arguments, dict) else None


def _request(name: str, arguments: dict[str, Any]) -> ToolCallRequest:
    return ToolCallRequest(new_call_id(), name, arguments, json.dumps(arguments, ensure_ascii=False))


def _skip_closers(text: str, position: int, *, fenced: bool) -> tuple[int, bool]:
    """Skip the markup that ends a call; also return whether a fence is still open after it."""
    while match := _CLOSER.match(text, position):
        if match["fence"]:
            if not fenced:
                break  # it opens another block
            fenced = False
        position = match.end()
    return position, fenced


def _json_at(text: str, start: int, types: _Types | None = None) -> tuple[object, int, bool]:
    """The JSON value that starts here, where it ends, and whether it does. A broken one is repaired up to its closing
    tag; with `types` only if it names a tool soon, since much else looks like the beginning of a call.
    """
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        return cast("object", value), end, True
    except (ValueError, RecursionError):
        if types is not None and not any(name in types for name in _TOOL_NAME.findall(text, start, start + 300)):
            return None, start, True
    closing = _JSON_END.search(text, start)
    end = closing.start() if closing else len(text)
    complete = closing is not None or text.rstrip().endswith(("}", "]"))
    try:
        return repair_json(text[start:end]), end, complete
    except ValueError:
        return None, end, complete
