"""What is tried again, after how long, and what the person is told meanwhile."""

import asyncio

import pytest

from nanobot.errors import BudgetExceededError
from nanobot.providers import errors
from nanobot.providers.base import (
    CallContext,
    Finished,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    call_context_scope,
)
from nanobot.providers.errors import CallTarget
from nanobot.providers.resilience.retry import RetryPolicy, RetryProvider
from nanobot.testing import ScriptedProvider
from tests.support.clock import Waits
from tests.support.sample_requests import HELLO
from tests.support.scripted_stream import Line, Streams, heard, text_of

HI: list[Line] = [TextDelta("hi"), Finished(LLMResponse("hi"))]
TARGET = CallTarget("openai", "gpt-x", "https://api.example", "providers.openai.apiKey")
BUSY = errors.ModelOverloadedError("busy", target=TARGET, status=500)


def retrying(*streams: list[Line] | Line, policy: RetryPolicy | None = None) -> tuple[RetryProvider, Streams, Waits]:
    inner, waits = Streams(*streams), Waits()
    return (
        RetryProvider(inner, policy, target=CallTarget("mine", "m"), sleep=waits.sleep, monotonic=waits.monotonic),
        inner,
        waits,
    )


async def test_it_waits_1_2_4_seconds_and_says_so_each_time():
    provider, _, waits = retrying(BUSY, BUSY, BUSY, HI)
    told: list[str] = []

    assert text_of(await heard(provider, told)) == "hi"

    assert waits.taken == [1, 2, 4]
    assert told == [
        "gpt-x (openai): the provider is overloaded or failing (HTTP 500). Retry 1 of 3 in 1 s.",
        "gpt-x (openai): the provider is overloaded or failing (HTTP 500). Retry 2 of 3 in 2 s.",
        "gpt-x (openai): the provider is overloaded or failing (HTTP 500). Retry 3 of 3 in 4 s.",
    ]


async def test_after_three_retries_the_last_failure_goes_up():
    provider, inner, _ = retrying(BUSY, BUSY, BUSY, errors.RateLimitedError("at last", status=429))

    with pytest.raises(errors.RateLimitedError, match="at last"):
        await heard(provider)

    assert len(inner.asked) == 4


async def test_it_waits_as_long_as_the_server_asks_for():
    provider, _, waits = retrying(errors.RateLimitedError(retry_after_s=7), HI)

    await heard(provider)

    assert waits.taken == [7]


async def test_a_server_that_asks_for_more_than_a_minute_is_not_waited_for_and_the_person_reads_how_long():
    provider, inner, waits = retrying(
        errors.RateLimitedError("slow down", target=TARGET, status=429, retry_after_s=300)
    )
    told: list[str] = []

    with pytest.raises(errors.RateLimitedError, match="Try again in 5 min"):
        await heard(provider, told)

    assert (waits.taken, told, len(inner.asked)) == ([], [], 1)


@pytest.mark.parametrize(
    "error",
    [
        errors.RateLimitedError(status=429),
        errors.ModelOverloadedError(status=408),
        errors.ModelOverloadedError(status=529),
        errors.ConnectionFailedError("refused"),
        errors.StreamCutError(),
        errors.MalformedResponseError(),
    ],
    ids=repr,
)
async def test_what_may_be_over_in_a_moment_is_tried_again(error: errors.ModelCallError):
    provider, inner, _ = retrying(error, HI)

    await heard(provider)

    assert len(inner.asked) == 2


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError(status=400),
        errors.AuthenticationError(status=401),
        errors.AuthenticationError(status=403),
        errors.ModelNotFoundError(status=404),
        errors.InvalidRequestError(status=422),
        errors.QuotaExceededError(status=429),
        errors.ContentFilteredError(),
        errors.ContextOverflowError(status=413),
        BudgetExceededError("spent"),
        ValueError("a bug"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("policy", [RetryPolicy(), RetryPolicy.persistent()], ids=["standard", "persistent"])
async def test_what_cannot_help_is_never_tried_again(error: Exception, policy: RetryPolicy):
    provider, inner, waits = retrying(error, HI, policy=policy)

    with pytest.raises(type(error)):
        await heard(provider)

    assert (len(inner.asked), waits.taken) == (1, [])


async def test_a_time_out_has_cost_enough_unless_the_call_is_persistent():
    provider, inner, _ = retrying(errors.ProviderTimeoutError("waited 60 s"), HI)
    patient, _, waits = retrying(errors.ProviderTimeoutError("waited 60 s"), HI, policy=RetryPolicy.persistent())

    with pytest.raises(errors.ProviderTimeoutError):
        await heard(provider)
    assert text_of(await heard(patient)) == "hi"

    assert (len(inner.asked), waits.taken) == (1, [1])


async def test_nothing_is_said_twice_once_text_went_out():
    provider, inner, _ = retrying([TextDelta("Half"), errors.StreamCutError()], HI)

    with pytest.raises(errors.StreamCutError):
        await heard(provider)

    assert len(inner.asked) == 1


async def test_a_thought_that_broke_off_is_thought_again_and_a_call_that_broke_off_is_not_seen():
    broken: list[Line] = [ReasoningDelta("Hm"), ToolCallDelta(0, "list_dir", '{"pa'), errors.StreamCutError()]
    whole: list[Line] = [ToolCallDelta(0, "list_dir", '{"path": "."}'), Finished(LLMResponse(None))]
    provider, _, _ = retrying(broken, whole)

    deltas = await heard(provider)

    assert [delta for delta in deltas if isinstance(delta, ToolCallDelta)] == whole[:1]


async def test_a_failure_behind_the_whole_answer_asks_nobody_again():
    provider, inner, _ = retrying([*HI, errors.StreamCutError()], HI)

    with pytest.raises(errors.StreamCutError):
        await heard(provider)

    assert len(inner.asked) == 1


async def test_a_stream_without_an_end_is_tried_again():
    provider, inner, _ = retrying([ReasoningDelta("Hm")], HI)
    told: list[str] = []

    assert text_of(await heard(provider, told)) == "hi"

    assert len(inner.asked) == 2
    assert told == ["m (mine): the answer broke off in the middle. Retry 1 of 3 in 1 s."]


@pytest.mark.parametrize(("seconds", "taken"), [(30, []), (5, [5, 5]), (1, [1, 1, 1])])
async def test_while_another_model_is_left_it_waits_only_shortly(seconds: float, taken: list[float]):
    provider, inner, waits = retrying(errors.RateLimitedError(retry_after_s=seconds))

    with pytest.raises(errors.RateLimitedError), call_context_scope(CallContext(has_fallback=True)):
        await provider.chat(HELLO)

    assert (waits.taken, len(inner.asked)) == (taken, len(taken) + 1)


async def test_cancelling_while_it_waits_ends_it_at_once():
    inner = ScriptedProvider(BUSY)
    provider = RetryProvider(inner)
    task = asyncio.create_task(provider.chat(HELLO))
    await asyncio.sleep(0.01)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(inner.requests) == 1


async def test_a_persistent_call_goes_on_until_it_is_answered():
    failures: list[Line] = [BUSY, errors.RateLimitedError(status=429)] * 12
    provider, inner, waits = retrying(*failures, HI, policy=RetryPolicy.persistent())
    told: list[str] = []

    assert text_of(await heard(provider, told)) == "hi"

    assert waits.taken[:8] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert max(waits.taken) == 60
    assert len(inner.asked) == 25
    assert 2 < len(told) < len(waits.taken), "told now and then, not each time"
    assert "/stop" in told[0]


async def test_a_persistent_call_ends_after_ten_failures_of_one_kind():
    provider, inner, _ = retrying(errors.RateLimitedError(status=429), BUSY, policy=RetryPolicy.persistent())

    with pytest.raises(errors.ModelOverloadedError):
        await heard(provider)

    assert len(inner.asked) == 11


async def test_a_persistent_call_tries_each_minute_whatever_the_server_asks_for():
    provider, _, waits = retrying(
        errors.RateLimitedError(status=429, retry_after_s=7200), HI, policy=RetryPolicy.persistent()
    )

    await heard(provider)

    assert waits.taken == [60]
