"""Vitals: what runs, what was used since the start, what went wrong last. Kept in memory, told by /status."""

from collections.abc import Mapping

from nanobot.usage.types import add_tokens
from nanobot.utils.clock import Clock


class Vitals:
    """How the agent is: what runs, what it has used since it started, what went wrong last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._started = clock.monotonic()
        self._usage: dict[str, dict[str, int]] = {}
        self._last: dict[str, dict[str, int]] = {}
        self._cost: dict[str, float] = {}
        self.running: set[str] = set()
        self.last_error: str | None = None
        self.model_error: str | None = None
        """Why the last turn that asked a model has no answer; None where a model answered since."""
        self.memory_note: str | None = None
        """What was moved into memory last, or why it could not be."""

    def uptime(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def used(self, session_key: str, usage: Mapping[str, int], cost_usd: float | None = None) -> None:
        """A step's tokens, and their cost where it is known. The last request's prompt is what the window holds."""
        add_tokens(self._usage.setdefault(session_key, {}), usage)
        self._cost[session_key] = self._cost.get(session_key, 0.0) + (cost_usd or 0.0)
        if usage.get("prompt_tokens"):
            self._last[session_key] = dict(usage)

    def usage_of(self, session_key: str) -> dict[str, int]:
        """A session's tokens since the start."""
        return dict(self._usage.get(session_key, {}))

    def cost_of(self, session_key: str) -> float:
        """What a session cost since the start, in dollars, as far as prices are known."""
        return self._cost.get(session_key, 0.0)

    def window_used(self, session_key: str) -> int:
        """What the last request of a session weighed, with its answer."""
        last = self.last_usage(session_key)
        return last.get("prompt_tokens", 0) + last.get("completion_tokens", 0)

    def last_usage(self, session_key: str) -> dict[str, int]:
        """The tokens of a session's last request, as its model counted them; empty where none has said."""
        return dict(self._last.get(session_key, {}))

    def forget(self, session_key: str) -> None:
        """The session starts afresh."""
        self._usage.pop(session_key, None)
        self._last.pop(session_key, None)
        self._cost.pop(session_key, None)
