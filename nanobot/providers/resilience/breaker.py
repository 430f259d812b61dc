"""A circuit breaker: after three failures in a row, a model is not called for a minute, then probed with one call.

closed      calls go out; the third failure in a row opens it
open        no call goes out, for a minute
half-open   one call goes out as a probe; until its first token, no other does
"""

import time
from collections.abc import Callable

from nanobot.providers.errors import ModelCallError

Monotonic = Callable[[], float]

MAX_FAILURES = 3
OPEN_S = 60.0


class Breaker:
    """Whether one model at one endpoint may be called. Shared by all its callers; in memory only."""

    def __init__(self, monotonic: Monotonic = time.monotonic) -> None:
        self._monotonic = monotonic
        self._failures = 0
        self._opened_at: float | None = None
        self._probe: BreakerCall | None = None
        self.last_error: ModelCallError | None = None
        """The last failure since the last success."""

    @property
    def is_open(self) -> bool:
        """Whether it opened and no call has succeeded since."""
        return self._opened_at is not None

    @property
    def remaining_s(self) -> float:
        """Seconds until a call may go out; 0 if one may now."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + OPEN_S - self._monotonic())

    @property
    def allows_call(self) -> bool:
        """Whether `start_call` would return a call."""
        return self._opened_at is None or (self._probe is None and self.remaining_s == 0)

    def start_call(self) -> "BreakerCall | None":
        """Register a call that is about to go out, which the caller must end; None if it must not go out."""
        if not self.allows_call:
            return None
        call = BreakerCall(self)
        if self._opened_at is not None:
            self._probe = call
        return call

    def _record_first_token(self, call: "BreakerCall") -> None:
        if call is self._probe:  # the model responds: allow other calls; one more failure opens it again
            self._probe, self._opened_at, self._failures = None, None, MAX_FAILURES - 1

    def _record_success(self) -> None:
        self._failures, self._opened_at, self._probe, self.last_error = 0, None, None, None

    def _record_failure(self, call: "BreakerCall", error: ModelCallError) -> bool:
        self.last_error = error
        if call is self._probe:
            self._probe = None
        elif self._opened_at is not None:  # a call from before it opened
            return False
        self._failures += 1
        if self._failures < MAX_FAILURES:
            return False
        self._opened_at = self._monotonic()
        return True

    def _release(self, call: "BreakerCall") -> None:
        if call is self._probe:
            self._probe = None


class BreakerCall:
    """A call in flight. Only the first way to end it counts."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._ended = False

    def record_first_token(self) -> None:
        """The first token arrived."""
        self._breaker._record_first_token(self)  # noqa: SLF001 two halves of one class

    def record_success(self) -> None:
        """It was answered, or the request itself was rejected: the model works."""
        if self._end():
            self._breaker._record_success()  # noqa: SLF001

    def record_failure(self, error: ModelCallError) -> bool:
        """It failed because of the model. Return True if that opened the breaker."""
        return self._end() and self._breaker._record_failure(self, error)  # noqa: SLF001

    def release(self) -> None:
        """It ended without a result, such as by cancelling."""
        if self._end():
            self._breaker._release(self)  # noqa: SLF001

    def _end(self) -> bool:
        ended, self._ended = self._ended, True
        return not ended
