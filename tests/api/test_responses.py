"""Responses: items, events with their numbers, background, approvals."""

import asyncio
from typing import Any

import httpx

from nanobot.testing import Pause, calls
from tests.fakes.tools import command, page
from tests.support.api_client import program, read_events
from tests.support.running_gateway import OpenGateway


async def create(client: httpx.AsyncClient, text: str, **body: Any) -> dict[str, Any]:
    answer = await client.post("/responses", json={"input": text, **body})
    assert answer.status_code == 200, answer.text
    response: dict[str, Any] = answer.json()
    return response


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


async def test_a_response_is_continued_by_the_next_one(running: OpenGateway):
    async with running("one", "two") as here, program(here) as client:
        first = await create(client, "hello")
        second = await create(client, "and now?", previous_response_id=first["id"])
        items = (await client.get(f"/responses/{second['id']}/input_items")).json()["data"]

        assert (first["status"], text_of(first), text_of(second)) == ("completed", "one", "two")
        assert second["previous_response_id"] == first["id"]
        assert [message["role"] for message in here.model.requests[-1]] == ["system", "user", "assistant", "user"]
        assert items[0]["content"] == [{"type": "input_text", "text": "and now?"}]
        assert (await client.get(f"/responses/{first['id']}")).json()["output"] == first["output"]


async def test_a_stream_goes_on_after_any_of_its_events(running: OpenGateway):
    script = (calls(("run", {"target": "ls"}), text="I shall look at it."), "It is all there, as it was.")
    async with running(*script) as here, program(here) as client:
        here.gateway.runtime.tools.register(command())
        answer = await client.post("/responses", json={"input": "look", "stream": True})
        events = [event["data"] for event in read_events(answer.text)]
        response_id = events[0]["response"]["id"]
        for after in range(len(events)):
            url = f"/responses/{response_id}?stream=true&starting_after={after}"
            rest = [event["data"] for event in read_events((await client.get(url)).text)]
            assert rest == events[after + 1 :]

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "mcp_call", "message"]
    assert (output[1]["name"], output[1]["arguments"], output[1]["status"]) == ("run", '{"target": "ls"}', "completed")
    deltas = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    assert deltas == "I shall look at it.It is all there, as it was."


async def test_a_background_response_is_fetched_later(running: OpenGateway):
    async with running("done") as here, program(here) as client:
        queued = await create(client, "take your time", background=True)
        while (later := (await client.get(f"/responses/{queued['id']}")).json())["status"] != "completed":
            await asyncio.sleep(0.02)
        deleted = (await client.delete(f"/responses/{queued['id']}")).json()
        gone = await client.get(f"/responses/{queued['id']}")

    assert queued["status"] in ("queued", "in_progress")
    assert text_of(later) == "done"
    assert deleted["deleted"]
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "response_not_found")


async def test_a_response_is_cancelled(running: OpenGateway):
    pause = Pause("Well, ")
    async with running(pause, "never") as here, program(here) as client:
        queued = await create(client, "take your time", background=True)
        await pause.reached.wait()
        cancelled = (await client.post(f"/responses/{queued['id']}/cancel")).json()

    assert cancelled["status"] == "cancelled"


async def test_an_approval_is_an_item_and_its_answer_goes_on(running: OpenGateway):
    script = (calls(("web_page", {"url": "https://example.org/a"})), calls(("run", {"target": "ls"})), "done")
    async with running(*script) as here, program(here) as client:
        run = command()
        for tool in (page(), run):
            here.gateway.runtime.tools.register(tool)
        asked = await create(client, "run it")
        request = asked["output"][-1]
        answer = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        answered = await create(client, "", input=[answer], previous_response_id=asked["id"])
        whole = (await client.get(f"/responses/{asked['id']}")).json()

    assert asked["status"] == "completed"
    assert (request["type"], request["name"]) == ("mcp_approval_request", "run")
    assert request["arguments"] == '{"target": "ls"}'
    assert [item["type"] for item in answered["output"]] == ["mcp_call", "message"]
    assert (text_of(answered), run.done) == ("done", ["ls"])
    assert [item["type"] for item in whole["output"]] == ["mcp_call", "mcp_call", "message"]
