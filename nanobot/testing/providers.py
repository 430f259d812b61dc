"""Conformance checks of providers: deltas add up to the response, calls are parsed, failures are typed.

def make(server: FakeModels) -> LLMProvider:
    return MyProvider("a key", server.v1, "a-model")

@pytest.mark.parametrize("check", provider_checks(make), ids=str)
def test_the_provider(check, tmp_path):
    check(tmp_path)

The server is `model_server.FakeModels`, which implements OpenAI chat completions, OpenAI Responses and Anthropic
messages. For another API pass a server of your own that plays the same steps.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished, LLMProvider, ReasoningDelta, TextDelta, ToolCallDelta
from nanobot.providers.errors import RateLimitedError
from nanobot.testing.checks import Check, checks_of
from nanobot.testing.model_server import Calls, Fail, FakeModels, Hang, Plain, Say, Step

HELLO: list[ChatMessage] = [{"role": "user", "content": "hello"}]
LIST_DIR: ToolSchema = {
    "type": "function",
    "function": {
        "name": "list_dir",
        "description": "list_dir",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    },
}


def provider_checks(
    make: Callable[[Any], LLMProvider], server: Callable[[], FakeModels] = FakeModels, *, streams: bool = True
) -> list[Check]:
    """Return the checks. `make` creates the provider for a server created by `server`.

    `streams`: whether the server streams if requested; some do not.
    """

    async def run_check(check: Callable[[ProviderUnderTest], Awaitable[None]], folder: Path) -> None:
        with server() as running:
            provider = make(running)
            try:
                await check(ProviderUnderTest(provider, running, streams=streams))
            finally:
                await provider.close()

    return checks_of(globals(), run_check)


@dataclass(frozen=True)
class ProviderUnderTest:
    """A provider and its server."""

    provider: LLMProvider
    server: FakeModels
    streams: bool = field(default=True, kw_only=True)

    def script(self, *steps: Step) -> None:
        """Add steps to the script of the model."""
        if not self.streams:
            steps = tuple(Plain(step) if isinstance(step, Say | Calls) else step for step in steps)
        self.server.script(*steps)

    async def deltas(self) -> list[Delta]:
        """Send a request and return all deltas."""
        return [delta async for delta in self.provider.chat_stream(HELLO, [LIST_DIR])]


def check_stream(deltas: Sequence[Delta]) -> Finished:
    """Check what holds for every finished stream, and return its end."""
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


async def test_deltas_concatenate_to_the_response(subject: ProviderUnderTest) -> None:
    subject.script(Say("Hello, you there.", reasoning="A greeting."))

    response = check_stream(await subject.deltas()).response

    assert response.content == "Hello, you there."
    assert response.reasoning_content == "A greeting."
    assert response.finish_reason == "stop"
    assert set(response.usage) >= {"prompt_tokens", "completion_tokens", "cached_tokens"}


async def test_parallel_calls_are_read(subject: ProviderUnderTest) -> None:
    subject.script(Calls(("list_dir", {"path": "a"}), ("list_dir", {"path": "b"}), text="Both."))

    response = check_stream(await subject.deltas()).response

    assert [call.arguments for call in response.tool_calls] == [{"path": "a"}, {"path": "b"}]
    assert response.finish_reason == "tool_calls"


async def test_a_call_written_as_text_is_read(subject: ProviderUnderTest) -> None:
    subject.script(Say('<tool_call>{"name": "list_dir", "arguments": {"path": "."}}</tool_call>', pieces=9))

    deltas = await subject.deltas()

    assert check_stream(deltas).response.tool_calls[0].arguments == {"path": "."}
    assert not any(isinstance(delta, TextDelta) for delta in deltas)


async def test_an_answer_that_was_cut_by_its_length_says_so(subject: ProviderUnderTest) -> None:
    subject.script(Say("And then", finish="length"))

    assert check_stream(await subject.deltas()).response.finish_reason == "length"


async def test_chat_and_chat_stream_give_the_same(subject: ProviderUnderTest) -> None:
    subject.script(Say("The same."), Say("The same."))

    assert (await subject.provider.chat(HELLO)).content == check_stream(await subject.deltas()).response.content


async def test_a_failure_is_typed_and_comes_before_any_delta(subject: ProviderUnderTest) -> None:
    subject.script(*[Fail(429, "slow down", retry_after=2)] * 2)
    seen: list[Delta] = []

    try:
        async for delta in subject.provider.chat_stream(HELLO, [LIST_DIR]):
            seen.append(delta)  # noqa: PERF401 what came before the failure counts
    except RateLimitedError as error:
        assert error.retry_after_s == 2
        assert seen == []
    else:
        raise AssertionError("HTTP 429 did not raise RateLimitedError")


async def test_a_call_may_be_cancelled_and_the_next_one_works(subject: ProviderUnderTest) -> None:
    await subject.provider.chat(HELLO)
    subject.script(Hang())
    asked = len(subject.server.chats)
    task = asyncio.create_task(subject.deltas())
    while len(subject.server.chats) == asked and not task.done():
        await asyncio.sleep(0.01)

    task.cancel()
    (ended,) = await asyncio.gather(task, return_exceptions=True)

    assert isinstance(ended, asyncio.CancelledError)
    assert check_stream(await subject.deltas()).response.content == "ok"


async def test_many_calls_at_once_do_not_mix(subject: ProviderUnderTest) -> None:
    subject.script(*(Say(f"answer {index}") for index in range(8)))

    streams = await asyncio.gather(*(subject.deltas() for _ in range(8)))

    assert sorted(check_stream(deltas).response.content or "" for deltas in streams) == [
        f"answer {index}" for index in range(8)
    ]
