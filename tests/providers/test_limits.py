"""Which limits hold for which model, and what happens when they do."""

import asyncio
import math

import pytest

from nanobot.providers.base import CallContext, call_context_scope
from nanobot.providers.endpoint import CallLimits, Timeouts, timeouts_for
from nanobot.providers.errors import CallTarget, ProviderTimeoutError

TARGET = CallTarget("openai", "gpt-x")


@pytest.mark.parametrize(
    ("model", "effort", "preset"),
    [
        ("gpt-4.1", None, Timeouts.standard()),
        ("gpt-4o-mini", None, Timeouts.standard()),
        ("claude-opus-4-5", None, Timeouts.standard()),
        ("anthropic/claude-opus-4-5", "high", Timeouts.reasoning()),
        ("gpt-4.1", "none", Timeouts.standard()),
        ("o3", None, Timeouts.reasoning()),
        ("openai/o4-mini", None, Timeouts.reasoning()),
        ("gpt-5-mini", None, Timeouts.reasoning()),
        ("gpt-5", "minimal", Timeouts.standard()),
        ("gpt-5-chat-latest", None, Timeouts.standard()),
        ("deepseek-chat", None, Timeouts.standard()),
        ("deepseek-reasoner", None, Timeouts.reasoning()),
        ("deepseek-ai/DeepSeek-R1", None, Timeouts.reasoning()),
        ("kimi-k2-thinking", None, Timeouts.reasoning()),
        ("gemini-2.5-pro", None, Timeouts.reasoning()),
        ("gemini-2.5-flash", None, Timeouts.standard()),
        ("qwq-32b", None, Timeouts.reasoning()),
        ("phi-4", None, Timeouts.standard()),
    ],
)
def test_a_model_that_thinks_long_is_given_longer(model: str, effort: str | None, preset: Timeouts):
    assert timeouts_for(model, local=False, reasoning_effort=effort) == preset
    assert timeouts_for(model, local=True, reasoning_effort=effort) == Timeouts.local()


def test_only_a_usual_model_is_hurried_while_another_is_left():
    assert Timeouts.standard().first_token_s == 60
    assert Timeouts.standard().fallback_first_token_s == 20
    assert Timeouts.reasoning().fallback_first_token_s == Timeouts.local().fallback_first_token_s == math.inf


async def wait_for(limits: CallLimits, *, began: bool = False, seconds: float = 1) -> None:
    await limits.wait(asyncio.sleep(seconds), began=began)


async def test_a_goal_lifts_the_total_limit_and_not_the_idle_one():
    with call_context_scope(CallContext(goal=True)):
        limits = CallLimits(Timeouts(idle_s=0.05, total_s=0.01), TARGET)

    await wait_for(limits, began=True, seconds=0.02)
    with pytest.raises(ProviderTimeoutError, match="next token"):
        await wait_for(limits, began=True)


async def test_while_another_is_left_the_first_token_is_waited_for_shortly():
    timeouts = Timeouts(first_token_s=5, fallback_first_token_s=0.02)

    with call_context_scope(CallContext(has_fallback=True)), pytest.raises(ProviderTimeoutError, match=r"0\.02 s"):
        await wait_for(CallLimits(timeouts, TARGET))


@pytest.mark.parametrize(
    ("seconds", "notices"), [(0.0, []), (0.03, ["Waiting for gpt-x (openai) for 0.02 s; timeout after 60 s."])]
)
async def test_a_long_wait_is_told_once_and_a_short_one_is_not(seconds: float, notices: list[str]):
    told: list[str] = []
    with call_context_scope(CallContext(notify=told.append)):
        limits = CallLimits(Timeouts(notice_s=0.02), TARGET)

    await wait_for(limits, seconds=seconds)
    await wait_for(limits, seconds=0, began=True)
    await asyncio.sleep(0.03)

    assert told == notices
