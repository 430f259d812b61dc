"""Agent status for /status: running turns, usage of the last requests, last errors. Kept in memory only."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from nanobot.utils.clock import Clock


class AgentStatus:
    """Running turns, the usage of each session's last request, and the last errors."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._last_usage: dict[str, dict[str, int]] = {}
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

    def record_usage(self, session_key: str, usage: Mapping[str, int]) -> None:
        """Record the tokens of a step. The ledger has the sums."""
        if usage.get("prompt_tokens"):
            self._last_usage[session_key] = dict(usage)

    def last_usage(self, session_key: str) -> dict[str, int]:
        """Usage of the session's last request as the provider reported it; empty if none did."""
        return dict(self._last_usage.get(session_key, {}))

    def forget(self, session_key: str) -> None:
        """The session's next request has little in common with the last one."""
        self._last_usage.pop(session_key, None)
