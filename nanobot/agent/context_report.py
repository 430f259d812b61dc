"""What `/context` tells: the next request by its parts, the last one by what was cached, and what would go next."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nanobot.agent.run.allowance import allowance_for
from nanobot.agent.run.fit import next_to_go
from nanobot.agent.run.sheet import Sheet
from nanobot.agent.run.spec import Model
from nanobot.agent.run.window import Window
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.messages.tokens import estimate_tokens
from nanobot.messages.types import ChatMessage
from nanobot.utils.text import counted

_HEADINGS = {
    "# nanobot": "who it is, guidelines",
    "## ": "the workspace's own files",
    "# Memory": "memory",
    "# Active Skills": "active skills",
    "# Skills": "list of skills",
    "# Earlier in this Conversation": "what went before",
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
        """About what it weighs, without the room for the reply."""
        ratio = self.window.model(self.model.name).ratio
        shown = estimate_tokens(Sheet(self.rows).standing(self.window))
        return int((estimate_tokens(self.system) + self.tools.tokens + shown) * ratio)

    def text(self) -> str:
        """What a person is told."""
        return "\n".join([*self._parts(), *self._last(), *self._next()])

    def _parts(self) -> Iterator[str]:
        limits, learned = self.model.limits, self.window.model(self.model.name)
        ratio, window_tokens = learned.ratio, min(learned.window or limits.window_tokens, limits.window_tokens)
        shown = Sheet(self.rows).standing(self.window)
        system = {name: int(tokens * ratio) for name, tokens in _system_parts(self.system).items()}
        fixed = estimate_tokens(self.system) + self.tools.tokens
        parts = {
            "system prompt": sum(system.values()),
            counted(len(self.tools.names), "tool"): int(self.tools.tokens * ratio),
            counted(len(shown), "message"): int(estimate_tokens(shown) * ratio),
            "room for the reply": allowance_for(window_tokens, limits.max_tokens, fixed).reply,
        }
        total = sum(parts.values())
        yield "Tokens of the next request, estimated:"
        for name, tokens in parts.items():
            yield f"{tokens:>9,}  {name}"
            if name == "system prompt":
                yield from (f"{inside:>9,}    of it {part}" for part, inside in system.items())
        yield f"{total:>9,}  of {window_tokens:,} ({total / window_tokens:.0%})"

    def _last(self) -> Iterator[str]:
        sent, cached = self.last_usage.get("prompt_tokens", 0), self.last_usage.get("cached_tokens", 0)
        if sent:
            share = f"{cached:,} cached ({cached / sent:.0%}), {sent - cached:,} fresh"
            yield f"The last request: {sent:,} tokens, {share}."

    def _next(self) -> Iterator[str]:
        departure = next_to_go(Sheet(self.rows), self.window)
        if departure is None:
            yield "Nothing of this conversation can be left out yet."
        else:
            tokens = int(departure.tokens * self.window.model(self.model.name).ratio)
            freed = f"{tokens:,} token{'' if tokens == 1 else 's'}"
            yield f"When room runs out, the first to go: {departure.what}, {freed}."


def _system_parts(system: str) -> dict[str, int]:
    """The tokens under each heading of the system prompt, in its order."""
    parts: dict[str, int] = {}
    name = _HEADINGS["# nanobot"]
    for piece in system.split("\n\n---\n\n"):
        line = piece.partition("\n")[0]
        name = _HEADINGS.get(line) or (_HEADINGS["## "] if line.startswith("## ") else name)
        parts[name] = parts.get(name, 0) + estimate_tokens(piece)
    return parts
