"""Which limits hold for which model, and what happens when they do."""

import asyncio
import math
import time

import pytest

from nanobot.providers.base import CallContext, calling_for
from nanobot.providers.errors import CallTarget, ProviderTimeoutError
from nanobot.providers.limits import CallLimits, Timeouts, timeouts_for

TARGET = CallTarget("openai", "gpt-x")


@pytest.mark.parametrize(
    ("model", "effort", "preset"),
    [
        ("gpt-4.1", None, Timeouts.usual()),
        ("gpt-4o-mini", None, Timeouts.usual()),
        ("claude-opus-4-5", None, Timeouts.usual()),
        ("anthropic/claude-opus-4-5", "high", Timeouts.reasoning()),
        ("gpt-4.1", "none", Timeouts.usual()),
        ("o3", None, Timeouts.reasoning()),
        ("openai/o4-mini", None, Timeouts.reasoning()),
        ("gpt-5-mini", None, Timeouts.reasoning()),
        ("gpt-5", "minimal", Timeouts.usual()),
        ("gpt-5-chat-latest", None, Timeouts.usual()),
        ("deepseek-chat", None, Timeouts.usual()),
        ("deepseek-reasoner", None, Timeouts.reasoning()),
        ("deepseek-ai/DeepSeek-R1", None, Timeouts.reasoning()),
        ("kimi-k2-thinking", None, Timeouts.reasoning()),
        ("gemini-2.5-pro", None, Timeouts.reasoning()),
        ("gemini-2.5-flash", None, Timeouts.usual()),
        ("qwq-32b", None, Timeouts.reasoning()),
        ("phi-4", None, Timeouts.usual()),
    ],
)
def test_a_model_that_thinks_long_is_given_longer(model: str, effort: str | None, preset: Timeouts):
    assert timeouts_for(model, local=False, reasoning_effort=effort) == preset
    assert timeouts_for(model, local=True, reasoning_effort=effort) == Timeouts.local()


def test_only_a_usual_model_is_hurried_while_another_is_left():
    assert Timeouts.usual().first_token_s == 60
    assert Timeouts.usual().hurried_s == 20
    assert Timeouts.reasoning().hurried_s == Timeouts.local().hurried_s == math.inf


async def wait_for(limits: CallLimits, *, began: bool = False, seconds: float = 1) -> None:
    with limits.next_sign(began=began):
        await asyncio.sleep(seconds)


@pytest.mark.parametrize(
    ("timeouts", "began", "says"),
    [
        (Timeouts(first_token_s=0.02), False, "waited 0.02 s for the first token"),
        (Timeouts(idle_s=0.02), True, "waited 0.02 s for the next token"),
        (Timeouts(total_s=0.02), True, "waited 0.02 s for the end of the answer"),
        (Timeouts(total_s=0.02), False, "waited 0.02 s for the end of the answer"),
    ],
)
async def test_each_limit_ends_the_wait_and_says_which_it_was(timeouts: Timeouts, began: bool, says: str):
    with pytest.raises(ProviderTimeoutError, match=says):
        await wait_for(CallLimits(timeouts, TARGET), began=began)


async def test_bytes_that_say_nothing_do_not_lengthen_the_wait_for_the_first_token():
    limits = CallLimits(Timeouts(first_token_s=0.05), TARGET)

    with pytest.raises(ProviderTimeoutError, match="first token"):
        for _ in range(10):
            await wait_for(limits, seconds=0.02)


async def test_a_goal_lifts_the_total_limit_and_not_the_idle_one():
    with calling_for(CallContext(goal=True)):
        limits = CallLimits(Timeouts(idle_s=0.05, total_s=0.01), TARGET)

    await wait_for(limits, began=True, seconds=0.02)
    with pytest.raises(ProviderTimeoutError, match="next token"):
        await wait_for(limits, began=True)


async def test_while_another_is_left_the_first_token_is_waited_for_shortly():
    timeouts = Timeouts(first_token_s=5, hurried_s=0.02)

    with calling_for(CallContext(others_left=True)), pytest.raises(ProviderTimeoutError, match=r"0\.02 s"):
        await wait_for(CallLimits(timeouts, TARGET))


async def test_a_long_wait_is_told_once():
    told: list[str] = []
    with calling_for(CallContext(notify=told.append)):
        limits = CallLimits(Timeouts(told_s=0.01), TARGET)

    for _ in range(3):
        await wait_for(limits, seconds=0.03)

    assert told == ["Waiting for gpt-x (openai) since 0.01 s; it is given up after 60 s."]


async def test_a_short_wait_is_not_told():
    told: list[str] = []
    with calling_for(CallContext(notify=told.append)):
        limits = CallLimits(Timeouts(told_s=0.05), TARGET)

    await wait_for(limits, seconds=0)
    limits.close()
    await asyncio.sleep(0.1)

    assert told == []


async def test_waits_one_after_the_other_share_a_timer_and_each_has_its_own_end():
    limits = CallLimits(Timeouts(first_token_s=5, idle_s=0.06, total_s=5), TARGET)

    await wait_for(limits, seconds=0.001)
    for _ in range(5):
        await wait_for(limits, began=True, seconds=0.03)
    started = time.monotonic()
    with pytest.raises(ProviderTimeoutError, match="next token"):
        await wait_for(limits, began=True)

    assert 0.05 < time.monotonic() - started < 1


async def test_a_cancel_by_somebody_else_is_no_timeout():
    limits = CallLimits(Timeouts(first_token_s=5), TARGET)
    waiting = asyncio.create_task(wait_for(limits))
    await asyncio.sleep(0)

    waiting.cancel()
    await asyncio.wait([waiting])

    assert waiting.cancelled()
