"""Parts of an answer, whatever the wire: reasoning in tags, a tool call in pieces, and the count of tokens."""

import math
import secrets
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from nanobot.providers.base import Delta, ReasoningDelta, TextDelta

REPORTS_COST = "openrouter"
"""The provider whose responses include their cost."""
_OPEN = ("<think>", "<thinking>", "<thought>")


class ThinkSplitter:
    """Separates reasoning in tags at the start of an answer from its text, however the stream is split."""

    def __init__(self) -> None:
        self._held = ""
        self._close = ""
        """The tag that ends the reasoning; empty outside of it."""
        self._has_reasoning = False
        self._is_answering = False

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain so far."""
        if self._is_answering:
            return [TextDelta(text)] if text else []
        self._held += text
        out: list[Delta] = []
        while self._held:
            if self._close:
                reasoning, tag, rest = self._held.partition(self._close)
                keep = 0 if tag else _overlap(reasoning, self._close)
                out.append(ReasoningDelta(reasoning[: len(reasoning) - keep]))
                self._held = rest if tag else reasoning[len(reasoning) - keep :]
                if not tag:
                    break
                self._close = ""
                continue
            bare = self._held.lstrip()
            tag = next((tag for tag in _OPEN if bare.startswith(tag)), "")
            rest = bare[len(tag) :].lstrip("\n")  # the line break after the tag is not part of the reasoning
            if tag and rest:
                self._held, self._close, self._has_reasoning = rest, tag.replace("<", "</"), True
                continue
            if not tag and not any(tag.startswith(bare) for tag in _OPEN):
                out.append(TextDelta(bare if self._has_reasoning else self._held))
                self._held, self._is_answering = "", True
            break
        return [delta for delta in out if not isinstance(delta, ReasoningDelta) or delta.text]

    def end(self) -> list[Delta]:
        """The rest: unclosed reasoning, or text that looked like the start of a tag."""
        held, self._held = self._held, ""
        if held.strip() in _OPEN:
            return []  # reasoning that never began
        held = held.lstrip() if self._has_reasoning and not self._close else held
        kind = ReasoningDelta if self._close else TextDelta
        return [kind(held)] if held else []


def _overlap(text: str, tag: str) -> int:
    """How much of the tag the text ends with."""
    return next((length for length in range(len(tag) - 1, 0, -1) if text.endswith(tag[:length])), 0)


@dataclass(slots=True)
class PartialCall:
    """A tool call under construction."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_content: dict[str, Any] | None = None


def text_or_empty(value: object) -> str:
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
    return next((int(counts[name]) for name in names if is_count(counts.get(name))), 0)


def is_count(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number, not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf
