"""How often one sender gets a code."""

from datetime import UTC, datetime

from nanobot.pairing.store import LONGEST_WAIT_S, MAX_SENDERS, PairingRateLimiter
from nanobot.utils.clock import FrozenClock


def test_each_further_code_is_twice_as_long_in_coming():
    clock = FrozenClock(datetime(2026, 2, 26, tzinfo=UTC))
    knocks = PairingRateLimiter(clock)
    waits = []

    for _ in range(9):
        knocks.record_code("anna")
        waited = 0
        while not knocks.may_request("anna"):
            clock.advance(600)
            waited += 600
        waits.append(waited)

    assert waits[:4] == [600, 1_200, 2_400, 4_800]
    assert waits[-1] == LONGEST_WAIT_S


def test_others_do_not_wait_with_them_and_a_crowd_takes_no_memory():
    knocks = PairingRateLimiter(FrozenClock(datetime(2026, 2, 26, tzinfo=UTC)))

    for number in range(MAX_SENDERS + 1):
        knocks.record_code(str(number))

    assert knocks.may_request("anna")
    assert knocks.may_request("0")
    assert not knocks.may_request("1")
