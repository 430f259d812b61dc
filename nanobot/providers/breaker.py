"""A breaker: what has failed three times in a row is left alone for a minute, then tried with one call.

closed      calls go out; the third failure in a row opens it
open        no call goes out, for a minute
half-open   one call goes out, as a probe; while it waits for a first sign, no other does
"""

import time
from collections.abc import Callable

from nanobot.providers.errors import ModelCallError

Monotonic = Callable[[], float]

FAILURES = 3
OUT_S = 60.0


class Breaker:
    """Whether one model at one place is worth asking. Shared by all who ask it; kept in memory only."""

    def __init__(
        self, monotonic: Monotonic = time.monotonic, *, failures: int = FAILURES, out_s: float = OUT_S
    ) -> None:
        self._monotonic = monotonic
        self._most = failures
        self._out_s = out_s
        self._failures = 0
        self._opened_at: float | None = None
        self._probe: BreakerCall | None = None
        self.last_error: ModelCallError | None = None
        """Why it opened, or what came nearest to it."""

    @property
    def is_open(self) -> bool:
        """Whether it failed too often and has not answered since."""
        return self._opened_at is not None

    @property
    def out_for_s(self) -> float:
        """How long no call goes out; 0 when one may."""
        if self._opened_at is None:
            return 0.0
        return max(0.0, self._opened_at + self._out_s - self._monotonic())

    @property
    def admits(self) -> bool:
        """Whether `enter` would let a call out."""
        return self._opened_at is None or (self._probe is None and self.out_for_s == 0)

    def enter(self) -> "BreakerCall | None":
        """A call is about to go out; None when it must not. What is given must be ended."""
        if not self.admits:
            return None
        call = BreakerCall(self)
        if self._opened_at is not None:
            self._probe = call
        return call

    def _began(self, call: "BreakerCall") -> None:
        if call is self._probe:  # it is alive: others may ask again, and one failure more closes the door again
            self._probe, self._opened_at, self._failures = None, None, self._most - 1

    def _succeeded(self) -> None:
        self._failures, self._opened_at, self._probe, self.last_error = 0, None, None, None

    def _failed(self, call: "BreakerCall", error: ModelCallError) -> bool:
        self.last_error = error
        if call is self._probe:
            self._probe = None
        elif self._opened_at is not None:  # a call from before it opened says nothing new
            return False
        self._failures += 1
        if self._failures < self._most:
            return False
        self._opened_at = self._monotonic()
        return True

    def _left(self, call: "BreakerCall") -> None:
        if call is self._probe:
            self._probe = None


class BreakerCall:
    """One call on its way. Ending it twice is harmless; the first end counts."""

    def __init__(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._ended = False

    def began(self) -> None:
        """A first sign of an answer came."""
        self._breaker._began(self)  # noqa: SLF001 one thing in two classes

    def succeeded(self) -> None:
        """It was answered, if only by a refusal of what was asked."""
        if self._end():
            self._breaker._succeeded()  # noqa: SLF001

    def failed(self, error: ModelCallError) -> bool:
        """It failed in a way that says something about the model. True when the model is left alone because of it."""
        return self._end() and self._breaker._failed(self, error)  # noqa: SLF001

    def left(self) -> None:
        """It ended without telling anything: it was cancelled."""
        if self._end():
            self._breaker._left(self)  # noqa: SLF001

    def _end(self) -> bool:
        ended, self._ended = self._ended, True
        return not ended
