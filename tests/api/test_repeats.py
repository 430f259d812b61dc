"""A request that is sent again joins its turn instead of repeating it."""

import json

from nanobot.testing import Pause
from tests.support.api_client import ask, program, read_events
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway

BODY = {"messages": [{"role": "user", "content": "hello"}]}


async def test_an_idempotency_key_gets_the_same_answer(running: OpenGateway):
    async with running("one", "two") as here, program(here) as client:
        headers = {"Idempotency-Key": "key-1"}
        first = await ask(client, "hello", headers=headers)
        again = await ask(client, "hello", headers=headers)
        streamed = await client.post("/chat/completions", json={**BODY, "stream": True}, headers=headers)
        other = await client.post("/chat/completions", json={**BODY, "user": "x"}, headers=headers)

    assert again["id"] == first["id"]
    assert again["choices"] == first["choices"]
    assert read_events(streamed.text)[0]["data"]["id"] == first["id"]
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    assert other.headers["x-should-retry"] == "false"


async def test_a_turn_is_stopped_when_its_client_leaves(running: OpenGateway):
    pause = Pause("Well, ")
    async with running(pause, "never") as here, program(here) as client:
        async with client.stream("POST", "/chat/completions", json={**BODY, "stream": True}) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    completion_id = json.loads(line.removeprefix("data: "))["id"]
                    break
            await pause.reached.wait()
        await eventually(lambda: not here.gateway.runtime.status.running)
        completion = (await client.get(f"/chat/completions/{completion_id}")).json()

    assert completion["nanobot"]["outcome"] == "stopped"
    assert completion["choices"][0]["message"]["content"] == "Well, "
