"""The clients that people have: openai and LiteLLM, unchanged, against the served gateway."""

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from nanobot.testing import Pause, calls
from tests.fakes.tools import command
from tests.support.api_client import api_key, base_url
from tests.support.running_gateway import OpenGateway, Running

openai = pytest.importorskip("openai")


class City(BaseModel):
    name: str
    people: int


async def client_of(here: Running, **options: Any) -> Any:
    return openai.AsyncOpenAI(base_url=base_url(here), api_key=await api_key(here), **options)


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


async def test_openai_reads_chat_completions(running: OpenGateway):
    script = (
        "plain",
        calls(("run", {"target": "ls"}), text="I look."),
        "streamed",
        '{"name": "Bonn", "people": 300000}',
    )
    async with running(*script) as here, await client_of(here) as client:
        here.gateway.runtime.tools.register(command())
        plain = await client.chat.completions.create(model="nanobot", messages=messages("hello"))
        stream = await client.chat.completions.create(
            model="nanobot", messages=messages("run it"), stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        parsed = await client.chat.completions.parse(model="nanobot", messages=messages("a city"), response_format=City)
        models = [model.id async for model in client.models.list()]

    assert (plain.choices[0].message.content, plain.choices[0].finish_reason) == ("plain", "stop")
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "I look.\n\nstreamed"
    assert chunks[-1].usage is not None
    assert parsed.choices[0].message.parsed == City(name="Bonn", people=300000)
    assert models == ["nanobot"]


async def test_openai_reads_responses(running: OpenGateway):
    script = (
        *("plain", calls(("run", {"target": "ls"}), text="I look."), "streamed", "in the background"),
        '{"name": "Bonn", "people": 300000}',
    )
    async with running(*script) as here, await client_of(here) as client:
        here.gateway.runtime.tools.register(command())
        plain = await client.responses.create(model="nanobot", input="hello")
        async with client.responses.stream(model="nanobot", input="run it") as stream:
            kinds = {event.type async for event in stream}
            streamed = await stream.get_final_response()
        background = await client.responses.create(model="nanobot", input="later", background=True, stream=True)
        first = await anext(aiter(background))
        rest = await client.responses.retrieve(first.response.id, stream=True, starting_after=first.sequence_number)
        numbers = [event.sequence_number async for event in rest]
        parsed = await client.responses.parse(model="nanobot", input="a city", text_format=City)

    assert plain.output_text == "plain"
    assert streamed.output_text == "I look.streamed"
    assert [item.type for item in streamed.output] == ["message", "mcp_call", "message"]
    assert {"response.mcp_call.completed", "response.output_text.done"} <= kinds
    assert numbers == list(range(1, len(numbers) + 1))
    assert parsed.output_parsed == City(name="Bonn", people=300000)


async def test_openai_raises_its_own_errors(running: OpenGateway):
    async with running(RuntimeError("the model is down")) as here, await client_of(here) as client:
        with pytest.raises(openai.BadRequestError, match="tools of its own"):
            tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
            await client.chat.completions.create(model="nanobot", messages=messages("hello"), tools=[tool])
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve("resp_0123")
        with pytest.raises(openai.AuthenticationError):
            await client.with_options(api_key="wrong").models.list()
        with pytest.raises(openai.APIError):
            stream = await client.chat.completions.create(model="nanobot", messages=messages("hello"), stream=True)
            [chunk async for chunk in stream]

        assert len(here.model.requests) == 1


async def test_openai_gets_an_answer_that_takes_longer_than_the_timeout(
    running: OpenGateway, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("nanobot.api.turns.ABANDONED_S", 0.05)
    pause = Pause()
    async with running(pause, "at last", api={"timeout": 1}) as here, await client_of(here) as client:
        asking = asyncio.create_task(client.chat.completions.create(model="nanobot", messages=messages("hello")))
        await pause.reached.wait()
        await asyncio.sleep(1.2)  # the first request has ended with 504
        pause.resume.set()
        answer = await asking

        assert answer.choices[0].message.content == "at last"
        assert len(here.model.requests) == 1


@pytest.mark.filterwarnings("ignore")  # of LiteLLM's own types
@pytest.mark.xdist_group("litellm")
@pytest.mark.filterwarnings("ignore")  # of LiteLLM's own types
async def test_litellm_streams(running: OpenGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    async with running("plain", calls(("run", {"target": "ls"}), text="I look."), "streamed") as here:
        here.gateway.runtime.tools.register(command())
        where = {"model": "openai/nanobot", "base_url": base_url(here), "api_key": await api_key(here)}
        plain = await litellm.acompletion(messages=messages("hello"), **where)
        stream = await litellm.acompletion(messages=messages("run it"), stream=True, **where)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert plain.choices[0].message.content == "plain"
        assert text == "I look.\n\nstreamed"
        assert len(here.model.requests) == 3
