"""Which model answers: what is set up is used, `status` says which and why, and a wrong pair says what to change."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.events import TurnOutcome
from nanobot.config.provider_table import find_by_name
from nanobot.providers.factory import choose_provider
from nanobot.testing.model_server import Calls, Fail, FakeModels, Say
from tests.support.configs import PAIRS, made
from tests.support.home import Home, using
from tests.support.sample_requests import results

NOT_HERE = ("github_copilot", "bedrock")
"""An account that is asked for in a browser, and requests signed for Amazon."""


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels(models=["local-model"]) as running:
        yield running


def speaks(name: str) -> bool:
    spec = find_by_name(name)
    return spec is not None and spec.speaks_chat_completions


ON_THE_WIRE = [
    pytest.param(
        *(provider, keyed, model, name, base, wire),
        id=f"{provider} {model}",
        marks=[] if speaks(name) else [pytest.mark.xdist_group("litellm")],
    )
    for provider, keyed, model, name, base, wire in PAIRS
    if name not in NOT_HERE
]


@pytest.mark.parametrize(("provider", "keyed", "model", "name", "base", "wire"), ON_THE_WIRE)
async def test_url_key_and_model_of_each_pair_as_a_server_sees_them(
    server: FakeModels, provider: str, keyed: list[str], model: str, name: str, base: str | None, wire: str
):
    sections: dict[str, Any] = {key: {"apiKey": f"key-of-{key}"} for key in keyed}
    own = sections.setdefault(name, {"apiKey": f"key-of-{name}"})
    defaults = {"defaults": {"provider": provider, "model": model}}
    if base and speaks(name):
        usual = await choose_provider(made(agents=defaults, providers=sections), environ={})
        assert usual.provider.api_base == base
    own["apiBase"] = f"{server.url}/at/{name}"

    chosen = await choose_provider(made(agents=defaults, providers=sections), environ={})
    answer = await chosen.provider.chat([{"role": "user", "content": "hi"}], model=chosen.model)
    await chosen.provider.close()

    (request,) = server.chats
    path = request.path.partition("?")[0]
    if speaks(name):
        assert path == f"/at/{name}/chat/completions"
        assert request.headers["authorization"] == f"Bearer key-of-{name}"
    else:
        assert path.startswith(f"/at/{name}/")
        assert f"key-of-{name}" in (request.headers.get("x-api-key"), request.headers.get("api-key"))
    assert request.json["model"] == chosen.model == wire
    assert (chosen.name, answer.content, server.problems) == (name, "ok", [])


@pytest.mark.parametrize(
    ("where", "says"),
    [
        ("environment", "OPENAI_API_KEY is set in the environment"),
        ("config", "providers.openai.apiKey in config.json"),
        ("local server", "Ollama answers on 127.0.0.1:"),
    ],
)
def test_what_is_set_up_is_used_and_status_says_which_and_why(
    tmp_path: Path, server: FakeModels, where: str, says: str
):
    home = Home(tmp_path)
    at_the_fake = {"NANOBOT_PROVIDERS__OPENAI__API_BASE": server.v1}
    environ = {"OLLAMA_HOST": "127.0.0.1:9"}
    if where == "environment":
        environ |= {"OPENAI_API_KEY": "sk-environ", **at_the_fake}
    elif where == "config":
        home.configure(**using("openai", "gpt-x", apiKey="sk-config", apiBase=server.v1))
    else:
        environ["OLLAMA_HOST"] = server.url

    answer = home.ask("hi", environ=environ)
    status = json.loads(home.run("status", "--json", environ=environ).out)["model"]

    assert (answer.code, answer.out, answer.aside) == (0, "ok\n", "")
    assert says in status["reason"]
    assert server.chats[0].json["model"] == status["model"]
    key = {"environment": "Bearer sk-environ", "config": "Bearer sk-config", "local server": None}[where]
    assert server.chats[0].headers.get("authorization") == key


def test_with_nothing_set_up_a_stand_in_uses_real_tools_and_says_what_to_type(tmp_path: Path):
    home = Home(tmp_path)

    answer = home.ask("What is in my workspace?", environ={"OLLAMA_HOST": "127.0.0.1:9"})

    assert answer.code == 0
    assert "AGENTS.md" in answer.out
    assert "nanobot onboard" in answer.out


async def test_a_wrong_pair_says_who_was_asked_where_for_what_and_which_key_to_change(
    tmp_path: Path, server: FakeModels
):
    home = Home(tmp_path, **using("groq", "claude-opus-4-5", apiKey="gsk_0123456789", apiBase=server.v1))
    server.default = Fail(404, "The model `claude-opus-4-5` does not exist", "model_not_found")

    async with home.open() as bot:
        result = await bot.run("hi")

    assert result.outcome is TurnOutcome.FAILED
    for word in ("groq", server.v1, "claude-opus-4-5", "agents.defaults.model"):
        assert word in result.text
    assert "gsk_" not in result.text


async def test_a_rotated_key_is_used_at_the_next_start_and_nothing_has_to_be_deleted(
    tmp_path: Path, server: FakeModels
):
    home = Home(tmp_path, **using("openai", "gpt-x", apiKey="sk-old-0123456789", apiBase=server.v1))
    server.api_key = "sk-new-0123456789"

    async with home.open() as bot:
        refused = await bot.run("one")
    home.configure(**using("openai", "gpt-x", apiKey="sk-new-0123456789", apiBase=server.v1))
    async with home.open() as bot:
        answered = await bot.run("two")

    assert "providers.openai.apiKey" in refused.text
    assert "sk-old" not in refused.text
    assert answered.text == "ok"
    assert "two" in str(server.chats[-1].json["messages"][-1]["content"])


@pytest.mark.needs_sandbox
async def test_a_tool_that_was_switched_on_is_offered_and_called_on_the_next_ask(tmp_path: Path, server: FakeModels):
    settings = using("openai", "gpt-x", apiKey="sk-x", apiBase=server.v1)
    home = Home(tmp_path, **settings, tools={"exec": {"enable": False}})
    server.script(Calls(("exec", {"command": "echo it runs"})), Say("I cannot run commands."))

    async with home.open() as bot:
        await bot.run("run echo")
    home.configure(**settings)
    server.script(Calls(("exec", {"command": "echo it runs"})), Say("Done."))
    async with home.open() as bot:
        await bot.run("run echo")

    offered = [{tool["function"]["name"] for tool in request.json["tools"]} for request in server.chats]
    assert ["exec" in names for names in offered] == [False, False, True, True]
    first, second = results(server.chats[-1])
    assert "exec" in first and "it runs\n" not in first
    assert "it runs" in second
