"""Sessions, the feed and approvals over the API."""

import asyncio
import json

import pytest

from nanobot.testing import calls
from tests.fakes.tools import command, page
from tests.support.api_client import ask, program
from tests.support.running_gateway import OpenGateway


async def test_a_session_is_read_branched_and_deleted(running: OpenGateway):
    async with running("one", "two") as here, program(here) as client:
        for text in ("first", "second"):
            await ask(client, text, user="chat-1")
        messages = (await client.get("/sessions/chat-1/messages")).json()["data"]
        branch = await client.post("/sessions/chat-1/branch", json={"name": "chat-2", "messages": 2})
        branched = (await client.get("/sessions/chat-2/messages")).json()["data"]
        deleted = (await client.delete("/sessions/chat-1")).json()
        gone = await client.get("/sessions/chat-1")

    assert [message["content"] for message in messages] == ["first", "one", "second", "two"]
    assert branch.json()["id"] == "api:laptop:chat-2"
    assert [message["content"] for message in branched] == ["first", "one"]
    assert deleted["deleted"]
    assert gone.status_code == 404


async def test_a_session_of_one_request_is_deleted(running: OpenGateway, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.api.turns.TEMPORARY_S", 0.0)
    monkeypatch.setattr("nanobot.api.turns.SWEEP_S", 0.0)
    async with running("one", "two") as here, program(here) as client:
        answers = [await ask(client, "hello") for _ in range(2)]
        assert (await client.get("/sessions")).json()["data"] == []
        first, second = [answer["nanobot"]["session"] for answer in answers]

        assert here.gateway.runtime.sessions.find(first) is None
        assert here.gateway.runtime.sessions.find(second) is not None


async def test_the_feed_has_the_events_of_turns(running: OpenGateway):
    async with running("one") as here, program(here) as client, client.stream("GET", "/feed") as feed:
        lines = feed.aiter_lines()
        await anext(lines)
        await ask(client, "hello", user="chat-1")
        items = []
        async with asyncio.timeout(20):
            async for line in lines:
                if line.startswith("data: "):
                    items.append(json.loads(line.removeprefix("data: ")))
                    if items[-1]["event"]["type"] == "turn_ended":
                        break

    assert {item["session"] for item in items} == {"api:laptop:chat-1"}
    assert items[0]["event"]["type"] == "turn_started"


async def test_a_question_of_a_chat_completion_is_answered_elsewhere(running: OpenGateway):
    script = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "ls"})), "done")
    async with running(*script) as here, program(here) as client:
        run = command()
        for tool in (page(), run):
            here.gateway.runtime.tools.register(tool)
        asking = asyncio.create_task(ask(client, "run it", user="chat-1"))
        async with asyncio.timeout(20):
            while not (questions := [*here.gateway.runtime.questions]):
                await asyncio.sleep(0.02)
        answers = [
            await client.post(f"/approvals/{questions[0].id}", json={"answer": answer}) for answer in ("once", "no")
        ]
        answered = await asking

    assert [answer.status_code for answer in answers] == [200, 409]
    assert (answered["choices"][0]["message"]["content"], run.done) == ("done", ["ls"])
