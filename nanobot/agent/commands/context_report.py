"""What `/context` prints: the size of the next request by part, the cache use of the last one, and what is dropped
first.
"""

from dataclasses import dataclass, field
from itertools import takewhile

from nanobot.agent.engine.spec import Model
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.window.fit import History, RequestRoom, next_eviction, token_budget
from nanobot.agent.window.state import Calibration, Window
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
class WindowUse:
    """How full the context window of a session is. The terminal, `/status` and `/context` show this figure."""

    tokens: int
    window_tokens: int

    def __str__(self) -> str:
        return f"{self.tokens:,} of {self.window_tokens:,} tokens ({self.tokens / self.window_tokens:.0%})"


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
    def use(self) -> WindowUse:
        """The tokens of the last request and its response, as the provider counted them, and an estimate of what was
        added since; an estimate of the next request if no request was counted.
        """
        limits, learned = self.model.limits, self.window.model(self.model.name)
        window_tokens = min(learned.window or limits.window_tokens, limits.window_tokens)
        counted = self.last_usage.get("prompt_tokens", 0) + self.last_usage.get("completion_tokens", 0)
        rows = [*takewhile(lambda row: row["role"] != "assistant", reversed(self.rows))] if counted else self._visible
        estimated = estimate_tokens(rows) + (0 if counted else self._fixed)
        return WindowUse(counted + int(estimated * learned.ratio), window_tokens)

    @property
    def _fixed(self) -> int:
        return estimate_tokens(self.system) + self.tools.tokens

    @property
    def _visible(self) -> list[ChatMessage]:
        return History(self.rows).show(self.window)

    def text(self) -> str:
        """The parts are estimated, and scaled so that they add up to what is used."""
        use, visible, sent = self.use, self._visible, self.last_usage.get("prompt_tokens", 0)
        scale = use.tokens / max(self._fixed + estimate_tokens(visible), 1)
        system = {name: int(tokens * scale) for name, tokens in _system_parts(self.system).items()}
        room = RequestRoom(self.model.name, use.window_tokens, self.model.limits.max_tokens)
        lines = [
            f"Window: {use}",
            f"{sum(system.values()):>9,}  system prompt",
            *(f"{tokens:>9,}    of it {part}" for part, tokens in system.items()),
            f"{int(self.tools.tokens * scale):>9,}  {count_noun(len(self.tools.names), 'tool')}",
            f"{int(estimate_tokens(visible) * scale):>9,}  {count_noun(len(visible), 'message')}",
            f"{token_budget(room, self._fixed, Calibration()).reply:>9,}  more are reserved for the reply",
        ]
        if sent:
            cached = self.last_usage.get("cached_tokens", 0)
            share = f"{cached:,} cached ({cached / sent:.0%}), {sent - cached:,} not cached"
            lines.append(f"The last request: {sent:,} tokens, {share}.")
        if (eviction := next_eviction(History(self.rows), self.window)) is None:
            return "\n".join([*lines, "Nothing in this conversation can be dropped yet."])
        tokens = int(eviction.tokens * self.window.model(self.model.name).ratio)
        freed = f"{tokens:,} token{'' if tokens == 1 else 's'}"
        return "\n".join([*lines, f"When the window is full, the first to be dropped: {eviction.what}, {freed}."])


def _system_parts(system: str) -> dict[str, int]:
    """Return the estimated tokens under each heading of the system prompt, in order."""
    parts: dict[str, int] = {}
    name = _HEADINGS["# nanobot"]
    for section in system.split("\n\n---\n\n"):
        line = section.partition("\n")[0]
        name = _HEADINGS.get(line) or (_HEADINGS["## "] if line.startswith("## ") else name)
        parts[name] = parts.get(name, 0) + estimate_tokens(section)
    return parts
