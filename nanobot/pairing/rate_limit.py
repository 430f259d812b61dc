"""Limits how often one sender may request a pairing code. In memory: a restart resets it."""

from nanobot.pairing.codes import VALID_S
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock

LONGEST_WAIT_S = 86_400
MAX_SENDERS = 1_000
"""Beyond that, the sender with the oldest request is forgotten."""


class PairingRateLimiter:
    """Doubles the wait before each further code of a sender.

    The first wait is as long as a code is valid, so that a person who missed it gets a second one at once, while a
    crowd cannot keep using up the limited number of codes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._senders: dict[str, tuple[int, float]] = {}
        """The number of codes, and when the next one is allowed, by sender key."""

    def may_request(self, sender: str) -> bool:
        """Whether this sender may get a code now."""
        return self._clock.monotonic() >= self._senders.get(sender, (0, 0.0))[1]

    def record_code(self, sender: str) -> None:
        """Record that this sender got a code."""
        count, _ = self._senders.get(sender, (0, 0.0))
        wait = min(VALID_S * 2 ** min(count, 20), LONGEST_WAIT_S)
        put_bounded(self._senders, sender, (count + 1, self._clock.monotonic() + wait), MAX_SENDERS)
