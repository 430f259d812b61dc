"""LiteLLM, kept quiet and on a short leash. Its import takes three seconds: one worker runs all of these."""

import asyncio
import logging
import socket
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from nanobot.messages.types import ChatMessage
from nanobot.providers import errors, litellm_provider
from nanobot.providers.base import LLMResponse
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.testing.model_server import Calls, CutStream, Fail, FakeModels, Garbage, Raw, Reset, Say, Step
from tests.support.sample_requests import HELLO, TOOLS

pytestmark = [pytest.mark.xdist_group("litellm"), pytest.mark.timeout(180)]

KEY = "sk-secret-0123456789"
THINK: list[ChatMessage] = [{"role": "system", "content": "You are short."}, *HELLO]


@pytest.fixture(autouse=True)
async def closed() -> AsyncIterator[None]:
    """LiteLLM keeps its connections for all providers together, and each test has an event loop of its own."""
    yield
    await LiteLLMProvider().close()


def claude(server: FakeModels, **settings: object) -> LiteLLMProvider:
    settings = {"name": "anthropic", "litellm_prefix": "anthropic", **settings}
    return LiteLLMProvider(KEY, server.url, "claude-opus-4-5", **settings)  # type: ignore[arg-type]


def openai(server: FakeModels, **settings: object) -> LiteLLMProvider:
    settings = {"name": "openai", "litellm_prefix": "openai", **settings}
    return LiteLLMProvider(KEY, server.v1, "m", **settings)  # type: ignore[arg-type]


def next_rows(rows: list[ChatMessage], response: LLMResponse) -> list[ChatMessage]:
    """The rows with the model's calls and their results."""
    calls = [call.to_message() for call in response.tool_calls]
    asked: ChatMessage = {"role": "assistant", "content": response.content, "tool_calls": calls}
    asked["thinking_blocks"] = response.thinking_blocks
    asked["reasoning_content"] = response.reasoning_content
    results: list[ChatMessage] = [{"role": "tool", "tool_call_id": c["id"], "name": "x", "content": "a"} for c in calls]
    return [*rows, asked, *results]


async def test_a_call_that_is_stopped_while_litellm_loads_spoils_no_other(server, monkeypatch):
    may_load, load = threading.Event(), litellm_provider._load
    monkeypatch.setattr(litellm_provider, "_loading", None)
    monkeypatch.setattr(litellm_provider, "_load", lambda: load() if may_load.wait(30) else None)
    stopped = asyncio.create_task(openai(server).chat(HELLO))
    await asyncio.sleep(0.05)

    stopped.cancel()
    await asyncio.wait([stopped])
    may_load.set()

    assert (await openai(server).chat(HELLO)).content == "ok"


async def test_thinking_goes_back_with_its_signature_and_the_server_takes_it(server):
    server.script(Calls(("list_dir", {"path": "."}), ("wait", {"seconds": 1}), reasoning="hm hm"), Say("done"))
    asked = claude(server, reasoning_effort="low")

    first = await asked.chat(THINK, TOOLS)
    second = await asked.chat(next_rows(THINK, first), TOOLS)

    assert first.reasoning_content == "hm hm"
    assert [call.name for call in first.tool_calls] == ["list_dir", "wait"]
    assert second.content == "done"
    calls = [replace(call, id=f"functions.{call.name}:0") for call in first.tool_calls]
    foreign = next_rows([*HELLO], LLMResponse(None, calls, reasoning_content="hm"))
    await asked.chat(foreign, TOOLS)  # a step of another model, without signed thoughts
    assert server.problems == []
    assert server.chats[1].json["messages"][1]["content"][0]["thinking"] == "hm hm"


async def test_cache_markers_are_at_most_four_and_change_no_text(server):
    rows: list[ChatMessage] = [*THINK, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}]

    await claude(server).chat(rows, TOOLS)
    await claude(server, prompt_cache=False).chat(rows, TOOLS)

    marked, plain = (request.body.decode() for request in server.chats)
    assert marked.count("cache_control") == 4
    assert plain.count("cache_control") == 0
    assert server.chats[0].json["system"][0]["text"] == "You are short."


FAILURES: dict[str, tuple[Step, type[errors.ModelCallError]]] = {
    "401": (Fail(401, f"Incorrect API key provided: {KEY}", "invalid_api_key"), errors.AuthenticationError),
    "404": (Fail(404, "The model `m` does not exist", "model_not_found"), errors.ModelNotFoundError),
    "429": (Fail(429, "slow down", retry_after=3), errors.RateLimitedError),
    "quota": (Fail(429, "You exceeded your current quota", "insufficient_quota"), errors.QuotaExceededError),
    "529": (Fail(529, "Overloaded"), errors.ModelOverloadedError),
    "overflow": (Fail(400, "prompt is too long: 9 tokens > 8 maximum"), errors.ContextOverflowError),
    "cut": (CutStream(), errors.StreamCutError),
    "reset": (Reset(), errors.ConnectionFailedError),
    "html": (Garbage(), errors.MalformedResponseError),
    "empty": (Raw([]), errors.MalformedResponseError),
}


@pytest.mark.parametrize(
    ("of", "name", "settings"),
    [
        *((of, name, {}) for of in (claude, openai) for name in FAILURES),
        *((claude, name, {"connect_s": 1}) for name in ("reset", "529")),  # over a transport of ours
    ],
)
async def test_each_failure_has_its_type_is_asked_once_and_tells_no_key(server, capfd, caplog, of, name, settings):
    step, kind = FAILURES[name]
    server.script(step)
    caplog.set_level(logging.INFO)
    asked = of(server, **settings)

    with pytest.raises(kind) as caught:
        await asked.chat(HELLO)

    said = str(caught.value)
    assert KEY not in said and "litellm" not in said.lower() and server.url in said
    assert len(server.chats) == 1
    assert caught.value.retry_after_s == (3 if name == "429" else None)
    assert (await asked.chat(HELLO)).usage == {"prompt_tokens": 12, "completion_tokens": 5, "cached_tokens": 4}
    await asked.close()
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if "litellm" in record.name.lower()] == []


async def test_a_proxy_and_a_limit_for_connecting_hold_where_they_are_set(server):
    proxied = LiteLLMProvider(
        KEY, "http://models.test", "claude-x", litellm_prefix="anthropic", proxy=server.url, connect_s=1
    )
    answer = await proxied.chat(HELLO)
    await proxied.close()

    assert answer.content == "ok"
    assert server.chats[0].path == "http://models.test/v1/messages", "a proxy is asked for the whole address"


async def test_an_address_that_never_answers_is_given_up_after_the_limit_for_connecting():
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        address = f"http://127.0.0.1:{full.getsockname()[1]}"
        asked = LiteLLMProvider(KEY, address, "claude-x", litellm_prefix="anthropic", connect_s=0.2)
        try:
            with pytest.raises(errors.ConnectionFailedError, match=r"no connection within 0\.2 s"):
                await asked.chat(HELLO)
        finally:
            await asked.close()
            for one in waiting:
                one.close()


@pytest.mark.slow  # seconds to import, in a process of its own
async def test_loading_it_does_not_hold_the_loop_and_reads_no_env_file(tmp_path):
    script = (
        "import asyncio, os, sys, time\n"
        "from nanobot.providers.litellm_provider import LiteLLMProvider, start_loading\n"
        "async def main():\n"
        "    assert 'litellm' not in sys.modules\n"
        "    LiteLLMProvider('k').prepare()\n"
        "    turns, longest, loading = 0, 0.0, start_loading()\n"
        "    while not loading.done():\n"
        "        began = time.monotonic(); await asyncio.sleep(0.005); turns += 1\n"
        "    loading.result(); print(turns, 'FROM_ENV_FILE' in os.environ)\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / ".env").write_text("FROM_ENV_FILE=1\n")

    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, cwd=tmp_path, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await child.communicate()

    turns, read_it = told.split()
    assert child.returncode == 0
    assert int(turns) > 20
    assert read_it == b"False"


async def test_a_provider_that_closes_takes_no_connection_from_another(server):
    first, second = claude(server), claude(server)
    await first.chat(HELLO)
    await second.chat(HELLO)

    await first.close()
    assert (await second.chat(HELLO)).content == "ok"
    await second.close()
    assert (await claude(server).chat(HELLO)).content == "ok"
