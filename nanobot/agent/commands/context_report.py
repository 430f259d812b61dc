"""What `/context` prints: the size of the next request by part, the cache use of the last one, and what is dropped
first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nanobot.agent.engine.spec import Model
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.window.fit import next_eviction
from nanobot.agent.window.history_view import HistoryView
from nanobot.agent.window.state import Window
from nanobot.agent.window.token_budget import token_budget
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage
from nanobot.utils.text import count_noun

_HEADINGS = {
    "# nanobot": "identity and guidelines",
    "## ": "workspace files",
    "# Memory": "memory",
    "# Active Skills": "active skills",
    "# Skills": "list of skills",
    "# Earlier in this Conversation": "session summary",
}


@dataclass(frozen=True, slots=True)
class ContextReport:
    """The next request of a session, part by part."""

    model: Model
    system: str
    tools: ToolRegistry
    rows: list[ChatMessage]
    window: Window
    last_usage: dict[str, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Estimated tokens of the next request, without the room for the reply."""
        ratio = self.window.model(self.model.name).ratio
        visible = estimate_tokens(HistoryView(self.rows).visible_rows(self.window))
        return int((estimate_tokens(self.system) + self.tools.tokens + visible) * ratio)

    def text(self) -> str:
        return "\n".join([*self._parts(), *self._last(), *self._next()])

    def _parts(self) -> Iterator[str]:
        limits, calibration = self.model.limits, self.window.model(self.model.name)
        ratio, window_tokens = calibration.ratio, min(calibration.window or limits.window_tokens, limits.window_tokens)
        visible = HistoryView(self.rows).visible_rows(self.window)
        system = {name: int(tokens * ratio) for name, tokens in _system_parts(self.system).items()}
        fixed = estimate_tokens(self.system) + self.tools.tokens
        parts = {
            "system prompt": sum(system.values()),
            count_noun(len(self.tools.names), "tool"): int(self.tools.tokens * ratio),
            count_noun(len(visible), "message"): int(estimate_tokens(visible) * ratio),
            "room for the reply": token_budget(window_tokens, limits.max_tokens, fixed).reply,
        }
        total = sum(parts.values())
        yield "Tokens of the next request, estimated:"
        for name, tokens in parts.items():
            yield f"{tokens:>9,}  {name}"
            if name == "system prompt":
                yield from (f"{part_tokens:>9,}    of it {part}" for part, part_tokens in system.items())
        yield f"{total:>9,}  of {window_tokens:,} ({total / window_tokens:.0%})"

    def _last(self) -> Iterator[str]:
        sent, cached = self.last_usage.get("prompt_tokens", 0), self.last_usage.get("cached_tokens", 0)
        if sent:
            share = f"{cached:,} cached ({cached / sent:.0%}), {sent - cached:,} not cached"
            yield f"The last request: {sent:,} tokens, {share}."

    def _next(self) -> Iterator[str]:
        eviction = next_eviction(HistoryView(self.rows), self.window)
        if eviction is None:
            yield "Nothing in this conversation can be dropped yet."
        else:
            tokens = int(eviction.tokens * self.window.model(self.model.name).ratio)
            freed = f"{tokens:,} token{'' if tokens == 1 else 's'}"
            yield f"When the window is full, the first to be dropped: {eviction.what}, {freed}."


def _system_parts(system: str) -> dict[str, int]:
    """Return the estimated tokens under each heading of the system prompt, in order."""
    parts: dict[str, int] = {}
    name = _HEADINGS["# nanobot"]
    for section in system.split("\n\n---\n\n"):
        line = section.partition("\n")[0]
        name = _HEADINGS.get(line) or (_HEADINGS["## "] if line.startswith("## ") else name)
        parts[name] = parts.get(name, 0) + estimate_tokens(section)
    return parts
