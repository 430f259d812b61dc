"""Tool calls that a model wrote out as text, as local and small models do, made into real ones.

What is read: a JSON object with a name and arguments (bare at the beginning of a line, fenced, in a list, or between
`<tool_call>` tags), `[TOOL_CALLS]` before either, `<function=name>` with JSON or `<parameter=...>` inside, and
`<invoke name="...">` with `<parameter name="...">`. It counts only if the name is one of the tools offered: other JSON
is just an answer. And only if it is meant: in markup it is; bare, in a fence or quoted it counts at the very end of the
answer, for with prose behind it the model explains a call, and nobody shall run that. Nothing of a call that counts is
ever handed out as text, however the stream is cut.
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
from nanobot.providers.answer import new_call_id
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    parse_arguments,
)
from nanobot.utils.text import mended_json

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
    """The text ends before it can be told."""


class _Opening:
    """Reads the beginning of what may be a call. A step matches, or not, or needs more than there is."""

    def __init__(self, text: str, position: int, names: frozenset[str]) -> None:
        self.text = text
        self.at = position
        self._names = names

    def is_call(self) -> bool:
        """Whether a call to an offered tool begins here."""
        if self._literal("```"):
            self._fence()
        while self._space() or self._literal(*_TAGS):
            pass
        if self._literal("<function="):
            return self._name(">")
        if self._literal("<invoke"):
            self._space()
            return self._literal("name=") and self._quoted_name()
        return self._json() or (self._tagged() and self._name("[ARGS]", "{"))

    def _tagged(self) -> bool:
        return self.text.endswith("[TOOL_CALLS]", 0, self.at)

    def _fence(self) -> None:
        found = _FENCE.match(self.text, self.at)
        if found:
            self.at = found.end()
        elif "\n" not in self.text[self.at :] and len(self.text) - self.at < 40:
            raise _MoreNeededError

    def _json(self) -> bool:
        """A JSON object, or a list of them, whose first telling key names an offered tool."""
        while self._space() or self._literal("["):
            pass
        if not self._literal("{"):
            return False
        while True:
            self._space()
            key = self._string()
            self._space()
            if key is None or not self._literal(":"):
                return False
            self._space()
            if key in _ARGUMENTS:
                return True  # the name comes later: told when all is there
            if key in ("tool_calls", "function", "tool_call") and self._literal("[", "{"):
                while self._space() or self._literal("{"):
                    pass
                continue
            value = self._string()
            if key in _NAMES:
                return value in self._names
            if value is None or key not in _KEYS:
                return False
            self._space()
            if not self._literal(","):
                return False

    def _space(self) -> bool:
        start = self.at
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.at > start

    def _literal(self, *options: str) -> bool:
        for option in options:
            if self.text.startswith(option, self.at):
                self.at += len(option)
                return True
        if any(
            len(self.text) - self.at < len(option) and option.startswith(self.text[self.at :]) for option in options
        ):
            raise _MoreNeededError
        return False

    def _string(self) -> str | None:
        if not self._literal('"'):
            return None
        found = re.compile(r'[^"\\\n]{0,200}').match(self.text, self.at)
        end = found.end() if found else self.at
        if end == len(self.text):
            if end - self.at >= 200:
                return None
            raise _MoreNeededError
        if self.text[end] != '"':
            return None
        value, self.at = self.text[self.at : end], end + 1
        return value

    def _quoted_name(self) -> bool:
        return self._name('"') if self._literal('"') else self._literal("'") and self._name("'")

    def _name(self, *ends: str) -> bool:
        return self._literal(*(f"{name}{end}" for name in self._names for end in ends))


class TextualCalls:
    """Feed it an answer's text; it hands out what is surely text, and at the end the calls that were written in it."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._tools = tools
        self._held = ""
        self._at_line_start = True
        self._line = ""
        """The last line handed out, as far as it matters what stands on it before a call."""
        self._in_fence = False
        """Whether the lines before it left a fence open."""
        self._look_again_at = 0

    @cached_property
    def _types(self) -> dict[str, dict[str, object]]:
        """What each argument of each tool is; most answers are text that nobody needs this for."""
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
        """The text that is no part of a call. Prompt: only what may be the beginning of one is kept back."""
        self._held += text
        if len(self._held) < self._look_again_at:
            return ""
        self._look_again_at = 0
        position = 0
        while (start := self._candidate(position)) is not None:
            try:
                position = self._passed(start)
            except _MoreNeededError:
                return self._release(start)
        return self._release(len(self._held))

    def end(self) -> tuple[str, list[ToolCallRequest]]:
        """The rest of the text, and the calls."""
        text: list[str] = []
        calls: list[ToolCallRequest] = []
        position = 0
        while (start := self._candidate(position)) is not None:
            found, end = self._calls_from(start)
            if found:
                text.append(self._release(start))
                self._held = self._held[end - start :]
                self._at_line_start = True  # the next call may follow at once
                calls += found
                position = 0
            else:
                position = max(end, start + 1)
        text.append(self._release(len(self._held)))
        rest = "".join(text)
        return (rest if rest.strip() else "") if calls else rest, calls

    def _passed(self, start: int) -> int:
        """Where to look on, what begins here being text for sure. Raises where only the end of the answer can tell."""
        if not self._is_opening(start, final=False):
            return start + 1
        try:
            if not self._may_be_told_of(start):
                self._look_again_at = sys.maxsize
                raise _MoreNeededError
            _, end = self._chain(start, final=False)
        except _MoreNeededError:
            # A long call is not read again for each piece that comes: only when it has grown by a quarter.
            held = len(self._held) - start
            self._look_again_at = max(self._look_again_at, held + held // 4)
            raise
        return max(end, start + 1)

    def _calls_from(self, start: int) -> tuple[list[ToolCallRequest], int]:
        """The calls that count here and where they end; without any, where the text ends that they were part of."""
        if not self._is_opening(start, final=True):
            return [], start
        if self._may_be_told_of(start):
            return self._chain(start, final=True)
        calls, end, _ = self._link(start, final=True)
        return calls, _skip_closers(self._held, end, fenced=False)[0] if calls else start

    def _is_opening(self, start: int, *, final: bool) -> bool:
        try:
            return _Opening(self._held, start, self._names).is_call()
        except _MoreNeededError:
            if final:
                return False
            raise

    def _may_be_told_of(self, start: int) -> bool:
        """Whether a call that begins here may be one that is explained: not in markup, or in a fence or quoted."""
        marked = self._held.startswith(_MARKUP, start)
        return not marked or self._fence_is_open(start) or (self._line + self._held[:start]).endswith("`")

    def _fence_is_open(self, start: int) -> bool:
        lines = (self._line + self._held[:start]).split("\n")
        return self._in_fence != bool(sum(line.lstrip(" \t").startswith("```") for line in lines) % 2)

    def _chain(self, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int]:
        """Calls in a row with nothing but white space and closing markup to the end of the answer.

        Where prose follows they were an explanation: then no calls, and the end of what is text for sure.
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
            found, end, whole = self._link(position, final=final)
            if not found:
                return [], first_marked or position
            calls += found
            end, fenced = _skip_closers(held, end, fenced=fenced)
            position = end + len(held[end:]) - len(held[end:].lstrip())
            rest = held[position : position + 30]
            if not final and (not rest or any(closer.startswith(rest) for closer in _CLOSER_WORDS)):
                raise _MoreNeededError
            if not rest:
                return (calls, end) if whole else ([], len(held))
            if not self._is_opening(position, final=final):
                return [], first_marked or end

    def _candidate(self, position: int) -> int | None:
        """Where the next thing begins that might turn out to be a call."""
        held = self._held
        places = [held.find("<", position), held.find("[TOOL_CALLS]", position)]
        pattern = _FIRST_OR_LATER_LINE if self._at_line_start and not position else _LATER_LINE
        found = pattern.search(held, position)
        places.append(found.end() if found else -1)
        bracket = held.rfind("[", position)
        if bracket >= 0 and "[TOOL_CALLS]".startswith(held[bracket:]):
            places.append(bracket)
        return min((place for place in places if place >= position), default=None)

    def _release(self, end: int) -> str:
        out, self._held = self._held[:end], self._held[end:]
        if out:
            *lines, last_line = (self._line + out).split("\n")
            self._in_fence ^= bool(sum(line.lstrip(" \t").startswith("```") for line in lines) % 2)
            self._line = last_line if len(last_line) < 100 else f"{last_line[:50]}{last_line[-50:]}"
            blank = not out.rpartition("\n")[2].strip(" \t")
            self._at_line_start = blank and ("\n" in out or self._at_line_start)
        return out

    def _link(self, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int, bool]:
        """The call that is written here, or several in one list; where it ends; and whether it is there whole."""
        body = _skip_opening(self._held, start)
        tagged = _XML_CALL.match(self._held, body)
        if tagged:
            return self._function(tagged.group(1), tagged.end(), final=final)
        named = re.compile(r"([\w.-]+)(?:\[ARGS\])?\s*(?=\{)").match(self._held, body)
        if named and named.group(1) in self._names:
            value, end, whole = _json_at(self._held, named.end(), final=final)
            return [self._request(named.group(1), value if isinstance(value, dict) else {})], end, whole
        value, end, whole = _json_at(self._held, body, final=final)
        calls = [request for item in _items(value) if (request := self._from_object(item)) is not None]
        return (calls if len(calls) == len(_items(value)) else []), end, whole

    def _function(self, name: str, start: int, *, final: bool) -> tuple[list[ToolCallRequest], int, bool]:
        closing = re.compile(r"</function>|</invoke>|</tool_call>|(?=<function=|<invoke\s)").search(self._held, start)
        if closing is None and not final:
            raise _MoreNeededError
        end, after = (closing.start(), closing.end()) if closing else (len(self._held), len(self._held))
        body = self._held[start:end].strip()
        if body.startswith("{"):
            arguments, _ = parse_arguments(body.removesuffix("```").strip())
        else:
            arguments = {key: self._typed(name, key, value) for key, value in _XML_PARAMETER.findall(body)}
        return [self._request(name, arguments)], after, closing is not None

    def _typed(self, tool: str, key: str, value: str) -> object:
        """The value of a tag as its schema wants it; a text stays what it is, less the line breaks next to the tags."""
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
    found = re.compile(r"```[\w+-]*[ \t]*\n").match(text, position)
    position = found.end() if found else position
    tags = re.compile(rf"(?:\s|{'|'.join(map(re.escape, _TAGS))})*")
    found = tags.match(text, position)
    return found.end() if found else position


def _skip_closers(text: str, position: int, *, fenced: bool) -> tuple[int, bool]:
    """Past the markup that ends a call; and whether a fence is still open behind it."""
    while found := _CLOSERS.match(text, position):
        if found["fence"]:
            if not fenced:
                break  # it opens something else
            fenced = False
        position = found.end()
    return position, fenced


def _json_at(text: str, start: int, *, final: bool) -> tuple[object, int, bool]:
    """The JSON value that begins here, where it ends, and whether it does; a broken one is mended up to its closing."""
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text, start)
        return cast("object", value), end, True
    except (ValueError, RecursionError):
        if not final:
            raise _MoreNeededError from None
    closing = re.compile(r"</tool_calls?>|</function_calls?>|\n```|<\|tool_call_end\|>").search(text, start)
    end = closing.start() if closing else len(text)
    whole = closing is not None or text.rstrip().endswith(("}", "]"))
    try:
        return mended_json(text[start:end]), end, whole
    except ValueError:
        return None, end, whole


def _items(value: object) -> list[object]:
    if isinstance(value, dict) and isinstance(value.get("tool_calls"), list):
        value = value["tool_calls"]
    return list(value) if isinstance(value, list) else [value]


class TextualDeltas:
    """The deltas of an answer, the calls in its text made into real ones. Where real ones came too, those count."""

    def __init__(self, tools: Sequence[ToolSchema]) -> None:
        self._reader = TextualCalls(tools) if tools else None
        self._shown: list[str] = []

    def passed(self, deltas: Iterable[Delta]) -> Iterable[Delta]:
        """What goes on of these."""
        return deltas if self._reader is None else self._read(deltas, self._reader)

    def _read(self, deltas: Iterable[Delta], reader: TextualCalls) -> Iterator[Delta]:
        for delta in deltas:
            if isinstance(delta, TextDelta):
                yield from self._show(reader.feed(delta.text))
            elif isinstance(delta, Finished):
                yield from self._end(delta.response, reader)
            else:
                yield delta

    def _show(self, text: str) -> Iterator[Delta]:
        if text:
            self._shown.append(text)
            yield TextDelta(text)

    def _end(self, response: LLMResponse, reader: TextualCalls) -> Iterator[Delta]:
        rest, calls = reader.end()
        yield from self._show(rest)
        if calls:
            known = response.tool_calls
            for index, call in enumerate(() if known else calls):
                yield ToolCallDelta(index, call.name, call.arguments_text or "")
            response = replace(
                response,
                content="".join(self._shown) or None,
                tool_calls=known or calls,
                finish_reason="tool_calls" if response.finish_reason in ("stop", "eos") else response.finish_reason,
            )
        yield Finished(response)
