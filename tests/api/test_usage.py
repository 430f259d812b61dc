"""What an answer has cost: all calls of its turn, also those of its subagents."""

from typing import Any

import httpx

from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.api_client import ask, program, read_events
from tests.support.running_gateway import OpenGateway

KINDS = ("chat", "stream", "response")


def models(server: FakeModels) -> dict[str, Any]:
    spawn = {"task": "count the plums", "wait": True}
    for _ in KINDS:
        server.script(
            Calls(("spawn", spawn)), Calls(("list_dir", {"path": "."})), Say("There are four."), Say("Four plums.")
        )
    return {
        "agents": {"defaults": {"model": "custom/m", "provider": "custom"}},
        "providers": {"custom": {"apiKey": "secret-key-0", "apiBase": server.url}},
    }


def tokens(usage: dict[str, Any]) -> tuple[int, ...]:
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    counts = (usage.get("prompt_tokens", usage.get("input_tokens")), usage["total_tokens"], cached["cached_tokens"])
    return tuple(int(count or 0) for count in counts)


async def test_usage_has_the_calls_of_subagents(running: OpenGateway):
    with FakeModels() as server:
        async with running(uses_config=True, **models(server)) as here, program(here) as client:
            usages = [await usage_of(client, kind) for kind in KINDS]
        count = len(server.chats)

    assert count == 4 * len(KINDS)
    assert [tokens(usage) for usage in usages] == [tuple(4 * each for each in (12, 17, 4))] * len(KINDS)


async def usage_of(client: httpx.AsyncClient, kind: str) -> dict[str, Any]:
    if kind == "chat":
        answer = await ask(client, "how many plums?", user="chat-1")
        later = (await client.get(f"/chat/completions/{answer['id']}")).json()
        assert later["usage"] == answer["usage"]
        return dict(answer["usage"])
    if kind == "response":
        response = await client.post("/responses", json={"input": "how many plums?", "conversation": "chat-2"})
        return dict(response.json()["usage"])
    body = {"messages": [{"role": "user", "content": "how many plums?"}], "user": f"chat-{kind}", "stream": True}
    streamed = await client.post("/chat/completions", json={**body, "stream_options": {"include_usage": True}})
    return dict(read_events(streamed.text)[-2]["data"]["usage"])
