"""What an answer has cost: all calls of its turn, also those of its subagents."""

from typing import Any

import httpx
import pytest

from nanobot.testing.model_server import Calls, FakeModels, Say
from tests.support.api_client import ask, program, read_events
from tests.support.running_gateway import OpenGateway


def models(server: FakeModels) -> dict[str, Any]:
    spawn = {"task": "count the plums", "wait": True}
    server.script(
        Calls(("spawn", spawn)),
        Calls(("list_dir", {"path": "."})),
        Say("There are four."),
        Say("Four plums."),
    )
    return {
        "agents": {"defaults": {"model": "custom/m", "provider": "custom"}},
        "providers": {"custom": {"apiKey": "secret-key-0", "apiBase": server.url}},
    }


def tokens(usage: dict[str, Any]) -> tuple[int, ...]:
    cached = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    counts = (usage.get("prompt_tokens", usage.get("input_tokens")), usage["total_tokens"], cached["cached_tokens"])
    return tuple(int(count or 0) for count in counts)


@pytest.mark.parametrize("kind", ["chat", "stream", "response"])
async def test_usage_has_the_calls_of_subagents(running: OpenGateway, kind: str):
    with FakeModels() as server:
        async with running(uses_config=True, **models(server)) as here, program(here) as client:
            usage = await usage_of(client, kind)
        count = len(server.chats)

    assert count == 4
    assert tokens(usage) == tuple(count * each for each in (12, 17, 4))


async def usage_of(client: httpx.AsyncClient, kind: str) -> dict[str, Any]:
    if kind == "chat":
        answer = await ask(client, "how many plums?", user="chat-1")
        later = (await client.get(f"/chat/completions/{answer['id']}")).json()
        assert later["usage"] == answer["usage"]
        return dict(answer["usage"])
    if kind == "response":
        response = await client.post("/responses", json={"input": "how many plums?", "conversation": "chat-1"})
        return dict(response.json()["usage"])
    body = {"messages": [{"role": "user", "content": "how many plums?"}], "user": "chat-1", "stream": True}
    streamed = await client.post("/chat/completions", json={**body, "stream_options": {"include_usage": True}})
    return dict(read_events(streamed.text)[-2]["data"]["usage"])
