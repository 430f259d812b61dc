"""The promises of the provider port, held by every provider.

A new provider joins `PROVIDERS`: deltas concatenate to the response, there is exactly one Finished and it is the last,
calls are read, a call may be cancelled, failures are typed.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from nanobot.messages.types import ChatMessage
from nanobot.providers.base import Delta, Finished, LLMProvider, LLMResponse, ReasoningDelta, TextDelta, ToolCallDelta
from nanobot.providers.breaker import Breaker
from nanobot.providers.copilot_provider import CopilotProvider
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.errors import ModelCallError, RateLimitedError
from nanobot.providers.fallback_provider import Answerer, Candidate, FallbackProvider
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.offline_provider import OfflineProvider
from nanobot.providers.openai_codex_provider import OpenAICodexProvider
from nanobot.providers.retry_provider import RetryPolicy, RetryProvider
from tests.fake_authority import FakeAuthority
from tests.fake_models import Calls, Fail, FakeModels, Hang, Plain, Say, Step
from tests.providers.samples import HELLO, LIST_DIR

Make = Callable[[FakeAuthority], LLMProvider]


def codex(server: FakeAuthority) -> LLMProvider:
    server.accounts.save(server.openai_account())
    return OpenAICodexProvider(server.accounts, "m", api_base=server.codex)


def copilot(server: FakeAuthority) -> LLMProvider:
    server.accounts.save(server.github_account())
    return CopilotProvider(server.accounts, "m", api_base=server.copilot)


def chained(server: FakeModels) -> LLMProvider:
    """A provider as a session has it: held, and with another behind it."""
    retried = [RetryProvider(CustomProvider("k", server.v1, model), RetryPolicy(retries=0)) for model in ("m", "n")]
    first, second = [
        Candidate.ready(Answerer(provider, name, name, Breaker())) for provider, name in zip(retried, "mn", strict=True)
    ]
    return FallbackProvider([first, second])


def persistent(server: FakeModels) -> LLMProvider:
    """The other shape."""
    answerer = Answerer(CustomProvider("k", server.v1, "m"), "m", "m", Breaker())
    return RetryProvider(FallbackProvider([Candidate.ready(answerer)]), RetryPolicy(retries=0))


PROVIDERS: dict[str, tuple[Make, bool]] = {
    "direct": (lambda server: CustomProvider("k", server.v1, "m"), False),
    "direct, server does not stream": (lambda server: CustomProvider("k", server.v1, "m"), True),
    "codex": (codex, False),
    "codex, server does not stream": (codex, True),
    "copilot": (copilot, False),
    "litellm, openai": (lambda server: LiteLLMProvider("k", server.v1, "m", litellm_prefix="openai"), False),
    "litellm, anthropic": (
        lambda server: LiteLLMProvider("k", server.url, "claude-x", litellm_prefix="anthropic"),
        False,
    ),
    "chained": (chained, False),
    "persistent": (persistent, False),
}

of_a_server = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name.split(",")[0])) for name in PROVIDERS]
)


class Asked:
    """A provider, and the server that plays its model."""

    def __init__(self, name: str, server: FakeAuthority) -> None:
        make, self._plain = PROVIDERS[name]
        self._server = server
        self.provider = make(server)

    def script(self, *steps: Step) -> None:
        plain = self._plain
        self._server.script(*(Plain(step) if plain and isinstance(step, Say | Calls) else step for step in steps))

    async def deltas(self, rows: list[ChatMessage] | None = None) -> list[Delta]:
        return [delta async for delta in self.provider.chat_stream(rows or HELLO, [LIST_DIR])]


@pytest.fixture
async def asked(name: str) -> AsyncIterator[Asked]:
    with FakeAuthority() as server:
        asked = Asked(name, server)
        yield asked
        await asked.provider.close()


def check(deltas: list[Delta]) -> Finished:
    """What every finished stream keeps to; its end."""
    finished = [delta for delta in deltas if isinstance(delta, Finished)]
    assert len(finished) == 1
    assert deltas[-1] is finished[0]
    response = finished[0].response
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == (response.content or "")
    thought = "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))
    assert thought == (response.reasoning_content or "")
    for index, call in enumerate(response.tool_calls):
        pieces = [delta for delta in deltas if isinstance(delta, ToolCallDelta) and delta.index == index]
        assert "".join(piece.name for piece in pieces) == call.name
        assert "".join(piece.arguments_text for piece in pieces) == call.to_message()["function"]["arguments"]
    assert len({call.id for call in response.tool_calls}) == len(response.tool_calls)
    return finished[0]


@of_a_server
async def test_deltas_concatenate_to_the_response(asked):
    asked.script(Say("Hello, you there.", reasoning="A greeting."))

    response = check(await asked.deltas()).response

    assert response.content == "Hello, you there."
    assert response.reasoning_content == "A greeting."
    assert response.finish_reason == "stop"
    assert set(response.usage) >= {"prompt_tokens", "completion_tokens", "cached_tokens"}


@of_a_server
async def test_parallel_calls_are_read(asked):
    asked.script(Calls(("list_dir", {"path": "a"}), ("list_dir", {"path": "b"}), text="Both."))

    response = check(await asked.deltas()).response

    assert [call.arguments for call in response.tool_calls] == [{"path": "a"}, {"path": "b"}]
    assert response.finish_reason == "tool_calls"


@of_a_server
async def test_a_call_written_as_text_is_read(asked):
    asked.script(Say('<tool_call>{"name": "list_dir", "arguments": {"path": "."}}</tool_call>', pieces=9))

    deltas = await asked.deltas()

    assert check(deltas).response.tool_calls[0].arguments == {"path": "."}
    assert not any(isinstance(delta, TextDelta) for delta in deltas)


@of_a_server
async def test_an_answer_that_was_cut_by_its_length_says_so(asked):
    asked.script(Say("And then", finish="length"))

    assert check(await asked.deltas()).response.finish_reason == "length"


@of_a_server
async def test_chat_and_chat_stream_give_the_same(asked):
    asked.script(Say("The same."), Say("The same."))

    assert (await asked.provider.chat(HELLO)).content == check(await asked.deltas()).response.content


@of_a_server
async def test_a_failure_is_typed_and_comes_before_any_delta(asked):
    asked.script(*[Fail(429, "slow down", retry_after=2)] * 2)

    with pytest.raises(RateLimitedError) as caught:
        await asked.deltas()

    assert isinstance(caught.value, ModelCallError)
    assert caught.value.retry_after_s == 2


@of_a_server
async def test_a_call_may_be_cancelled_and_the_next_one_works(asked):
    await asked.provider.chat(HELLO)
    asked.script(Hang())
    task = asyncio.create_task(asked.deltas())
    await asyncio.sleep(0.1)

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert check(await asked.deltas()).response.content == "ok"


@of_a_server
async def test_many_calls_at_once_do_not_mix(asked):
    asked.script(*(Say(f"answer {index}") for index in range(8)))

    streams = await asyncio.gather(*(asked.deltas() for _ in range(8)))

    assert sorted(check(deltas).response.content or "" for deltas in streams) == [f"answer {i}" for i in range(8)]


@pytest.mark.parametrize("text", ["hello", "list files", "write a to b.txt"])
async def test_the_stand_in_keeps_the_promises_too(text):
    rows: list[ChatMessage] = [{"role": "user", "content": text}]

    deltas = [delta async for delta in OfflineProvider().chat_stream(rows, [LIST_DIR])]

    check(deltas)


async def test_a_provider_of_somebody_s_own_is_asked_in_plain_chat_completions():
    class Theirs(LLMProvider):
        async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
            self.asked = messages
            return LLMResponse("hi")

    theirs = Theirs()
    row: ChatMessage = {"role": "user", "content": "hello", "runtime_context": "[now]", "turn_id": "t", "origin": "cli"}

    deltas = [delta async for delta in theirs.chat_stream([row])]

    assert theirs.asked == [{"role": "user", "content": "hello\n\n[now]"}]
    assert isinstance(deltas[-1], Finished)
