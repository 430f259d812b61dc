"""Converts tool calls that a model wrote as text, as local and small models do, into real ones.

Recognised: a JSON object with a name and arguments (bare at the start of a line, fenced, in a list, or in `<tool_call>`
tags), `[TOOL_CALLS]` before either, `<function=name>` with JSON or `<parameter=...>` inside, and `<invoke name="...">`
with `<parameter name="...">`. The name must be an offered tool; other JSON is just text. A call in markup always
counts. A bare, fenced or quoted one counts only at the very end of the answer: with prose after it, the model is
explaining a call, which must not run. No part of a call that counts is ever emitted as text, however the stream is
split.
"""

import html
import json
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

from nanobot.messages.types import ToolSchema
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    parse_arguments,
)
from nanobot.providers.wire.answer import new_call_id
from nanobot.utils.text import repair_json

_TAGS = (
    "<tool_call>",
    "<tool_calls>",
    "<|tool_call|>",
    "<|tool_call_begin|>",
    "<|python_tag|>",
    "<function_call>",
    "<function_calls>",
    "[TOOL_CALLS]",
)
_CLOSERS = re.compile(
    r"\s*(?:</tool_calls?>|<\|/tool_call\|>|<\|tool_call_end\|>|</function_calls?>|</function>|</invoke>|\]|;|(?P<fence>```))"
)
_MARKUP = (*_TAGS, "<function=", "<invoke")
_CLOSER_WORDS = (
    *("</tool_call>", "</tool_calls>", "<|/tool_call|>", "<|tool_call_end|>", "</function_call>", "</function_calls>"),
    *("</function>", "</invoke>", "```"),
)
_ARGUMENTS = ("arguments", "parameters", "args", "input")
_NAMES = ("name", "tool", "tool_name", "function")
_KEYS = frozenset((*_ARGUMENTS, *_NAMES, "id", "type", "index", "call_id", "tool_call_id"))
_LATER_LINE = re.compile(r"\n[ \t]*(?=[`{\[])")
_FIRST_OR_LATER_LINE = re.compile(r"(?:\A|\n)[ \t]*(?=[`{\[])")
_FENCE = re.compile(r"[\w+-]*[ \t]*\n")
_XML_CALL = re.compile(r"(?:<function=|<invoke\s+name=[\"'])([\w.-]+)[\"']?\s*>")
_XML_PARAMETER = re.compile(
    r"<parameter(?:=|\s+name=)[\"']?([\w.-]+)[\"']?\s*>(.*?)(?:</parameter>|(?=<parameter[\s=])|\Z)", re.DOTALL
)


class _MoreNeededError(Exception):
    """The text ends before this can be decided."""


class _Opening:
    """Matches the beginning of a possible call. Each step matches, does not match, or needs more text."""

    def __init__(self, text: str, position: int, names: frozenset[str]) -> None:
        self.text = text
        self.at = position
        self._names = names

    def is_call(self) -> bool:
        """Whether a call to an offered tool begins here."""
        if self._match("```"):
            self._skip_fence()
        while self._skip_space() or self._match(*_TAGS):
            pass
        if self._match("<function="):
            return self._match_name(">")
        if self._match("<invoke"):
            self._skip_space()
            return self._match("name=") and self._match_quoted_name()
        return self._match_json() or (self._is_after_tag() and self._match_name("[ARGS]", "{"))

    def _is_after_tag(self) -> bool:
        return self.text.endswith("[TOOL_CALLS]", 0, self.at)

    def _skip_fence(self) -> None:
        match = _FENCE.match(self.text, self.at)
        if match:
            self.at = match.end()
        elif "\n" not in self.text[self.at :] and len(self.text) - self.at < 40:
            raise _MoreNeededError

    def _match_json(self) -> bool:
        """A JSON object, or a list of them, whose first decisive key names an offered tool."""
        while self._skip_space() or self._match("["):
            pass
        if not self._match("{"):
            return False
        while True:
            self._skip_space()
            key = self._match_string()
            self._skip_space()
            if key is None or not self._match(":"):
                return False
            self._skip_space()
            if key in _ARGUMENTS:
                return True  # the name comes later: decided when all of it is here
            if key in ("tool_calls", "function", "tool_call") and self._match("[", "{"):
                while self._skip_space() or self._match("{"):
                    pass
                continue
            value = self._match_string()
            if key in _NAMES:
                return value in self._names
            if value is None or key not in _KEYS:
                return False
            self._skip_space()
            if not self._match(","):
                return False

    def _skip_space(self) -> bool:
        start = self.at
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at > start

    def _match(self, *options: str) -> bool:
        for option in options:
            if self.text.startswith(option, self.at):
                self.at += len(option)
                return True
        if any(
            len(self.text) - self.at < len(option) and option.startswith(self.text[self.at :]) for option in options
        ):
            raise _MoreNeededError
        return False

    def _match_string(self) -> str | None:
        if not self._match('"'):
            return None
        match = re.compile(r'[^"\\\n]{0,200}').match(self.text, self.at)
        end = match.end() if match else self.at
        if end == len(self.text):
            if end - self.at >= 200:
                return None
            raise _MoreNeededError
        if self.text[end] != '"':
            return None
        value, self.at = self.text[self.at : end], end + 1
        return value

    def _match_quoted_name(self) -> bool:
        return self._match_name('"') if self._match('"') else self._match("'") and self._match_name("'")

    def _match_name(self, *ends: str) -> bool:
        return self._match(*(f"{name}{end}" for name in self._names for end in ends))


class TextToolCalls:
    """Reads an answer's text. Emits what is certainly text, and at the end the calls in it."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._tools = tools
        self._held = ""
        self._at_line_start = True
        self._line = ""
        """The end of the emitted text: the line on which a following call would stand."""
        self._in_fence = False
        """Whether the lines before it left a code fence open."""
        self._recheck_at = 0

    @cached_property
    def _types(self) -> dict[str, dict[str, object]]:
        """The schema type of each argument of each tool. Cached, since most answers never need it."""
        functions = [cast("dict[str, Any]", tool.get("function", {})) for tool in self._tools]
        return {
            str(function.get("name", "")): {
                key: schema.get("type") if isinstance(schema, dict) else None
                for key, schema in ((function.get("parameters") or {}).get("properties") or {}).items()
            }
            for function in functions
        }

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self._types) - {""}

    def feed(self, text: str) -> str:
        """The text that is not part of a call. Only what may be the beginning of one is held back."""
        self._held += text
        if len(self._held) < self._recheck_at:
            return ""
        self._recheck_at = 0
        position = 0
        while (start := self._find_candidate(position)) is not None:
            try:
                position = self._skip_candidate(start)
            except _MoreNeededError:
                return self._release(start)
        return self._release(len(self._held))

    def end(self) -> tuple[str, list[ToolCallRequest]]:
        """The remaining text, and the calls."""
        text: list[str] = []
        calls: list[ToolCallRequest] = []
        position = 0
        while (start := self._find_candidate(position)) is not None:
            found_calls, end = self._calls_at(start)
            if found_calls:
                text.append(self._release(start))
                self._held = self._held[end - start :]
                self._at_line_start = True  # the next call may follow immediately
                calls += found_calls
                position = 0
            else:
                position = max(end, start + 1)
        text.append(self._release(len(self._held)))
        rest = "".join(text)
        return (rest if rest.strip() else "") if calls else rest, calls

    def _skip_candidate(self, start: int) -> int:
        """Where to continue if this is certainly text. Raises if only the end of the answer can tell."""
        if not self._is_opening(start, final=False):
            return start + 1
        try:
            if not self._may_be_explained(start):
                self._recheck_at = sys.maxsize
                raise _MoreNeededError
            _, end = self._call_sequence(start, final=False)
        except _MoreNeededError:
            # A long call is not parsed again for each chunk, only once it has grown by a quarter.
            held = len(self._held) - start
            self._recheck_at = max(self._recheck_at, held + held // 4)
            raise
        return max(end, start + 1)

    def _calls_at(self, start: int) -> tuple[list[ToolCallRequest], int]:
        """The calls that start here and their end; without any, the end of the text that was examined."""
        if not self._is_opening(start, final=True):
            return [], start
        if self._may_be_explained(start):
            return self._call_sequence(start, final=True)
        calls, end, _ = self._call_at(start, final=True)
        return calls, _skip_closers(self._held, end, fenced=False)[0] if calls else start

    def _is_opening(self, start: int, *, final: bool) -> bool:
        try:
            return _Opening(self._held, start, self._names).is_call()
        except _MoreNeededError:
            if final:
                return False
            raise

    def _may_be_explained(self, start: int) -> bool:
        """Whether a call that starts here may be an explanation: it is not in markup, or it is fenced or quoted."""
        marked = self._held.startswith(_MARKUP, start)
        return not marked or self._fence_is_open(start) or (self._line + self._held[:start]).endswith("`")

    def _fence_is_open(self, start: int) -> bool:
        lines = (self._line + self._held[:start]).split("\n")
        return self._in_fence != bool(sum(line.lstrip(" \t").startswith("```") for line in lines) % 2)

    def _call_sequence(self, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int]:
        """Consecutive calls with only white space and closing markup up to the end of the answer.

        With prose after them they are an explanation: then no calls, and the end of what is certainly text.
        """
        held = self._held
        calls: list[ToolCallRequest] = []
        fenced, position = self._fence_is_open(start), start
        first_marked: int | None = None
        while True:
            if fenced and held.startswith("```", position):
                return [], position
            fenced = fenced or held.startswith("```", position)
            if position > start and first_marked is None and not fenced and held.startswith(_MARKUP, position):
                first_marked = position
            found_calls, end, complete = self._call_at(position, final=final)
            if not found_calls:
                return [], first_marked or position
            calls += found_calls
            end, fenced = _skip_closers(held, end, fenced=fenced)
            position = end + len(held[end:]) - len(held[end:].lstrip())
            rest = held[position : position + 30]
            if not final and (not rest or any(closer.startswith(rest) for closer in _CLOSER_WORDS)):
                raise _MoreNeededError
            if not rest:
                return (calls, end) if complete else ([], len(held))
            if not self._is_opening(position, final=final):
                return [], first_marked or end

    def _find_candidate(self, position: int) -> int | None:
        """The next position where a call might start."""
        held = self._held
        positions = [held.find("<", position), held.find("[TOOL_CALLS]", position)]
        pattern = _FIRST_OR_LATER_LINE if self._at_line_start and not position else _LATER_LINE
        match = pattern.search(held, position)
        positions.append(match.end() if match else -1)
        bracket = held.rfind("[", position)
        if bracket >= 0 and "[TOOL_CALLS]".startswith(held[bracket:]):
            positions.append(bracket)
        return min((start for start in positions if start >= position), default=None)

    def _release(self, end: int) -> str:
        out, self._held = self._held[:end], self._held[end:]
        if out:
            *lines, last_line = (self._line + out).split("\n")
            self._in_fence ^= bool(sum(line.lstrip(" \t").startswith("```") for line in lines) % 2)
            self._line = last_line if len(last_line) < 100 else f"{last_line[:50]}{last_line[-50:]}"
            blank = not out.rpartition("\n")[2].strip(" \t")
            self._at_line_start = blank and ("\n" in out or self._at_line_start)
        return out

    def _call_at(self, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int, bool]:
        """The call written here, or several in one list; where it ends; and whether it is complete."""
        body = _skip_opening(self._held, start)
        xml_match = _XML_CALL.match(self._held, body)
        if xml_match:
            return self._xml_call(xml_match.group(1), xml_match.end(), final=final)
        name_match = re.compile(r"([\w.-]+)(?:\[ARGS\])?\s*(?=\{)").match(self._held, body)
        if name_match and name_match.group(1) in self._names:
            value, end, complete = _json_at(self._held, name_match.end(), final=final)
            return [self._request(name_match.group(1), value if isinstance(value, dict) else {})], end, complete
        value, end, complete = _json_at(self._held, body, final=final)
        calls = [request for item in _items(value) if (request := self._from_object(item)) is not None]
        return (calls if len(calls) == len(_items(value)) else []), end, complete

    def _xml_call(self, name: str, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int, bool]:
        closing = re.compile(r"</function>|</invoke>|</tool_call>|(?=<function=|<invoke\s)").search(self._held, start)
        if closing is None and not final:
            raise _MoreNeededError
        end, after = (closing.start(), closing.end()) if closing else (len(self._held), len(self._held))
        body = self._held[start:end].strip()
        if body.startswith("{"):
            arguments, _ = parse_arguments(body.removesuffix("```").strip())
        else:
            arguments = {key: self._convert_value(name, key, value) for key, value in _XML_PARAMETER.findall(body)}
        return [self._request(name, arguments)], after, closing is not None

    def _convert_value(self, tool: str, key: str, value: str) -> object:
        """A parameter's value, converted to its schema type; strings keep everything but the line breaks next to the
        tags.
        """
        value = html.unescape(value.removeprefix("\n").removesuffix("\n"))
        if self._types.get(tool, {}).get(key) in (None, "string"):
            return value
        try:
            return cast("object", json.loads(value.strip().lower() if value.strip() in ("True", "False") else value))
        except ValueError:
            return value

    def _from_object(self, item: object) -> ToolCallRequest | None:
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
        if name not in self._names or not isinstance(arguments, dict):
            return None
        return self._request(name, arguments)

    def _request(self, name: str, arguments: dict[str, Any]) -> ToolCallRequest:
        return ToolCallRequest(new_call_id(), name, arguments, json.dumps(arguments, ensure_ascii=False))


def _skip_opening(text: str, position: int) -> int:
    match = re.compile(r"```[\w+-]*[ \t]*\n").match(text, position)
    position = match.end() if match else position
    tags = re.compile(rf"(?:\s|{'|'.join(map(re.escape, _TAGS))})*")
    match = tags.match(text, position)
    return match.end() if match else position


def _skip_closers(text: str, position: int, *, fenced: bool) -> tuple[int, bool]:
    """Skip the markup that ends a call; also return whether a fence is still open after it."""
    while match := _CLOSERS.match(text, position):
        if match["fence"]:
            if not fenced:
                break  # it opens another block
            fenced = False
        position = match.end()
    return position, fenced


def _json_at(text: str, start: int, *, final: bool) -> tuple[object, int, bool]:
    """The JSON value that starts here, where it ends, and whether it does. A broken one is repaired up to its closing
    tag.
    """
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        return cast("object", value), end, True
    except (ValueError, RecursionError):
        if not final:
            raise _MoreNeededError from None
    closing = re.compile(r"</tool_calls?>|</function_calls?>|\n```|<\|tool_call_end\|>").search(text, start)
    end = closing.start() if closing else len(text)
    complete = closing is not None or text.rstrip().endswith(("}", "]"))
    try:
        return repair_json(text[start:end]), end, complete
    except ValueError:
        return None, end, complete


def _items(value: object) -> list[object]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    return list(value) if isinstance(value, list) else [value]


class TextToolDeltas:
    """Replaces calls in the text of an answer's deltas by real ones. If the answer also has real calls, only those
    count.
    """

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._reader = TextToolCalls(tools) if tools else None
        self._emitted: list[str] = []

    def filter(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """The deltas to pass on."""
        return deltas if self._reader is None else self._read(deltas, self._reader)

    def _read(self, deltas: Iterable[Delta], reader: TextToolCalls) -> Iterator[Delta]:
        for delta in deltas:
            if isinstance(delta, TextDelta):
                yield from self._emit(reader.feed(delta.text))
            elif isinstance(delta, Finished):
                yield from self._end(delta.response, reader)
            else:
                yield delta

    def _emit(self, text: str) -> Iterator[Delta]:
        if text:
            self._emitted.append(text)
            yield TextDelta(text)

    def _end(self, response: LLMResponse, reader: TextToolCalls) -> Iterator[Delta]:
        rest, calls = reader.end()
        yield from self._emit(rest)
        if calls:
            real_calls = response.tool_calls
            for index, call in enumerate(() if real_calls else calls):
                yield ToolCallDelta(index, call.name, call.arguments_text or "")
            response = replace(
                response,
                content="".join(self._emitted) or None,
                tool_calls=real_calls or calls,
                finish_reason="tool_calls" if response.finish_reason in ("stop", "eos") else response.finish_reason,
            )
        yield Finished(response)
