"""Which provider is chosen, and why."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.schema import Config, ProviderConfig
from nanobot.errors import ConfigError, PluginError
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.providers.base import CallContext, LLMProvider, LLMResponse, call_context
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.endpoint import Timeouts
from nanobot.providers.errors import AuthenticationError, ConnectionFailedError, ProviderTimeoutError
from nanobot.providers.factory import ProviderChains, choose_provider, limits_of, with_preset
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.offline_provider import OfflineProvider
from nanobot.providers.resilience import ChosenProvider
from nanobot.testing.model_server import Fail, FakeModels, Hang, Say
from tests.support.clock import Waits
from tests.support.sample_requests import HELLO


async def choose(
    environ: dict[str, str] | None = None, *, local: FakeModels | None = None, **config: Any
) -> ChosenProvider:
    servers = {"ollama": local.v1} if local else {}
    return await choose_provider(Config(**config), environ=environ or {}, local_servers=servers)


def using(provider: str, model: str | None = None, **section: Any) -> dict[str, Any]:
    defaults = {"provider": provider} | ({"model": model} if model else {})
    return {"agents": {"defaults": defaults}, "providers": {provider: section}}


@pytest.mark.parametrize(
    ("environ", "config", "kind", "name", "model", "reason"),
    [
        ({}, {}, OfflineProvider, "offline", "offline", "no key is set"),
        ({"OPENAI_API_KEY": "sk-x"}, {}, CustomProvider, "openai", "gpt", "OPENAI_API_KEY is set in the environment"),
        ({"ANTHROPIC_API_KEY": "x"}, {}, LiteLLMProvider, "anthropic", "claude-opus-4-5", "ANTHROPIC_API_KEY"),
        (
            {}, {"providers": {"openrouter": {"apiKey": "sk-or-x"}}},
            CustomProvider, "openrouter", "anthropic/claude-opus-4-5", "providers.openrouter.apiKey in config.json",
        ),
        ({}, using("openai", "gpt-4.1", apiKey="sk-x", backend="litellm"), LiteLLMProvider, "openai", "gpt-4.1", ""),
    ],
)  # fmt: skip
async def test_the_provider_is_chosen_by_what_is_set_up(environ, config, kind, name, model, reason):
    chosen = await choose(environ, **config)

    assert (type(chosen.provider), chosen.name) == (kind, name)
    assert chosen.model.startswith(model) and reason in chosen.reason


@pytest.mark.parametrize(
    ("environ", "config", "says"),
    [
        ({}, {"agents": {"defaults": {"model": "anthropic/claude-sonnet-4-5"}}}, "ANTHROPIC_API_KEY"),
        (
            {"OPENAI_API_KEY": "sk-x"},
            {"agents": {"defaults": {"model": "claude-sonnet-4-5"}}},
            r"providers\.anthropic\.apiKey",
        ),
        ({}, using("groq", "llama-3.3-70b-versatile"), r"providers\.groq\.apiKey.*GROQ_API_KEY"),
        ({}, using("custom", "m", apiKey="k"), r"providers\.custom\.apiBase"),
        ({}, using("anthropic", "claude-opus-4-5", apiKey="k", apiType="responses"), "backend to direct"),
        ({}, using("ollama", apiBase="http://127.0.0.1:1/v1"), "Ollama does not answer"),
    ],
)
async def test_what_was_named_is_never_swapped_for_another_and_the_error_says_what_to_set(environ, config, says):
    with pytest.raises(ConfigError, match=says):
        await choose(environ, **config)


async def test_an_endpoint_gets_key_model_headers_body_and_limits_of_the_config(tmp_path):
    with FakeModels(api_key="k") as server:
        section = {
            "apiKey": "k", "apiBase": server.v1, "extraHeaders": {"X-A": "b"}, "extraBody": {"seed": 1},
            "firstTokenTimeoutS": 0.2,
        }  # fmt: skip
        config = Config(**using("custom", "z-ai/o3:free", **section))
        chosen = await choose_provider(config, environ={}, state_dir=tmp_path)
        server.script(Hang())
        with pytest.raises(ProviderTimeoutError, match=r"waited 0\.2 s for the first token"):
            await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    request = server.chats[0]
    assert request.path == "/v1/chat/completions"
    assert (request.json["model"], request.json["seed"], request.headers["x-a"]) == ("z-ai/o3:free", 1, "b")


def with_fallbacks(server: FakeModels, *fallbacks: Any, **presets: Any) -> Config:
    return Config(
        agents={"defaults": {"provider": "custom", "model": "m", "fallbackModels": list(fallbacks)}},  # type: ignore[arg-type]
        modelPresets=presets,  # type: ignore[call-arg]
        providers={"custom": {"apiKey": "k", "apiBase": server.v1}},  # type: ignore[arg-type]
    )


async def test_a_fallback_that_cannot_be_used_is_told_by_the_failure_of_the_first():
    with FakeModels(default=Fail(401)) as server:
        config = with_fallbacks(server, {"model": "llama-3.3", "provider": "groq"})
        chosen = await ProviderChains({}).choose(config)

        with pytest.raises(AuthenticationError, match=r"llama-3\.3 cannot be used: There is no key for Groq"):
            await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert any("There is no key for Groq" in note for note in chosen.provider.notes())


async def test_the_stand_in_is_no_fallback(logged_in):
    AccountStore.in_state(logged_in).save(Account("github_copilot", "http://127.0.0.1:9", grant="g"))
    config = Config(agents={"defaults": {"provider": "githubCopilot", "fallbackModels": [{"model": "my-own"}]}})  # type: ignore[arg-type]
    chosen = await ProviderChains({}, logged_in, local_servers={}, sleep=Waits().sleep).choose(config)

    with pytest.raises(ConnectionFailedError, match="No provider is set up for the model my-own"):
        await chosen.provider.chat(HELLO)
    await chosen.provider.close()


async def test_a_preset_as_a_fallback_is_metered_and_goes_out_with_its_own_settings():
    counted: list[str] = []

    def add_meter(provider: LLMProvider, name: str) -> LLMProvider:
        counted.append(name)
        return provider

    with FakeModels() as server:
        server.script(*[Fail(429, "slow", retry_after=1000)] * 2, Say("plain here"))
        spare = {"model": "small", "provider": "custom", "maxTokens": 77, "temperature": 0.5}
        config = with_fallbacks(server, "spare", {"model": "plain", "provider": "custom"}, spare=spare)
        chosen = await ProviderChains({}, add_meter=add_meter).choose(config)
        response = await chosen.provider.chat(HELLO, max_tokens=500, temperature=0.2)
        await chosen.provider.close()

    assert (response.content, counted) == ("plain here", ["custom"] * 3)
    sent = [(one.json["model"], one.json["max_tokens"], one.json["temperature"]) for one in server.chats]
    assert sent == [("m", 500, 0.2), ("small", 77, 0.5), ("plain", 500, 0.2)]


async def test_a_model_is_no_fallback_of_its_own(tmp_path):
    contexts: list[CallContext] = []

    class Watched(LLMProvider):
        async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
            contexts.append(call_context())
            return LLMResponse("hi")

    with FakeModels() as server:
        config = with_fallbacks(server, "spare", spare={"model": "small", "provider": "custom"})
    chains = ProviderChains({}, add_meter=lambda provider, name: Watched())
    await (await chains.choose(config)).provider.chat(HELLO)
    await (await chains.choose(with_preset(config, "spare"))).provider.chat(HELLO)

    assert [context.has_fallback for context in contexts] == [True, False]


def test_a_process_that_only_talks_to_its_models_loads_no_sdk():
    script = (
        "import asyncio, sys\n"
        "from nanobot.config.schema import Config\n"
        "from nanobot.providers.factory import ProviderChains\n"
        "async def main(base):\n"
        "    defaults = {'provider': 'custom', 'model': 'm', 'fallbackModels': [{'model': 'claude-opus-4-5'}]}\n"
        "    config = Config(agents={'defaults': defaults}, providers={'custom': {'apiKey': 'k', 'apiBase': base}})\n"
        "    provider = (await ProviderChains({}).choose(config)).provider\n"
        "    answer = await provider.chat([{'role': 'user', 'content': 'hi', 'origin': 'user'}])\n"
        "    print(answer.content, await provider.list_models())\n"
        "    print(sorted({'httpx', 'litellm', 'openai', 'json_repair'} & set(sys.modules)))\n"
        "    await provider.close()\n"
        "asyncio.run(main(sys.argv[1]))"
    )
    with FakeModels(default=Say("hello")) as server:
        done = subprocess.run([sys.executable, "-c", script, server.v1], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["hello ('stand-in',)", "[]"]


async def test_a_local_server_that_answers_is_used_with_its_first_model():
    with FakeModels(kind="ollama", models=["qwen3:8b", "other"]) as ollama:
        chosen = await choose(local=ollama)
        response = await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert (chosen.name, chosen.model) == ("ollama", "qwen3:8b")
    assert chosen.reason == f"Ollama answers on 127.0.0.1:{ollama.port}"
    assert response.content == "ok"


async def test_a_provider_of_an_installed_package_is_found_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "their_models-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: their-models\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[nanobot.providers]\nmyModels = their_models:Theirs\n")
    (tmp_path / "their_models.py").write_text(
        "from nanobot.providers.base import LLMProvider, LLMResponse\n"
        "class Theirs(LLMProvider):\n"
        "    async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):\n"
        "        return LLMResponse(f'{model} with {self.api_key}')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    chosen = await choose(**using("myModels", "m", apiKey="k"))

    assert (chosen.name, chosen.model) == ("myModels", "m")
    assert (await chosen.provider.chat(HELLO, model="m")).content == "m with k"
    with pytest.raises(PluginError, match="belongs to the package their-models"):
        await choose(**using("myModels", "m", apiKey="k"), plugins={"disabled": ["Their_Models"]})


def test_a_limit_of_the_config_replaces_one_of_the_preset_and_a_first_token_set_by_hand_is_never_shortened():
    section = ProviderConfig(connectTimeoutS=1, firstTokenTimeoutS=90)  # type: ignore[call-arg]

    assert limits_of(section, Timeouts.standard()) == Timeouts(
        connect_s=1, first_token_s=90, fallback_first_token_s=math.inf
    )
    assert limits_of(ProviderConfig(), Timeouts.standard()) == Timeouts.standard()


@pytest.fixture
def logged_in(tmp_path):
    """A state folder in which you are logged in to both accounts."""
    store = AccountStore.in_state(tmp_path)
    for name in ("openai_codex", "github_copilot"):
        store.save(Account(name, "https://login.example", grant="g"))
    return tmp_path


async def choose_here(state_dir, environ=None, **config):
    chosen = await choose_provider(Config(**config), environ=environ or {}, state_dir=state_dir, local_servers={})
    await chosen.provider.close()
    return chosen


@pytest.mark.parametrize(
    ("environ", "defaults", "name", "model"),
    [
        *(({}, {"provider": name}, "openai_codex", "gpt-5.1-codex") for name in ("openaiCodex", "openai-codex")),
        ({}, {"model": "github-copilot/gpt-4o"}, "github_copilot", "gpt-4o"),
        ({}, {}, "openai_codex", "gpt-5.1-codex"),
        ({"OPENAI_API_KEY": "sk-x"}, {}, "openai", "gpt"),
        ({}, {"model": "my-own"}, "offline", "offline"),
    ],
)
async def test_an_account_is_chosen_by_name_or_prefix_or_where_nothing_else_is_set_up(
    logged_in, environ, defaults, name, model
):
    chosen = await choose_here(logged_in, environ, agents={"defaults": defaults})

    assert chosen.name == name and chosen.model.startswith(model)


async def test_an_account_nobody_is_logged_in_to_says_what_to_run_and_litellm_has_only_copilot(logged_in, tmp_path):
    for provider, command in (("openaiCodex", "openai-codex"), ("githubCopilot", "github-copilot")):
        with pytest.raises(ConfigError, match=f"Run `nanobot provider login {command}`"):
            await choose_here(tmp_path / "new", agents={"defaults": {"provider": provider}})
    chosen = await choose_here(logged_in, **using("githubCopilot", backend="litellm"))

    assert isinstance(chosen.provider, LiteLLMProvider)
    with pytest.raises(ConfigError, match="backend cannot be litellm"):
        await choose_here(logged_in, **using("openaiCodex", backend="litellm"))
