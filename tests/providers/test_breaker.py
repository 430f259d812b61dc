"""When a model is left alone, and when it is tried again."""

from collections.abc import Callable
from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers.errors import ModelOverloadedError
from nanobot.providers.resilience.breaker import MAX_FAILURES, OPEN_S, Breaker, BreakerCall
from tests.support.clock import Waits

BUSY = ModelOverloadedError("busy")


def opened(waits: Waits) -> Breaker:
    breaker = Breaker(waits.monotonic)
    for _ in range(MAX_FAILURES):
        fail(breaker)
    return breaker


def entered(breaker: Breaker) -> BreakerCall:
    call = breaker.start_call()
    assert call is not None
    return call


def lets_in(breaker: Breaker) -> bool:
    return breaker.allows_call


def fail(breaker: Breaker) -> None:
    entered(breaker).record_failure(BUSY)


def test_the_third_failure_in_a_row_opens_it_for_a_minute():
    waits = Waits()
    breaker = Breaker(waits.monotonic)

    fail(breaker)
    fail(breaker)
    assert lets_in(breaker)
    fail(breaker)

    assert not lets_in(breaker) and breaker.start_call() is None
    assert OPEN_S - 1 < breaker.remaining_s <= OPEN_S
    assert breaker.last_error is BUSY


def test_an_answer_between_two_failures_starts_the_count_afresh():
    breaker = Breaker()

    fail(breaker)
    fail(breaker)
    entered(breaker).record_success()
    fail(breaker)
    fail(breaker)

    assert lets_in(breaker)


def test_after_a_minute_one_call_tries_it_and_no_other_goes_out_meanwhile():
    waits = Waits()
    breaker = opened(waits)

    waits.advance(OPEN_S)
    probe = entered(breaker)

    assert breaker.start_call() is None
    probe.record_success()
    assert lets_in(breaker) and not breaker.is_open


def test_a_first_sign_lets_others_in_and_one_failure_more_closes_the_door_again():
    waits = Waits()
    breaker = opened(waits)
    waits.advance(OPEN_S)
    probe = entered(breaker)

    probe.record_first_token()
    assert lets_in(breaker)
    probe.record_failure(BUSY)

    assert not lets_in(breaker) and breaker.remaining_s > OPEN_S - 1


def test_a_probe_that_fails_costs_another_minute():
    waits = Waits()
    breaker = opened(waits)
    waits.advance(OPEN_S)

    entered(breaker).record_failure(BUSY)

    assert not lets_in(breaker) and breaker.remaining_s > OPEN_S - 1


def test_a_probe_that_was_cancelled_leaves_its_place_to_the_next():
    waits = Waits()
    breaker = opened(waits)
    waits.advance(OPEN_S)

    entered(breaker).release()

    assert lets_in(breaker)


def test_a_late_failure_of_an_older_call_takes_no_place_and_adds_no_time():
    waits = Waits()
    breaker = Breaker(waits.monotonic)
    late = entered(breaker)
    for _ in range(MAX_FAILURES):
        fail(breaker)
    waits.advance(OPEN_S)
    probe = entered(breaker)

    late.record_failure(BUSY)

    assert breaker.start_call() is None, "the probe still runs"
    probe.record_success()
    assert lets_in(breaker)


@given(st.lists(st.tuples(st.sampled_from(["enter", "began", "ok", "fail", "left", "wait"]), st.integers(0, 5))))
def test_whatever_happens_nobody_is_locked_out_for_longer_than_a_minute(steps: list[tuple[str, int]]):
    waits = Waits()
    breaker = Breaker(waits.monotonic)
    running: list[BreakerCall] = []

    for step, which in steps:
        if step == "wait":
            waits.advance(which * 15)
        elif step == "enter":
            call = breaker.start_call()
            running += [call] if call else []
        elif running:
            call = running[which % len(running)]
            ends: dict[str, Callable[[], object]]
            ends = {
                "began": call.record_first_token,
                "ok": call.record_success,
                "left": call.release,
                "fail": partial(call.record_failure, BUSY),
            }
            ends[step]()
    for call in running:
        call.release()
    waits.advance(OPEN_S)

    assert lets_in(breaker)
