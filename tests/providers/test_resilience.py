"""Who answers when somebody does not: what is tried again, after how long, who is next, and what is told of it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.messages.types import ChatMessage
from nanobot.providers import errors
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMProvider,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from nanobot.providers.errors import CallTarget
from nanobot.providers.resilience import (
    OPEN_S,
    RETRIES,
    Breaker,
    ChosenProvider,
    ResilientProvider,
)
from nanobot.testing import Pause, ScriptedProvider
from tests.support.clock import Waits
from tests.support.scripted_stream import Line, Streams, heard, text_of


def says(text: str) -> list[Line]:
    return [TextDelta(text), Finished(LLMResponse(text))]


def busy(model: str = "a") -> errors.ModelOverloadedError:
    return errors.ModelOverloadedError(target=CallTarget("one", model), status=500)


class House:
    """Models a, b, c, ... in their order: a with provider one, b with two, c with three; or as `providers` says."""

    def __init__(
        self,
        *models: LLMProvider,
        providers: str = "one two three",
        retries: int | None = 0,
        waits: Waits | None = None,
        **settings: dict[str, Any],
    ) -> None:
        self.waits = waits or Waits()
        self.told: list[str] = []
        names = providers.split()
        chosen = [
            ChosenProvider(
                model, names[index], "abc"[index], Breaker(self.waits.monotonic), **settings.get("abc"[index], {})
            )
            for index, model in enumerate(models)
        ]
        self.provider = ResilientProvider(
            chosen, retries=retries, sleep=self.waits.sleep, monotonic=self.waits.monotonic
        )

    async def say(self, session: str = "s") -> str:
        return text_of(await heard(self.provider, self.told, session))


async def test_a_refused_key_leads_to_another_provider_and_the_owner_reads_which_key_it_was(
    caplog: pytest.LogCaptureFixture,
):
    target = CallTarget("one", "a", config_key="providers.one.apiKey")
    b, c = Streams(says("from b")), Streams(says("from c"))
    house = House(Streams(errors.AuthenticationError(target=target, status=401)), b, c, providers="one one two")

    with caplog.at_level(logging.WARNING, "nanobot.providers.resilience"):
        assert await house.say() == "from c"

    assert b.asked == []
    assert "providers.one.apiKey" in house.told[0]
    assert "b (one) was not tried: it uses the same provider." in house.told[0]
    assert "providers.one.apiKey" in caplog.text and "c (two) answers instead of a (one)" in caplog.text


async def test_all_are_tried_in_their_order_and_the_last_failure_names_the_others():
    house = House(Streams(busy()), Streams(errors.RateLimitedError(status=429, target=CallTarget("two", "b"))))

    with pytest.raises(errors.RateLimitedError) as caught:
        await house.say()

    assert "[two, model b]" in str(caught.value)
    assert str(caught.value).endswith("Tried before: a (one): the provider is overloaded or failing (HTTP 500).")


async def test_a_window_that_is_too_small_is_passed_over_and_that_is_said():
    b, c = Streams(says("from b")), Streams(says("from c"))
    house = House(Streams(busy()), b, c, b={"window_tokens": 2_000}, c={"window_tokens": 20_000})
    rows: list[ChatMessage] = [{"role": "user", "content": "x" * 40_000}]

    response = await house.provider.chat(rows, max_tokens=12_000)

    assert response.content == "from c"
    assert b.asked == []
    assert c.asked[0]["max_tokens"] < 10_000, "what is left of its context window"


async def test_one_call_probes_a_paused_model_and_lets_the_others_in_with_its_first_token():
    silent, pause = Pause(), Pause("from")
    a, b = ScriptedProvider(busy(), busy(), busy(), silent, pause, "from a, too", " a"), Streams(says("from b"))
    house = House(a, b)
    for _ in range(3):
        await house.say()
    house.waits.advance(OPEN_S)

    cancelled = asyncio.create_task(house.say())
    await silent.reached.wait()
    meanwhile = await house.say("during the probe")
    cancelled.cancel()
    await asyncio.wait([cancelled])
    probe = asyncio.create_task(house.say())
    await pause.reached.wait()
    beside = await house.say("after its first token")
    pause.resume.set()

    assert (meanwhile, beside, await probe) == ("from b", "from a, too", "from a")


async def test_a_late_failure_of_an_older_call_does_not_lengthen_the_pause():
    late = Pause()
    house = House(ScriptedProvider(late, *[busy()] * 4, "from a"), Streams(says("from b")))
    older = asyncio.create_task(house.say("older"))
    await late.reached.wait()
    for _ in range(3):
        await house.say()

    house.waits.advance(OPEN_S / 2)
    late.resume.set()
    await older
    house.waits.advance(OPEN_S / 2)

    assert await house.say() == "from a"


async def test_a_success_between_failures_starts_the_count_afresh():
    house = House(Streams(busy(), busy(), says("from a"), busy(), busy(), says("from a")), Streams(says("from b")))

    assert [await house.say() for _ in range(6)] == ["from b", "from b", "from a", "from b", "from b", "from a"]


SLOW_DOWN, SILENT = errors.RateLimitedError(status=429, retry_after_s=7200), errors.ProviderTimeoutError()
MIXED = [busy(), errors.RateLimitedError(status=429)] * 12


@pytest.mark.parametrize(
    ("failures", "waits"),
    [(MIXED, [1, 2, 4, 56]), ([SLOW_DOWN], [60]), ([SILENT], [1])],  # paused for a minute after three failures
)
async def test_a_persistent_call_asks_again_within_a_minute_until_it_is_answered(
    failures: list[Line], waits: list[float]
):
    a = Streams(*failures, says("hi"))
    house = House(a, retries=None)

    assert await house.say() == "hi"

    assert house.waits.taken[: len(waits)] == waits and max(house.waits.taken) <= 60
    assert len(a.asked) == len(failures) + 1
    assert 0 < len(house.told) < len(a.asked) and "/stop" in house.told[0], "now and then, not each time"


@pytest.mark.parametrize(("error", "asked"), [(busy(), 10), (errors.AuthenticationError(status=401), 1)])
async def test_a_persistent_call_ends_when_a_failure_does_not_pass(error: errors.ModelCallError, asked: int):
    a = Streams(error)

    with pytest.raises(type(error)):
        await House(a, retries=None).say()

    assert len(a.asked) == asked


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
OUTCOMES = [*BEFORE, "half", "late", "ok"]


def lines(name: str, outcome: str) -> list[Line]:
    if outcome == "ok":
        return [ToolCallDelta(0, name, "{}"), TextDelta(name), Finished(LLMResponse(name))]
    if outcome == "late":
        return [*lines(name, "ok"), errors.StreamCutError()]
    return [TextDelta(name), *AFTER] if outcome == "half" else BEFORE[outcome]


def scripted(scripts: Sequence[Sequence[str]]) -> list[Streams]:
    return [
        Streams(*(lines("abc"[index], outcome) for outcome in [*script, "ok"])) for index, script in enumerate(scripts)
    ]


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
    models = scripted(scripts)
    lived_in = House(*models, retries=None if persistent else RETRIES)
    waits, provider = lived_in.waits, lived_in.provider

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
    models = scripted(scripts)
    lived_in = House(*models, retries=RETRIES)
    waits, provider = lived_in.waits, lived_in.provider

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
