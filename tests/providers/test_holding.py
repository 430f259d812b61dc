"""Whatever fails in whatever order: one answer or one failure a call, never two answers in one, and a way back."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from nanobot.providers import errors
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, ReasoningDelta, TextDelta, ToolCallDelta
from nanobot.providers.resilience.breaker import OPEN_S, Breaker
from nanobot.providers.resilience.fallback import Candidate, CandidateModel, FallbackProvider
from nanobot.providers.resilience.retry import RetryPolicy, RetryProvider
from tests.support.clock import Waits
from tests.support.scripted_stream import Line, Streams, heard

BEFORE: dict[str, list[Line]] = {
    "busy": [errors.ModelOverloadedError(status=500)],
    "slow down": [errors.RateLimitedError(status=429, retry_after_s=5)],
    "go away": [errors.RateLimitedError(status=429, retry_after_s=5000)],
    "silent": [errors.ProviderTimeoutError()],
    "refused": [errors.ConnectionFailedError()],
    "key": [errors.AuthenticationError(status=401)],
    "odd": [errors.InvalidRequestError(status=400)],
    "thought": [ReasoningDelta("hm"), errors.StreamCutError()],
    "call": [ToolCallDelta(0, "list_dir", "{"), errors.StreamCutError()],
    "no end": [ReasoningDelta("hm")],
}
AFTER: list[Line] = [TextDelta("half"), errors.StreamCutError()]
OUTCOMES = [*BEFORE, "half", "ok"]


def lines(name: str, outcome: str) -> list[Line]:
    if outcome == "ok":
        return [ToolCallDelta(0, name, "{}"), TextDelta(name), Finished(LLMResponse(name))]
    return [TextDelta(name), *AFTER] if outcome == "half" else BEFORE[outcome]


def house(scripts: Sequence[Sequence[str]], waits: Waits, *, persistent: bool) -> tuple[LLMProvider, list[Streams]]:
    models = [
        Streams(*(lines("abc"[index], outcome) for outcome in [*script, "ok"])) for index, script in enumerate(scripts)
    ]

    def retried(inner: LLMProvider, policy: RetryPolicy) -> LLMProvider:
        return RetryProvider(inner, policy, sleep=waits.sleep, monotonic=waits.monotonic)

    candidates = [
        Candidate.ready(
            CandidateModel(
                model if persistent else retried(model, RetryPolicy()),
                f"provider {index}",
                "abc"[index],
                Breaker(waits.monotonic),
            )
        )
        for index, model in enumerate(models)
    ]
    chain = FallbackProvider(candidates)
    return (retried(chain, RetryPolicy.persistent()) if persistent else chain), models


def check(deltas: list[Delta]) -> None:
    """One whole answer of one model."""
    finished = [delta for delta in deltas if isinstance(delta, Finished)]
    text = "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
    calls = [delta.name for delta in deltas if isinstance(delta, ToolCallDelta)]
    assert len(finished) == 1 and deltas[-1] is finished[0]
    assert text == finished[0].response.content
    assert calls == [text], "of the model that answered, whole, and of no other"


scripts_of_models = st.lists(st.lists(st.sampled_from(OUTCOMES), max_size=15), min_size=1, max_size=3)


@given(scripts_of_models, st.booleans(), st.lists(st.sampled_from([0, 5, 30, OPEN_S]), min_size=1, max_size=12))
def test_each_call_ends_in_one_whole_answer_or_one_failure_and_the_first_is_used_again(
    scripts: list[list[str]], persistent: bool, pauses: list[float]
):
    waits = Waits()
    provider, models = house(scripts, waits, persistent=persistent)

    async def live() -> None:
        for pause in pauses:
            waits.advance(pause)
            try:
                check(await heard(provider))
            except errors.ModelCallError as error:
                assert str(error)
        while len(models[0].asked) <= len(scripts[0]):
            waits.advance(OPEN_S)
            try:
                check(await heard(provider))
            except errors.ModelCallError as error:
                assert not isinstance(error, errors.ModelUnavailableError), "after a minute it may be asked again"
        waits.advance(OPEN_S)
        deltas = await heard(provider)
        check(deltas)
        assert isinstance(deltas[-1], Finished) and deltas[-1].response.content == "a"
        assert provider.notes() == [] or len(models) > 1

    asyncio.run(live())


@given(scripts_of_models, st.integers(2, 8))
def test_calls_side_by_side_and_cancelled_ones_lock_nobody_out(scripts: list[list[str]], calls: int):
    waits = Waits()
    provider, models = house(scripts, waits, persistent=False)

    async def live() -> None:
        tasks = [asyncio.create_task(heard(provider, session=f"s{index}")) for index in range(calls)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        for ended in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(ended, BaseException):
                assert isinstance(ended, errors.ModelCallError | asyncio.CancelledError)
            else:
                check(ended)
        for _ in range(20):
            waits.advance(OPEN_S)
            await asyncio.gather(heard(provider), return_exceptions=True)
        waits.advance(OPEN_S)
        check(await heard(provider))

    asyncio.run(live())
    assert len(models[0].asked) > len(scripts[0])
