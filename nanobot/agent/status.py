"""Agent status for /status: running turns, usage since the start, last errors. Kept in memory only."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from nanobot.usage.types import add_tokens
from nanobot.utils.clock import Clock


class AgentStatus:
    """Running turns, tokens and cost per session since the start, and the last errors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._usage: dict[str, dict[str, int]] = {}
        self._last_usage: dict[str, dict[str, int]] = {}
        self._cost: dict[str, float] = {}
        self.running: AbstractSet[str] = frozenset()
        """Keys of sessions with a running turn; the loop's own."""
        self.last_error: str | None = None
        self.model_error: str | None = None
        """Why the last model call failed; None once a model has answered again."""
        self.memory_note: str | None = None
        """The last consolidation: what was moved into memory, or why it failed."""

    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def record_usage(self, session_key: str, usage: Mapping[str, int], cost_usd: float | None = None) -> None:
        """Add the tokens of a step, and its cost if known."""
        add_tokens(self._usage.setdefault(session_key, {}), usage)
        self._cost[session_key] = self._cost.get(session_key, 0.0) + (cost_usd or 0.0)
        if usage.get("prompt_tokens"):
            self._last_usage[session_key] = dict(usage)

    def usage_of(self, session_key: str) -> dict[str, int]:
        """Tokens of a session since the start."""
        return dict(self._usage.get(session_key, {}))

    def cost_of(self, session_key: str) -> float:
        """Cost of a session since the start in US dollars; calls without a known price count as zero."""
        return self._cost.get(session_key, 0.0)

    def last_usage(self, session_key: str) -> dict[str, int]:
        """Usage of the session's last request as the provider reported it; empty if none did."""
        return dict(self._last_usage.get(session_key, {}))

    def forget_last_usage(self, session_key: str) -> None:
        """The next request has little in common with the last one."""
        self._last_usage.pop(session_key, None)

    def forget(self, session_key: str) -> None:
        """Reset a session's figures."""
        self._usage.pop(session_key, None)
        self._last_usage.pop(session_key, None)
        self._cost.pop(session_key, None)
