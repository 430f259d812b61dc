"""Who answers when somebody does not, and what is told of it."""

import asyncio
import logging
from typing import Any

import pytest

from nanobot.errors import BudgetExceededError, ConfigError
from nanobot.messages.types import ChatMessage
from nanobot.providers import errors
from nanobot.providers.base import Finished, LLMProvider, LLMResponse, TextDelta
from nanobot.providers.errors import CallTarget
from nanobot.providers.resilience.breaker import MAX_FAILURES, OPEN_S, Breaker
from nanobot.providers.resilience.fallback import Candidate, CandidateModel, FallbackProvider
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

    def __init__(self, *models: LLMProvider, providers: str = "one two three", **settings: dict[str, Any]) -> None:
        self.waits = Waits()
        self.told: list[str] = []
        self.made: list[str] = []
        names = providers.split()
        self.answerers = [
            CandidateModel(model, names[index], "abc"[index], Breaker(self.waits.monotonic))
            for index, model in enumerate(models)
        ]
        first, *others = self.answerers
        self.provider = FallbackProvider(
            [Candidate.ready(first), *(Candidate(o.model, self._maker(o), **settings.get(o.model, {})) for o in others)]
        )

    def _maker(self, answerer: CandidateModel) -> Any:
        async def make() -> CandidateModel:
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

    with caplog.at_level(logging.WARNING, "nanobot.providers.resilience.fallback"):
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
    async def cannot() -> CandidateModel:
        raise ConfigError("There is no key for Groq.")

    first = CandidateModel(Streams(busy()), "one", "a", Breaker())
    provider = FallbackProvider([Candidate.ready(first), Candidate("spare", cannot)])

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
        Candidate.ready(CandidateModel(a, "one", "a", breaker)),
        Candidate.ready(CandidateModel(a, "one", "a", breaker)),
    ]

    with pytest.raises(errors.ModelOverloadedError):
        await heard(FallbackProvider(house))

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

    async def make() -> CandidateModel:
        await asyncio.sleep(0)
        made.append(Streams(says("from b")))
        return CandidateModel(made[-1], "two", "b", Breaker())

    provider = FallbackProvider(
        [Candidate.ready(CandidateModel(Streams(busy()), "one", "a", Breaker())), Candidate("b", make)]
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
