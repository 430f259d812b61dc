"""Assembles a response from the chunks of a chat completions stream, or from a plain response object.

Servers deviate wherever the public documentation is vague. Handled here: missing, empty or repeated ids, arguments as
an object, `function_call`, reasoning under three names or in `<think>` tags, tool calls with finish_reason "stop".
"""

import json
import math
import secrets
from collections.abc import Iterable
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

REPORTS_COST = "openrouter"
"""The provider whose responses include their cost."""
_OPEN = ("<think>", "<thinking>", "<thought>")
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class ThinkSplitter:
    """Separates reasoning in tags at the start of an answer from its text, however the stream is split."""

    def __init__(self) -> None:
        self._held = ""
        self._close = ""
        self._has_reasoning = False
        self._at_start = False
        self._answering = False

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain so far."""
        if self._answering:
            return [TextDelta(text)] if text else []
        self._held += text
        out: list[Delta] = []
        while self._held and not self._answering:
            if self._close:
                if not self._read_reasoning(out):
                    break
            elif not self._find_open_tag(out):
                break
        return out

    def end(self) -> list[Delta]:
        """The rest: unclosed reasoning, or text that looked like the start of a tag."""
        held, self._held = self._held, ""
        if self._close:
            return [ReasoningDelta(held)] if held else []
        held = held.lstrip() if self._has_reasoning else held
        return [TextDelta(held)] if held else []

    def _find_open_tag(self, out: list[Delta]) -> bool:
        """Look for an opening tag. Return False if more text is needed to decide."""
        bare = self._held.lstrip()
        for tag in _OPEN:
            if bare.startswith(tag):
                self._held, self._close = bare[len(tag) :], tag.replace("<", "</")
                self._has_reasoning = self._at_start = True
                return True
        if any(tag.startswith(bare) for tag in _OPEN):
            return False
        out.append(TextDelta(bare if self._has_reasoning else self._held))
        self._held, self._answering = "", True
        return True

    def _read_reasoning(self, out: list[Delta]) -> bool:
        if self._at_start:  # the line break after the tag is not part of the reasoning
            self._held = self._held.lstrip("\n")
            if not self._held:
                return False
            self._at_start = False
        reasoning, tag, rest = self._held.partition(self._close)
        if tag:
            if reasoning:
                out.append(ReasoningDelta(reasoning))
            self._held, self._close = rest, ""
            return True
        keep = next((n for n in range(len(self._close) - 1, 0, -1) if reasoning.endswith(self._close[:n])), 0)
        if len(reasoning) > keep:
            out.append(ReasoningDelta(reasoning[: len(reasoning) - keep]))
            self._held = reasoning[len(reasoning) - keep :]
        return False


@dataclass(slots=True)
class PartialCall:
    """A tool call under construction."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_content: dict[str, Any] | None = None


class Answer:
    """An answer under construction. The concatenated deltas equal the response it ends with."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[PartialCall] = []
        self.thinking: list[dict[str, Any]] = []

    def emit(self, deltas: Iterable[Delta], out: list[Delta]) -> None:
        """Add text and reasoning to the answer and to the output."""
        for delta in deltas:
            if isinstance(delta, TextDelta) and delta.text:
                self.text.append(delta.text)
                out.append(delta)
            elif isinstance(delta, ReasoningDelta) and delta.text:
                self.reasoning.append(delta.text)
                out.append(delta)

    def response(self, finish_reason: str, usage: dict[str, int], cost_usd: float | None = None) -> LLMResponse:
        """The finished response. Calls without an id, or with that of another call, get a new one."""
        seen: set[str] = set()
        calls = []
        for call in self.calls:
            if not call.name and not call.arguments:
                continue
            if not call.id or call.id in seen:
                call.id = new_call_id()
            seen.add(call.id)
            calls.append(ToolCallRequest.from_text(call.id, call.name, "".join(call.arguments), call.extra_content))
        if calls and finish_reason in ("stop", "function_call", "eos"):
            finish_reason = "tool_calls"
        return LLMResponse(
            content="".join(self.text) or None,
            tool_calls=calls,
            finish_reason=finish_reason,
            usage=usage,
            reasoning_content="".join(self.reasoning) or None,
            thinking_blocks=self.thinking or None,
            cost_usd=cost_usd,
        )


class ChatAnswer(Answer):
    """An answer made of chat completions chunks."""

    def __init__(self, *, provider: str = "") -> None:
        """`provider` is the provider's name: only one provider reports the cost in dollars."""
        super().__init__()
        self._reports_cost = provider == REPORTS_COST
        self._by_index: dict[int, int] = {}
        self._splitter = ThinkSplitter()
        self._usage: dict[str, int] = {}
        self._cost: float | None = None
        self._finish_reason: str | None = None
        self.began = False
        self.plain = False
        """Whether it was not streamed; then a missing finish_reason means nothing."""

    @property
    def finished(self) -> bool:
        """Whether the server sent a finish_reason."""
        return self._finish_reason is not None

    def feed(self, chunk: dict[str, Any]) -> list[Delta]:
        """Add one chunk, or a whole plain response."""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = normal_usage(usage) or self._usage
            cost = usage.get("cost")
            self._cost = float(cost) if self._reports_cost and _is_count(cost) else self._cost
        out: list[Delta] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and not choice.get("index"):
                self._add_choice(choice, out)
        return out

    def _add_choice(self, choice: dict[str, Any], out: list[Delta]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            self.began = True
            reasoning = next((delta[name] for name in _REASONING_FIELDS if isinstance(delta.get(name), str)), "")
            if reasoning:
                self.emit([ReasoningDelta(reasoning)], out)
            self._add_content(delta.get("content"), out)
            if isinstance(delta.get("refusal"), str):
                self.emit([TextDelta(delta["refusal"])], out)
            self._add_thinking(delta.get("thinking_blocks"))
            calls = delta.get("tool_calls")
            for position, call in enumerate(calls if isinstance(calls, list) else []):
                if isinstance(call, dict):
                    self._add_call(call, position, out)
            if isinstance(delta.get("function_call"), dict):
                self._add_call({"index": 0, "function": delta["function_call"]}, 0, out)
        elif isinstance(choice.get("text"), str):
            self.began = True
            self.emit(self._splitter.feed(choice["text"]), out)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def _add_content(self, content: object, out: list[Delta]) -> None:
        if isinstance(content, str):
            self.emit(self._splitter.feed(content), out)
        elif isinstance(content, list):  # Mistral sends blocks, thinking among them
            for block in content:
                if not isinstance(block, dict):
                    continue
                if isinstance(block.get("text"), str):
                    self.emit(self._splitter.feed(block["text"]), out)
                inner = block.get("thinking")
                for part in inner if isinstance(inner, list) else [{"text": inner}]:
                    if isinstance(part, dict) and isinstance(part.get("text"), str):
                        self.emit([ReasoningDelta(part["text"])], out)

    def _add_call(self, call: dict[str, Any], position: int, out: list[Delta]) -> None:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = _text_or_empty(call.get("id")), _text_or_empty(function.get("name"))
        index = call.get("index")
        index = index if isinstance(index, int) else self._infer_index(call_id, name, position)
        slot = self._slot(index, call_id, name)
        pending = self.calls[slot]
        pending.id = pending.id or call_id
        if isinstance(call.get("extra_content"), dict):
            pending.extra_content = call["extra_content"]
        new_name = name if not pending.name else ""
        pending.name = pending.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        arguments = arguments if isinstance(arguments, str) else ""
        if arguments:
            pending.arguments.append(arguments)
        if new_name or arguments:
            out.append(ToolCallDelta(slot, new_name, arguments))

    def _infer_index(self, call_id: str, name: str, position: int) -> int:
        """The index of a fragment without one: a new id or a name starts a call, anything else continues the last."""
        known = next((slot for slot, call in enumerate(self.calls) if call_id and call.id == call_id), None)
        if known is not None and not (name and self.calls[known].arguments):
            return next((index for index, slot in self._by_index.items() if slot == known), known)
        if name or (call_id and known is None):
            return max(self._by_index, default=-1) + 1
        return max(self._by_index, default=position)

    def _slot(self, index: int, call_id: str, name: str) -> int:
        slot = self._by_index.get(index)
        # Some servers number every call 0: a different id together with a name means another call.
        if slot is not None and call_id and name and self.calls[slot].id not in ("", call_id):
            slot = None
        if slot is None:
            slot = len(self.calls)
            self.calls.append(PartialCall())
            self._by_index[index] = slot
        return slot

    def _add_thinking(self, blocks: object) -> None:
        """Collect Anthropic's thinking blocks, which must go back unchanged. Fragments of a block are joined until its
        signature.
        """
        for block in blocks if isinstance(blocks, list) else []:
            if not isinstance(block, dict):
                continue
            last = self.thinking[-1] if self.thinking else None
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
                self.thinking.append({name: value for name, value in block.items() if value is not None})

    def end(self) -> tuple[list[Delta], LLMResponse]:
        """The last deltas, and the response."""
        out: list[Delta] = []
        self.emit(self._splitter.end(), out)
        return out, self.response(self._finish_reason or "stop", self._usage, self._cost)


def _text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def new_call_id() -> str:
    """An id for a call without one: letters and digits, which every vendor accepts."""
    return f"call{secrets.token_hex(8)}"


def normal_usage(usage: dict[str, Any]) -> dict[str, int]:
    """Token counts under our names, whatever the server calls them and however it sums them.

    Cached and written tokens are part of the prompt, reasoning is part of the completion. Writing and reasoning are
    left out if the server does not report them.
    """
    prompt_details = _part(usage, "prompt_tokens_details", "input_tokens_details")
    completion_details = _part(usage, "completion_tokens_details", "output_tokens_details")
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    completion = _first(usage, "completion_tokens", "output_tokens")
    reasoning = _first(completion_details, "reasoning_tokens") or _first(usage, "reasoning_tokens")
    read = _first(usage, "cache_read_input_tokens")
    written = _first(usage, "cache_creation_input_tokens")
    if "prompt_tokens" not in usage:  # Anthropic's format: cache reads and writes are not part of input_tokens
        prompt += read + written
    if reasoning and _first(usage, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # some servers do not count reasoning as completion
    if not (prompt or completion):
        return {}
    cached = (
        _first(prompt_details, "cached_tokens") or _first(usage, "prompt_cache_hit_tokens", "cached_tokens") or read
    )
    written = written or _first(prompt_details, "cache_write_tokens", "cache_creation_tokens")
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": min(cached, prompt)}
    if written:
        counts["cache_written_tokens"] = min(written, prompt - counts["cached_tokens"])
    if reasoning:
        counts["reasoning_tokens"] = min(reasoning, completion)
    return counts


def _part(usage: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((part for name in names if isinstance(part := usage.get(name), dict)), {})


def _first(counts: dict[str, Any], *names: str) -> int:
    return next((int(counts[name]) for name in names if _is_count(counts.get(name))), 0)


def _is_count(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number, not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf
