"""Who answers when somebody does not: what is tried again, after how long, who is next, and what is told of it."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.errors import BudgetExceededError, ConfigError
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
    MAX_FAILURES,
    OPEN_S,
    RETRIES,
    Breaker,
    Candidate,
    ChosenProvider,
    ResilientProvider,
)
from nanobot.testing import Pause, ScriptedProvider
from tests.support.clock import Waits
from tests.support.sample_requests import HELLO
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
        self.made: list[str] = []
        names = providers.split()
        self.answerers = [
            ChosenProvider(model, names[index], "abc"[index], Breaker(self.waits.monotonic))
            for index, model in enumerate(models)
        ]
        first, *others = self.answerers
        self.provider = ResilientProvider(
            [
                Candidate.ready(first),
                *(Candidate(o.model, self._maker(o), **settings.get(o.model, {})) for o in others),
            ],
            retries=retries,
            sleep=self.waits.sleep,
            monotonic=self.waits.monotonic,
        )

    def _maker(self, answerer: ChosenProvider) -> Any:
        async def make() -> ChosenProvider:
            self.made.append(answerer.model)
            return answerer

        return make

    async def say(self, session: str = "s") -> str:
        return text_of(await heard(self.provider, self.told, session))


async def test_the_first_answers_and_no_other_is_even_made():
    house = House(Streams(says("from a")), Streams(says("from b")))

    assert await house.say() == "from a"

    assert (house.made, house.told) == ([], [])


@pytest.mark.parametrize(
    "error",
    [
        errors.RateLimitedError(status=429),
        errors.ModelOverloadedError(status=503),
        errors.ProviderTimeoutError("waited"),
        errors.ConnectionFailedError("refused"),
        errors.StreamCutError(),
        errors.MalformedResponseError(),
        errors.AuthenticationError(status=401),
        errors.QuotaExceededError(status=402),
    ],
    ids=repr,
)
async def test_another_model_answers_with_its_own_name_and_the_person_is_told(error: errors.ModelCallError):
    b = Streams(says("from b"))
    house = House(Streams(error), b)

    assert await house.say() == "from b"

    assert b.asked[0]["model"] == "b"
    assert len(house.told) == 1
    assert house.told[0].startswith("b (two) answers instead of a (one). ")
    assert f"a (one): {error.brief()}." in house.told[0], "whoever raised it"


@pytest.mark.parametrize(
    "error",
    [
        errors.InvalidRequestError(status=400),
        errors.ModelNotFoundError(status=404),
        errors.InvalidRequestError(status=422),
        errors.ContentFilteredError(),
        errors.ContextOverflowError(status=413),
        BudgetExceededError("spent"),
    ],
    ids=repr,
)
async def test_what_would_fail_elsewhere_too_is_raised_at_once(error: Exception):
    b = Streams(says("from b"))
    house = House(Streams(error), b)

    for _ in range(MAX_FAILURES + 1):
        with pytest.raises(type(error)):
            await house.say()

    assert b.asked == []
    assert house.provider.notes() == [], "the model itself works"


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


async def test_nobody_is_switched_after_text_was_shown():
    b = Streams(says("from b"))
    house = House(Streams([TextDelta("Half"), errors.StreamCutError()]), b)

    with pytest.raises(errors.StreamCutError):
        await house.say()

    assert b.asked == []


async def test_a_switch_is_told_once_a_session_and_so_is_the_way_back():
    house = House(Streams(busy(), busy(), busy(), says("from a")), Streams(says("from b")))

    assert [await house.say() for _ in range(5)] == ["from b"] * 5
    assert await house.say("another") == "from b"
    assert len(house.told) == 2, "once a session"
    house.waits.advance(OPEN_S)
    assert [await house.say(), await house.say(), await house.say("another")] == ["from a"] * 3

    assert house.told[2:] == ["a (one) answers again."] * 2


async def test_after_three_failures_the_first_is_left_alone_for_a_minute_and_then_asked_again():
    a = Streams(busy(), busy(), busy(), says("from a"))
    house = House(a, Streams(says("from b")))

    for _ in range(10):
        await house.say()
    assert len(a.asked) == 3
    assert house.provider.notes() == [
        "a (one) is paused for 60 s: the provider is overloaded or failing (HTTP 500).",
        "b is used instead." if not house.made else "b (two) is used instead.",
    ]
    house.waits.advance(OPEN_S)

    assert await house.say() == "from a"
    assert house.provider.notes() == []


async def test_while_one_call_tries_the_first_the_others_ask_the_next():
    pause = Pause()
    a, b = ScriptedProvider(busy(), busy(), busy(), pause, "from a"), Streams(says("from b"))
    house = House(a, b)
    for _ in range(3):
        await house.say()
    house.waits.advance(OPEN_S)

    probe = asyncio.create_task(house.say())
    await pause.reached.wait()
    meanwhile = [await house.say(f"s{index}") for index in range(3)]
    pause.resume.set()

    assert meanwhile == ["from b"] * 3
    assert await probe == "from a"


async def test_a_first_word_of_the_call_that_tries_it_lets_the_others_in():
    pause = Pause("from")
    a, b = ScriptedProvider(busy(), busy(), busy(), pause, "from a, too", " a"), Streams(says("from b"))
    house = House(a, b)
    for _ in range(3):
        await house.say()
    house.waits.advance(OPEN_S)

    probe = asyncio.create_task(house.say())
    await pause.reached.wait()
    meanwhile = await house.say("another")
    pause.resume.set()

    assert (meanwhile, await probe) == ("from a, too", "from a")


async def test_a_call_that_tries_it_and_is_cancelled_leaves_the_try_to_the_next():
    pause = Pause()
    a, b = ScriptedProvider(busy(), busy(), busy(), pause, "from a"), Streams(says("from b"))
    house = House(a, b)
    for _ in range(3):
        await house.say()
    house.waits.advance(OPEN_S)
    probe = asyncio.create_task(house.say())
    await pause.reached.wait()

    probe.cancel()
    with pytest.raises(asyncio.CancelledError):
        await probe

    assert await house.say() == "from a"


async def test_a_model_alone_that_is_out_is_not_asked_and_that_is_said_with_its_last_failure():
    a = Streams(busy())
    house = House(a)
    for _ in range(3):
        with pytest.raises(errors.ModelOverloadedError):
            await house.say()

    with pytest.raises(errors.ModelUnavailableError) as caught:
        await house.say()

    assert len(a.asked) == 3
    said = str(caught.value)
    assert said.startswith(
        "The model is paused after repeated failures; no request was sent [one, model a]: its last failure"
    )
    assert "the provider is overloaded or failing (HTTP 500)" in said and said.endswith("Try again in 60 s.")
    assert caught.value.retry_after_s is not None and 59 < caught.value.retry_after_s <= 60


async def test_a_call_that_is_cancelled_leaves_no_mark():
    pause = Pause()
    house = House(ScriptedProvider(*[pause] * 3, "from a"))
    for _ in range(3):
        task = asyncio.create_task(house.say())
        await pause.reached.wait()
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    pause.resume.set()

    assert await house.say() == "from a"


async def test_a_window_that_is_too_small_is_passed_over_and_that_is_said():
    b, c = Streams(says("from b")), Streams(says("from c"))
    house = House(Streams(busy()), b, c, b={"window_tokens": 2_000}, c={"window_tokens": 20_000})
    rows: list[ChatMessage] = [{"role": "user", "content": "x" * 40_000}]

    response = await house.provider.chat(rows, max_tokens=12_000)

    assert response.content == "from c"
    assert b.asked == []
    assert c.asked[0]["max_tokens"] < 10_000, "what is left of its context window"


async def test_a_fallback_is_asked_with_the_settings_of_its_preset_else_with_those_of_the_call():
    b, c = Streams(busy("b")), Streams(says("from c"))
    house = House(Streams(busy()), b, c, b={"max_tokens": 100, "temperature": 0.9})

    await heard(house.provider, max_tokens=500, temperature=0.2, model="a2")

    a = house.answerers[0].provider
    assert isinstance(a, Streams)
    assert a.asked == [{"model": "a2", "max_tokens": 500, "temperature": 0.2}]
    assert b.asked == [{"model": "b", "max_tokens": 100, "temperature": 0.9}]
    assert c.asked == [{"model": "c", "max_tokens": 500, "temperature": 0.2}]


async def test_a_fallback_that_cannot_be_made_is_a_reason_and_no_crash():
    async def cannot() -> ChosenProvider:
        raise ConfigError("There is no key for Groq.")

    first = ChosenProvider(Streams(busy()), "one", "a", Breaker())
    provider = ResilientProvider([Candidate.ready(first), Candidate("spare", cannot)], retries=0)

    with pytest.raises(errors.ModelOverloadedError, match=r"spare cannot be used: There is no key for Groq\."):
        await heard(provider)

    assert "spare cannot be used: There is no key for Groq." in provider.notes()


async def test_only_who_has_another_behind_it_is_told_that_others_are_left():
    a, b = Streams(busy()), Streams(busy("b"))
    house = House(a, b)

    with pytest.raises(errors.ModelOverloadedError):
        await house.say()

    assert [context.has_fallback for context in (*a.contexts, *b.contexts)] == [True, False]
    assert {context.session_key for context in (*a.contexts, *b.contexts)} == {"s"}


async def test_one_model_behind_two_names_is_asked_once():
    breaker = Breaker()
    a = Streams(busy())
    house = [
        Candidate.ready(ChosenProvider(a, "one", "a", breaker)),
        Candidate.ready(ChosenProvider(a, "one", "a", breaker)),
    ]

    with pytest.raises(errors.ModelOverloadedError):
        await heard(ResilientProvider(house, retries=0))

    assert len(a.asked) == 1


async def test_getting_ready_and_closing_reach_those_that_were_made():
    a, b, c = Streams(busy()), Streams(says("from b")), Streams(says("from c"))
    house = House(a, b, c)
    await house.say()

    house.provider.prepare()
    await house.provider.close()

    assert (a.prepared, b.prepared, c.prepared) == (1, 0, 0)
    assert (a.closed, b.closed, c.closed) == (1, 1, 0)


async def test_two_calls_that_need_a_fallback_at_once_share_it():
    made: list[Streams] = []

    async def make() -> ChosenProvider:
        await asyncio.sleep(0)
        made.append(Streams(says("from b")))
        return ChosenProvider(made[-1], "two", "b", Breaker())

    provider = ResilientProvider(
        [Candidate.ready(ChosenProvider(Streams(busy()), "one", "a", Breaker())), Candidate("b", make)], retries=0
    )

    await asyncio.gather(heard(provider), heard(provider))
    await provider.close()

    assert [one.closed for one in made] == [1, 1]


async def test_a_hundred_sessions_keep_their_answers_apart_and_the_log_says_it_once(caplog: pytest.LogCaptureFixture):
    house = House(Streams(busy()), ScriptedProvider(*[f"answer {index}" for index in range(100)]))

    answers = await asyncio.gather(*(house.say(f"s{index}") for index in range(100)))

    assert sorted(answers) == sorted(f"answer {index}" for index in range(100))
    assert len(house.told) == 100
    assert sorted(record.message.split(" (")[0] for record in caplog.records) == ["a", "b"]


async def test_the_default_model_is_the_first_ones():
    assert House(Streams(says("a"))).provider.get_default_model() == "a"
    assert (await House(Streams(says("from a"))).provider.chat(HELLO)).content == "from a"


HI: list[Line] = [TextDelta("hi"), Finished(LLMResponse("hi"))]
TARGET = CallTarget("openai", "gpt-x", "https://api.example", "providers.openai.apiKey")
BUSY = errors.ModelOverloadedError("busy", target=TARGET, status=500)


def retrying(*streams: list[Line] | Line, retries: int | None = RETRIES) -> tuple[LLMProvider, Streams, Waits]:
    """One model, `a` of the provider `one`."""
    inner = Streams(*streams)
    house = House(inner, retries=retries)
    return house.provider, inner, house.waits


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
@pytest.mark.parametrize("retries", [RETRIES, None], ids=["standard", "persistent"])
async def test_what_cannot_help_is_never_tried_again(error: Exception, retries: int | None):
    provider, inner, waits = retrying(error, HI, retries=retries)

    with pytest.raises(type(error)):
        await heard(provider)

    assert (len(inner.asked), waits.taken) == (1, [])


async def test_a_time_out_has_cost_enough_unless_the_call_is_persistent():
    provider, inner, _ = retrying(errors.ProviderTimeoutError("waited 60 s"), HI)
    patient, _, waits = retrying(errors.ProviderTimeoutError("waited 60 s"), HI, retries=None)

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


async def test_a_failure_behind_the_whole_answer_asks_nobody_again_and_is_none_of_the_model():
    provider, inner, _ = retrying([*HI, errors.StreamCutError()])

    for _ in range(MAX_FAILURES):
        with pytest.raises(errors.StreamCutError):
            await heard(provider)

    assert len(inner.asked) == MAX_FAILURES
    assert provider.notes() == []


async def test_a_stream_without_an_end_is_tried_again():
    provider, inner, _ = retrying([ReasoningDelta("Hm")], HI)
    told: list[str] = []

    assert text_of(await heard(provider, told)) == "hi"

    assert len(inner.asked) == 2
    assert told == ["a (one): the answer broke off in the middle. Retry 1 of 3 in 1 s."]


@pytest.mark.parametrize(("seconds", "taken"), [(30, []), (5, [5, 5]), (1, [1, 1, 1])])
async def test_while_another_model_is_left_it_waits_only_shortly(seconds: float, taken: list[float]):
    a = Streams(errors.RateLimitedError(retry_after_s=seconds))
    house = House(a, Streams(says("from b")), retries=RETRIES)

    assert await house.say() == "from b"

    assert (house.waits.taken, len(a.asked)) == (taken, len(taken) + 1)


async def test_cancelling_while_it_waits_ends_it_at_once():
    inner = ScriptedProvider(BUSY)
    provider = ResilientProvider([Candidate.ready(ChosenProvider(inner, "one", "a", Breaker()))])
    task = asyncio.create_task(provider.chat(HELLO))
    await asyncio.sleep(0.01)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(inner.requests) == 1


async def test_a_persistent_call_goes_on_until_it_is_answered():
    failures: list[Line] = [BUSY, errors.RateLimitedError(status=429)] * 12
    provider, inner, waits = retrying(*failures, HI, retries=None)
    told: list[str] = []

    assert text_of(await heard(provider, told)) == "hi"

    assert waits.taken[:4] == [1, 2, 4, 56], "paused for a minute after three failures"
    assert max(waits.taken) == 60
    assert len(inner.asked) == 25
    assert 2 < len(told) < len(waits.taken), "told now and then, not each time"
    assert "/stop" in told[0]


async def test_a_persistent_call_ends_after_ten_failures_of_one_kind():
    provider, inner, _ = retrying(errors.RateLimitedError(status=429), BUSY, retries=None)

    with pytest.raises(errors.ModelOverloadedError):
        await heard(provider)

    assert len(inner.asked) == 11


async def test_a_persistent_call_tries_each_minute_whatever_the_server_asks_for():
    provider, _, waits = retrying(errors.RateLimitedError(status=429, retry_after_s=7200), HI, retries=None)

    await heard(provider)

    assert waits.taken == [60]


async def test_a_success_between_failures_starts_the_count_afresh():
    house = House(Streams(busy(), busy(), says("from a"), busy(), busy(), says("from a")), Streams(says("from b")))

    assert [await house.say() for _ in range(6)] == ["from b", "from b", "from a", "from b", "from b", "from a"]


async def test_a_late_failure_of_an_older_call_adds_no_time():
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
