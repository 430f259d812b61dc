"""How often one sender may ask for a code. In memory: a gateway that starts anew asks nobody to wait.

The next code is twice as long in coming as the one before. So a person who missed the ten minutes has a second one at
once, and a crowd that asks for nothing but the few places there are runs out of senders.
"""

from nanobot.pairing.codes import VALID_S
from nanobot.utils.clock import Clock
from nanobot.utils.newest import put_newest

LONGEST_WAIT_S = 86_400
REMEMBERED = 1_000
"""Senders; beyond that, who asked longest ago is forgotten."""


class Knocks:
    """Who got codes, and when each may have another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[int, float]] = {}

    def may_ask(self, who: str) -> bool:
        """Whether a code is due to this one."""
        return self._clock.monotonic() >= self._known.get(who, (0, 0.0))[1]

    def got_code(self, who: str) -> None:
        """This one has a code now."""
        count, _ = self._known.get(who, (0, 0.0))
        wait = min(VALID_S * 2 ** min(count, 20), LONGEST_WAIT_S)
        put_newest(self._known, who, (count + 1, self._clock.monotonic() + wait), REMEMBERED)
