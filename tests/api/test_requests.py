"""What a request may hold: instructions, limits, forms of the answer, files; and what is refused."""

import base64
from pathlib import Path
from typing import Any

from nanobot.errors import BudgetExceededError
from nanobot.providers.base import LLMResponse
from nanobot.security.credentials import HttpRole
from nanobot.testing import Pause, calls
from tests.fakes.web import saying, serving
from tests.support.api_client import PIXEL, ask, program, read_events
from tests.support.eventually import eventually
from tests.support.running_gateway import OpenGateway

BODY = {"messages": [{"role": "user", "content": "hello"}]}


async def test_instructions_are_added_to_ours(running: OpenGateway):
    async with running("Arr!") as here, program(here) as client:
        await ask(client, "", messages=[{"role": "system", "content": "Talk like a pirate."}, *BODY["messages"]])

        system = str(here.model.requests[0][0]["content"])
    assert system.endswith("Talk like a pirate.")
    assert len(system) > 1000


async def test_an_answer_is_cut_at_the_clients_limit(running: OpenGateway):
    async with running(LLMResponse("A long", finish_reason="length")) as here, program(here) as client:
        answer = await ask(client, "hello", max_tokens=2)

        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["choices"][0]["message"]["content"] == "A long"
        assert len(here.model.requests) == 1


async def test_an_answer_in_the_wrong_form_is_repaired(running: OpenGateway):
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "json_schema": {"name": "number", "schema": schema}}
    async with running("It is three.", '{"n": 3}', "no", "no", "no") as here, program(here) as client:
        body = {**BODY, "stream": True, "response_format": form}
        stream = read_events((await client.post("/chat/completions", json=body)).text)
        missed = await client.post("/chat/completions", json={**BODY, "response_format": form})

    content = "".join(event["data"]["choices"][0]["delta"].get("content", "") for event in stream[:-1])
    assert content == '{"n": 3}'
    assert (missed.status_code, missed.json()["error"]["code"]) == (422, "invalid_response_format")


async def test_what_an_agent_cannot_do_is_refused(running: OpenGateway):
    refused: list[dict[str, Any]] = [
        {"n": 2},
        {"tools": [{"type": "function"}]},
        {"functions": [{"name": "f"}]},
        {"logprobs": True},
        {"modalities": ["audio"]},
        {"model": "nanobot:no-such-preset"},
        {"messages": []},
        {"messages": [{"role": "assistant", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x/y"}}]}]},
        {"user": "no spaces or /"},
    ]
    async with running() as here, program(here) as client:
        answers = [await client.post("/chat/completions", json={**BODY, **body}) for body in refused]
        garbage = await client.post("/chat/completions", content=b"{")

    assert [answer.status_code for answer in answers] == [400] * 5 + [404] + [400] * 4
    assert all(answer.json()["error"]["param"] for answer in answers)
    assert garbage.json()["error"]["code"] == "invalid_value"


async def test_a_picture_on_the_web_is_fetched_for_owners_through_the_guard(running: OpenGateway):
    png = base64.b64decode(PIXEL)

    def picture(port: int) -> dict[str, Any]:
        part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/x.png"}}
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "what is it?"}, part]}]}

    async with serving(saying(png, "Content-Type: image/png")) as web, running("A pixel") as here:
        async with program(here) as owner, program(here, "kitchen", HttpRole.GUEST) as guest:
            private = await owner.post("/chat/completions", json=picture(web.port))
            here.change(lambda config: config.update(tools={"ssrfWhitelist": ["127.0.0.0/8"]}))
            await eventually(lambda: here.gateway.runtime.config.tools.ssrf_whitelist)
            guests = await guest.post("/chat/completions", json=picture(web.port))
            fetched = await owner.post("/chat/completions", json=picture(web.port))
            here.change(lambda config: config.update(api={"fetchImages": False}))
            await eventually(lambda: not here.gateway.runtime.config.api.fetch_images)
            switched_off = await owner.post("/chat/completions", json=picture(web.port))
        [path] = here.model.requests[0][-1]["media"]

    assert [answer.status_code for answer in (private, guests, fetched, switched_off)] == [400, 400, 200, 400]
    assert private.json()["error"]["code"] == "unsupported_media"
    assert Path(path).read_bytes() == png
    assert web.connections == 1


async def test_unknown_models_and_tools_are_as_the_config_says(running: OpenGateway):
    tools = {"tools": [{"type": "function"}], "functions": [{"name": "f"}]}
    async with running("one", "two", api={"anyModel": False, "ignoreTools": True}) as here, program(here) as client:
        unknown = await client.post("/chat/completions", json={**BODY, "model": "gpt-4o"})
        answer = await ask(client, "hello", model="nanobot", **tools)
        here.change(lambda config: config.update(api={}))
        await eventually(lambda: here.gateway.runtime.config.api.any_model)
        other = await ask(client, "hello", model="gpt-4o")

    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
    assert [a["choices"][0]["message"]["content"] for a in (answer, other)] == ["one", "two"]


async def test_requests_without_a_conversation_share_the_default_one(running: OpenGateway):
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
    api = {"defaultSession": "default", "token": "secret-token"}
    async with running("one", "two", "three", "four", "five", api=api) as here, program(here) as client:
        await ask(client, "first")
        answer = await ask(client, "", messages=[*history, {"role": "user", "content": "second"}])
        named = await ask(client, "third", user="chat-1")
        kept_apart = await ask(client, "fourth", store=False)
        old = await ask(client, "fifth", headers={"Authorization": "Bearer secret-token"})

        texts = [str(message["content"]) for message in here.model.requests[1] if message["role"] == "user"]
    assert len(texts) == 2
    assert "first" in texts[0]
    assert "second" in texts[1]
    assert answer["nanobot"]["session"] == "api:laptop:default"
    assert named["nanobot"]["session"] == "api:laptop:chat-1"
    assert kept_apart["nanobot"]["session"].startswith("api:laptop:~")
    assert old["nanobot"]["session"] == "api:default"


async def test_a_form_of_the_original_is_understood(running: OpenGateway):
    async with running("Read.") as here, program(here) as client:
        files = [("files", ("notes.txt", b"some notes", "text/plain"))]
        answer = await client.post("/chat/completions", data={"message": "read it", "session_id": "old"}, files=files)

        row = here.gateway.runtime.sessions.get_or_create("api:laptop:old").get_history()[0]
    assert answer.json()["choices"][0]["message"]["content"] == "Read."
    assert Path(row["media"][0]).read_bytes() == b"some notes"


async def test_a_file_of_the_agent_is_fetched_with_the_key_of_its_session(running: OpenGateway):
    script = (calls(("message", {"content": "Here it is.", "media": ["plot.txt"]})), "Done.")
    async with running(*script) as here, program(here) as client, program(here, "kitchen", HttpRole.GUEST) as guest:
        (here.gateway.runtime.workspace / "plot.txt").write_text("x y", encoding="utf-8")
        answer = await ask(client, "plot it", user="chat-1")
        [file] = answer["nanobot"]["files"]
        content = await client.get(file["url"].removeprefix("/v1"))
        stranger = await guest.get(file["url"].removeprefix("/v1"))

    assert answer["choices"][0]["message"]["content"] == "Here it is.\n\nDone."
    assert (file["name"], file["mime"], file["size"]) == ("plot.txt", "text/plain", 3)
    assert content.text == "x y"
    assert stranger.status_code == 404


async def test_a_fault_in_a_stream_is_an_error_object(running: OpenGateway):
    async with running(RuntimeError("it is down"), BudgetExceededError("spent")) as here, program(here) as client:
        stream = read_events((await client.post("/chat/completions", json={**BODY, "stream": True})).text)
        spent = await client.post("/chat/completions", json=BODY)

    assert stream[-1]["data"]["error"]["type"] == "server_error"
    assert not any(event["data"] == "[DONE]" for event in stream)
    assert (spent.status_code, spent.headers["x-should-retry"]) == (429, "false")
    assert (spent.json()["error"]["type"], spent.json()["error"]["code"]) == ("insufficient_quota", "spending_limit")


async def test_a_turn_is_stopped_by_its_id(running: OpenGateway):
    pause = Pause("Well, ")
    async with running(pause, "never") as here, program(here) as client:
        queued = (await client.post("/responses", json={"input": "go", "background": True})).json()
        await pause.reached.wait()
        stopped = await client.post(f"/turns/{queued['nanobot']['turn_id']}/stop")
        await eventually(lambda: not here.gateway.runtime.status.running)

    assert stopped.json() == {"stopped": True}
