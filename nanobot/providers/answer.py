"""Putting an answer together from the chunks of a chat completions stream, or from the one object of a plain answer.

Servers differ in all that the public documentation leaves open. What they were seen to send is read here: ids that are
missing, empty or repeated, arguments as an object, `function_call`, reasoning under three names or inside `<think>`
tags, tool calls with finish_reason "stop".
"""

import json
import math
import secrets
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from nanobot.providers.base import (
    Delta,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
)

TELLS_COST = "openrouter"
"""The provider whose answers say what they cost."""
_OPEN = ("<think>", "<thinking>", "<thought>")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class ThinkSplitter:
    """Takes thinking that a model wrote in tags before its answer out of the text, however the text is cut."""

    def __init__(self) -> None:
        self._held = ""
        self._close = ""
        self._thought = False
        self._at_start = False
        self._answering = False

    def feed(self, text: str) -> list[Delta]:
        """What is certain by now."""
        if self._answering:
            return [TextDelta(text)] if text else []
        self._held += text
        out: list[Delta] = []
        while self._held and not self._answering:
            if self._close:
                if not self._think(out):
                    break
            elif not self._begin(out):
                break
        return out

    def end(self) -> list[Delta]:
        """The rest: thinking that was never closed, or what looked like the beginning of a tag."""
        held, self._held = self._held, ""
        if self._close:
            return [ReasoningDelta(held)] if held else []
        held = held.lstrip() if self._thought else held
        return [TextDelta(held)] if held else []

    def _begin(self, out: list[Delta]) -> bool:
        """Look for an opening tag. False when more text is needed to tell."""
        bare = self._held.lstrip()
        for tag in _OPEN:
            if bare.startswith(tag):
                self._held, self._close = bare[len(tag) :], tag.replace("<", "</")
                self._thought = self._at_start = True
                return True
        if any(tag.startswith(bare) for tag in _OPEN):
            return False
        out.append(TextDelta(bare if self._thought else self._held))
        self._held, self._answering = "", True
        return True

    def _think(self, out: list[Delta]) -> bool:
        if self._at_start:  # the line break after the tag is no part of the thought
            self._held = self._held.lstrip("\n")
            if not self._held:
                return False
            self._at_start = False
        thought, tag, rest = self._held.partition(self._close)
        if tag:
            if thought:
                out.append(ReasoningDelta(thought))
            self._held, self._close = rest, ""
            return True
        keep = next((n for n in range(len(self._close) - 1, 0, -1) if thought.endswith(self._close[:n])), 0)
        if len(thought) > keep:
            out.append(ReasoningDelta(thought[: len(thought) - keep]))
            self._held = thought[len(thought) - keep :]
        return False


@dataclass(slots=True)
class _Call:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_content: dict[str, Any] | None = None


class Answer:
    """One answer as it grows. The deltas it hands out concatenate to the response it ends in."""

    def __init__(self, *, of: str = "") -> None:
        """`of` is the provider: only one is known to tell, in dollars, what an answer cost."""
        self._tells_cost = of == TELLS_COST
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[_Call] = []
        self._by_index: dict[int, int] = {}
        self._thinking: list[dict[str, Any]] = []
        self._splitter = ThinkSplitter()
        self._usage: dict[str, int] = {}
        self._cost: float | None = None
        self._finish_reason: str | None = None
        self.began = False
        self.plain = False
        """Whether it came in one piece, so that a missing finish_reason means nothing."""

    @property
    def finished(self) -> bool:
        """Whether the server said that this is all."""
        return self._finish_reason is not None

    def feed(self, chunk: dict[str, Any]) -> list[Delta]:
        """Take in one chunk, or a whole plain answer."""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = normal_usage(usage) or self._usage
            cost = usage.get("cost")
            self._cost = float(cost) if self._tells_cost and _is_count(cost) else self._cost
        out: list[Delta] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and not choice.get("index"):
                self._choice(choice, out)
        return out

    def _choice(self, choice: dict[str, Any], out: list[Delta]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            self.began = True
            reasoning = next((delta[name] for name in _REASONING_FIELDS if isinstance(delta.get(name), str)), "")
            if reasoning:
                self._emit([ReasoningDelta(reasoning)], out)
            self._take_content(delta.get("content"), out)
            if isinstance(delta.get("refusal"), str):
                self._emit([TextDelta(delta["refusal"])], out)
            self._take_thinking(delta.get("thinking_blocks"))
            calls = delta.get("tool_calls")
            for position, call in enumerate(calls if isinstance(calls, list) else []):
                if isinstance(call, dict):
                    self._take_call(call, position, out)
            if isinstance(delta.get("function_call"), dict):
                self._take_call({"index": 0, "function": delta["function_call"]}, 0, out)
        elif isinstance(choice.get("text"), str):
            self.began = True
            self._emit(self._splitter.feed(choice["text"]), out)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def _take_content(self, content: object, out: list[Delta]) -> None:
        if isinstance(content, str):
            self._emit(self._splitter.feed(content), out)
        elif isinstance(content, list):  # Mistral sends blocks, thinking among them
            for block in content:
                if not isinstance(block, dict):
                    continue
                if isinstance(block.get("text"), str):
                    self._emit(self._splitter.feed(block["text"]), out)
                inner = block.get("thinking")
                for part in inner if isinstance(inner, list) else [{"text": inner}]:
                    if isinstance(part, dict) and isinstance(part.get("text"), str):
                        self._emit([ReasoningDelta(part["text"])], out)

    def _take_call(self, call: dict[str, Any], position: int, out: list[Delta]) -> None:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = _word(call.get("id")), _word(function.get("name"))
        index = call.get("index")
        index = index if isinstance(index, int) else self._guess_index(call_id, name, position)
        slot = self._slot(index, call_id, name)
        known = self._calls[slot]
        known.id = known.id or call_id
        if isinstance(call.get("extra_content"), dict):
            known.extra_content = call["extra_content"]
        fresh_name = name if not known.name else ""
        known.name = known.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        arguments = arguments if isinstance(arguments, str) else ""
        if arguments:
            known.arguments.append(arguments)
        if fresh_name or arguments:
            out.append(ToolCallDelta(slot, fresh_name, arguments))

    def _guess_index(self, call_id: str, name: str, position: int) -> int:
        """Without an index, a new id or a name opens a new call; anything else goes on with the last."""
        known = next((slot for slot, call in enumerate(self._calls) if call_id and call.id == call_id), None)
        if known is not None and not (name and self._calls[known].arguments):
            return next((index for index, slot in self._by_index.items() if slot == known), known)
        if name or (call_id and not known):
            return max(self._by_index, default=-1) + 1
        return max(self._by_index, default=position)

    def _slot(self, index: int, call_id: str, name: str) -> int:
        slot = self._by_index.get(index)
        # Some servers number every call 0: another id and a name together are another call.
        if slot is not None and call_id and name and self._calls[slot].id not in ("", call_id):
            slot = None
        if slot is None:
            slot = len(self._calls)
            self._calls.append(_Call())
            self._by_index[index] = slot
        return slot

    def _take_thinking(self, blocks: object) -> None:
        """Anthropic's thinking, which must go back as it came: pieces of one block join, a signature ends it."""
        for block in blocks if isinstance(blocks, list) else []:
            if not isinstance(block, dict):
                continue
            last = self._thinking[-1] if self._thinking else None
            if (
                block.get("type") == "thinking"
                and last
                and last.get("type") == "thinking"
                and not last.get("signature")
            ):
                last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
                if block.get("signature"):
                    last["signature"] = block["signature"]
            else:
                self._thinking.append({name: value for name, value in block.items() if value is not None})

    def _emit(self, deltas: list[Delta], out: list[Delta]) -> None:
        for delta in deltas:
            if isinstance(delta, TextDelta) and delta.text:
                self._text.append(delta.text)
                out.append(delta)
            elif isinstance(delta, ReasoningDelta) and delta.text:
                self._reasoning.append(delta.text)
                out.append(delta)

    def end(self) -> tuple[list[Delta], LLMResponse]:
        """The last deltas, and the whole."""
        out: list[Delta] = []
        self._emit(self._splitter.end(), out)
        calls = self._finished_calls()
        reason = self._finish_reason or "stop"
        if calls and reason in ("stop", "function_call", "eos"):
            reason = "tool_calls"
        response = LLMResponse(
            content="".join(self._text) or None,
            tool_calls=calls,
            finish_reason=reason,
            usage=self._usage,
            reasoning_content="".join(self._reasoning) or None,
            thinking_blocks=self._thinking or None,
            cost_usd=self._cost,
        )
        return out, response

    def _finished_calls(self) -> list[ToolCallRequest]:
        seen: set[str] = set()
        calls = []
        for call in self._calls:
            if not call.name and not call.arguments:
                continue
            if not call.id or call.id in seen:
                call.id = new_call_id()
            seen.add(call.id)
            calls.append(ToolCallRequest.from_text(call.id, call.name, "".join(call.arguments), call.extra_content))
        return calls


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def new_call_id() -> str:
    """An id for a call that came without one, in letters and digits, which every vendor takes back."""
    return f"call{secrets.token_hex(8)}"


def normal_usage(usage: dict[str, Any]) -> dict[str, int]:
    """Token counts under our names, whatever the server calls them and whichever part it counts in which sum.

    Cached and written tokens are part of the prompt, reasoning is part of the completion; what a server does not tell
    of writing and reasoning is left out.
    """
    sent = _part(usage, "prompt_tokens_details", "input_tokens_details")
    spoken = _part(usage, "completion_tokens_details", "output_tokens_details")
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    completion = _first(usage, "completion_tokens", "output_tokens")
    reasoning = _first(spoken, "reasoning_tokens") or _first(usage, "reasoning_tokens")
    read = _first(usage, "cache_read_input_tokens")
    written = _first(usage, "cache_creation_input_tokens")
    if "prompt_tokens" not in usage:  # Anthropic's own words: what was read from its cache, or written, stands beside
        prompt += read + written
    if reasoning and _first(usage, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # some servers count the thinking beside what was said
    if not (prompt or completion):
        return {}
    cached = _first(sent, "cached_tokens") or _first(usage, "prompt_cache_hit_tokens", "cached_tokens") or read
    written = written or _first(sent, "cache_write_tokens", "cache_creation_tokens")
    found = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": min(cached, prompt)}
    if written:
        found["cache_written_tokens"] = min(written, prompt - found["cached_tokens"])
    if reasoning:
        found["reasoning_tokens"] = min(reasoning, completion)
    return found


def _part(usage: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((part for name in names if isinstance(part := usage.get(name), dict)), {})


def _first(counts: dict[str, Any], *names: str) -> int:
    return next((int(counts[name]) for name in names if _is_count(counts.get(name))), 0)


def _is_count(value: Any) -> TypeGuard[int | float]:
    """Whether it is a number of something: finite, and not below nothing."""
    return isinstance(value, int | float) and 0 <= value < math.inf
