"""Chat completions: what a program sends and gets."""

import httpx

from nanobot.testing import calls
from tests.fakes.tools import command
from tests.support.api_client import program, read_events
from tests.support.running_gateway import OpenGateway


async def test_a_stream_has_the_chunks_in_the_order_of_openai(running: OpenGateway):
    async with running("Hello back") as here, program(here) as client:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        answer = await client.post("/chat/completions", json={**body, "stream_options": {"include_usage": True}})

    events = read_events(answer.text)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert events[-1]["data"] == "[DONE]"
    chunks = [event["data"] for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks[:-1]) == "Hello back"
    assert chunks[-2]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] >= 0
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1


async def test_steps_are_comments_and_texts_are_paragraphs(running: OpenGateway):
    script = (calls(("run", {"target": "ls"}), text="Looking."), "Found it.")
    async with running(*script) as here, program(here) as client:
        here.gateway.runtime.tools.register(command())
        body = {"messages": [{"role": "user", "content": "run it"}], "stream": True}
        answer = await client.post("/chat/completions", json=body)

    assert ': step run "ls"' in answer.text
    texts = [event["data"]["choices"][0]["delta"].get("content", "") for event in read_events(answer.text)[:-1]]
    assert "".join(texts) == "Looking.\n\nFound it."


async def test_steps_are_chunks_or_text_where_the_client_asks_for_them(running: OpenGateway):
    script = (calls(("run", {"target": "ls"}), text="Looking."), "Found it.")
    async with running(*script * 3) as here, program(here) as client:
        here.gateway.runtime.tools.register(command())
        body = {"messages": [{"role": "user", "content": "run it"}]}

        async def send(steps: str, **more: bool) -> httpx.Response:
            return await client.post("/chat/completions", json={**body, **more}, headers={"X-Nanobot-Steps": steps})

        chunks = read_events((await send("chunks", stream=True)).text)
        text = read_events((await send("text", stream=True)).text)
        whole = (await send("text")).json()["choices"][0]["message"]["content"]
        unknown = await send("events")

    [step] = [event["data"]["nanobot"]["event"] for event in chunks[:-1] if not event["data"]["choices"]]
    assert (step["type"], step["name"], step["arguments"], step["ok"]) == ("tool_ended", "run", {"target": "ls"}, True)
    assert "".join(event["data"]["choices"][0]["delta"].get("content", "") for event in text[:-1]) == whole
    assert whole == 'Looking.\n\n> run "ls"\n\nFound it.'
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "X-Nanobot-Steps")


async def test_a_stream_goes_on_after_any_of_its_events_and_says_if_the_answer_is_another_one(running: OpenGateway):
    async with running("Hello back") as here, program(here) as client:
        body = {"messages": [{"role": "user", "content": "hello"}], "stream": True}
        events = read_events((await client.post("/chat/completions", json=body)).text)[:-1]
        completion = f"/chat/completions/{events[0]['id'].partition('.')[0]}?stream=true"

        async def rest_after(event_id: str) -> str:
            chunks = read_events((await client.get(completion, headers={"Last-Event-ID": event_id})).text)[:-1]
            return "".join(
                part["data"]["choices"][0]["delta"].get("content", "") for part in chunks if part["data"]["choices"]
            )

        read = ""
        for event in events:
            read += event["data"]["choices"][0]["delta"].get("content", "")
            assert read + await rest_after(event["id"]) == "Hello back"
        turn = events[0]["id"].partition(".")[0]
        others = [await rest_after(f"{turn}.{count}-deadbeef") for count in (5, 50)]
        wrong = await client.get(completion, headers={"Last-Event-ID": "no place"})

    assert [text.strip() for text in others] == ["[The answer was started again:]\n\nHello back"] * 2
    assert wrong.status_code == 400
