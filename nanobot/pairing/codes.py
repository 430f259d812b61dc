"""Pairing codes, short enough to be read out and too many to be guessed, and how often a sender may request one."""

import hmac
import re
import secrets

from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.clock import Clock

ALPHABET = "23456789ABCDEFGHJKMNPQRSTUVWXYZ"
"""Without the ambiguous characters 0, O, 1, I and L."""
LENGTH = 8
VALID_S = 600
"""How long a code may be used."""
LONGEST_WAIT_S = 86_400
"""Longest wait of a sender between two codes."""
MAX_SENDERS = 1_000
"""Senders remembered; beyond that the one with the oldest request is forgotten."""


def new_code() -> str:
    """Return a random code: one of 850,000,000,000."""
    return "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def normalize_code(text: str) -> str:
    """Remove blanks and dashes from a typed code, and make it upper case."""
    return re.sub(r"[\s-]", "", text).upper()


def codes_equal(code: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(code.encode("utf-8", "backslashreplace"), other.encode("utf-8", "backslashreplace"))


class PairingRateLimiter:
    """Doubles the wait before each further code of a sender. In memory: a restart resets it.

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
