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
