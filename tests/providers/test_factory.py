"""Which provider is chosen, and why."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.schema import Config, ProviderConfig
from nanobot.errors import ConfigError, PluginError
from nanobot.providers.accounts.github import CopilotProvider
from nanobot.providers.accounts.openai import OpenAICodexProvider
from nanobot.providers.accounts.store import Account, AccountStore
from nanobot.providers.custom_provider import CustomProvider
from nanobot.providers.errors import ProviderTimeoutError
from nanobot.providers.factory import choose_provider, limits_of
from nanobot.providers.limits import Timeouts
from nanobot.providers.litellm_provider import LiteLLMProvider
from nanobot.providers.local_servers import LocalServer
from nanobot.providers.offline_provider import OfflineProvider
from nanobot.providers.resilience import ChosenProvider
from nanobot.testing.model_server import FakeModels, Hang
from tests.support.sample_requests import HELLO


async def choose(
    environ: dict[str, str] | None = None, *, local: FakeModels | None = None, **config: Any
) -> ChosenProvider:
    servers = [LocalServer("ollama", "Ollama", local.v1)] if local else []
    return await choose_provider(Config(**config), environ=environ or {}, local_servers=servers)


def using(provider: str, model: str | None = None, **section: Any) -> dict[str, Any]:
    defaults = {"provider": provider} | ({"model": model} if model else {})
    return {"agents": {"defaults": defaults}, "providers": {provider: section}}


async def test_with_nothing_at_all_the_stand_in_answers():
    chosen = await choose()

    assert isinstance(chosen.provider, OfflineProvider)
    assert chosen.name == "offline"


async def test_a_local_server_that_answers_is_used_with_its_first_model():
    with FakeModels(kind="ollama", models=["qwen3:8b", "other"]) as ollama:
        chosen = await choose(local=ollama)
        response = await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert (chosen.name, chosen.model) == ("ollama", "qwen3:8b")
    assert chosen.reason == f"Ollama answers on 127.0.0.1:{ollama.port}"
    assert response.content == "ok"


async def test_a_web_server_on_the_port_is_not_taken_for_a_model_server():
    with FakeModels(kind="web") as web:
        assert (await choose(local=web)).name == "offline"


async def test_a_key_in_the_environment_is_used_with_its_providers_own_model():
    chosen = await choose({"OPENAI_API_KEY": "sk-x"})

    assert isinstance(chosen.provider, CustomProvider)
    assert (chosen.name, chosen.reason) == ("openai", "OPENAI_API_KEY is set in the environment")
    assert "/" not in chosen.model


async def test_anthropic_goes_through_litellm_without_its_name_before_the_model():
    chosen = await choose({"ANTHROPIC_API_KEY": "sk-ant-x"})

    assert isinstance(chosen.provider, LiteLLMProvider)
    assert chosen.model == "claude-opus-4-5"


async def test_a_key_in_the_config_is_the_reason():
    chosen = await choose(providers={"openrouter": {"apiKey": "sk-or-x"}})

    assert (chosen.name, chosen.model) == ("openrouter", "anthropic/claude-opus-4-5")
    assert "providers.openrouter.apiKey in config.json" in chosen.reason


@pytest.mark.parametrize(
    ("model", "environ", "key"),
    [
        ("anthropic/claude-sonnet-4-5", {}, "ANTHROPIC_API_KEY"),
        ("claude-sonnet-4-5", {"OPENAI_API_KEY": "sk-x"}, "providers.anthropic.apiKey"),
        ("deepseek-chat", {}, "DEEPSEEK_API_KEY"),
    ],
)
async def test_a_model_that_was_named_is_never_swapped_for_another(model, environ, key):
    with pytest.raises(ConfigError, match=key):
        await choose(environ, agents={"defaults": {"model": model}})


async def test_a_provider_that_was_named_but_has_no_key_says_which_to_set():
    with pytest.raises(ConfigError, match=r"providers\.groq\.apiKey.*GROQ_API_KEY"):
        await choose(**using("groq", "llama-3.3-70b-versatile"))


async def test_a_custom_endpoint_gets_model_headers_body_and_limits_of_the_config(tmp_path):
    with FakeModels(api_key="k") as server:
        section = {"apiKey": "k", "apiBase": server.v1, "extraHeaders": {"X-A": "b"}, "extraBody": {"seed": 1}}
        config = Config(**using("custom", "z-ai/glm:free", **section))
        chosen = await choose_provider(config, environ={}, state_dir=tmp_path)
        await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    request = server.chats[0]
    assert (request.json["model"], request.json["seed"], request.headers["x-a"]) == ("z-ai/glm:free", 1, "b")


async def test_a_custom_endpoint_without_an_address_says_which_key_to_set():
    with pytest.raises(ConfigError, match=r"providers\.custom\.apiBase"):
        await choose(**using("custom", "m", apiKey="k"))


async def test_responses_over_litellm_are_refused_with_the_setting_to_change():
    with pytest.raises(ConfigError, match="backend to direct"):
        await choose(**using("anthropic", "claude-opus-4-5", apiKey="k", apiType="responses"))


async def test_the_backend_may_be_chosen_by_hand():
    through = await choose(**using("openai", "gpt-4.1", apiKey="sk-x", backend="litellm"))

    assert isinstance(through.provider, LiteLLMProvider)


async def test_a_local_server_that_was_named_but_does_not_answer_is_an_error_that_says_so():
    with pytest.raises(ConfigError, match="Ollama does not answer"):
        await choose(**using("ollama", apiBase="http://127.0.0.1:1/v1"))


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


async def test_limits_of_the_config_go_before_those_of_the_model():
    with FakeModels(default=Hang()) as server:
        section = {"apiKey": "k", "apiBase": server.v1, "firstTokenTimeoutS": 0.05}
        chosen = await choose(**using("custom", "o3", **section))
        with pytest.raises(ProviderTimeoutError, match=r"waited 0\.05 s for the first token"):
            await chosen.provider.chat(HELLO)
        await chosen.provider.close()


def test_choosing_a_provider_loads_no_client_and_no_sdk():
    script = (
        "import sys, nanobot.providers.factory, nanobot.providers.custom_provider, nanobot.providers.offline_provider;"
        "print(sorted({'httpx', 'litellm', 'openai', 'json_repair'} & set(sys.modules)))"
    )

    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "[]"


@pytest.fixture
def logged_in(tmp_path):
    """A state folder in which you are logged in to both accounts."""
    store = AccountStore.in_state(tmp_path)
    for name in ("openai_codex", "github_copilot"):
        store.save(Account(name, "https://login.example", grant="g"))
    return tmp_path


async def choose_here(state_dir, environ=None, **config):
    chosen = await choose_provider(Config(**config), environ=environ or {}, state_dir=state_dir, local_servers=[])
    await chosen.provider.close()
    return chosen


@pytest.mark.parametrize("name", ["openaiCodex", "openai-codex", "openai_codex"])
async def test_an_account_is_chosen_in_every_spelling_with_its_own_model(logged_in, name):
    chosen = await choose_here(logged_in, agents={"defaults": {"provider": name}})

    assert isinstance(chosen.provider, OpenAICodexProvider)
    assert (chosen.name, chosen.model) == ("openai_codex", "gpt-5.1-codex")


async def test_an_account_is_chosen_by_the_prefix_of_a_model(logged_in):
    chosen = await choose_here(logged_in, agents={"defaults": {"model": "github-copilot/gpt-4o"}})

    assert isinstance(chosen.provider, CopilotProvider)
    assert (chosen.name, chosen.model) == ("github_copilot", "gpt-4o")


async def test_an_account_nobody_is_logged_in_to_says_what_to_run(tmp_path):
    for provider, command in (("openaiCodex", "openai-codex"), ("githubCopilot", "github-copilot")):
        with pytest.raises(ConfigError, match=f"Run `nanobot provider login {command}`"):
            await choose_here(tmp_path, agents={"defaults": {"provider": provider}})


async def test_where_nothing_else_is_set_up_the_account_answers(logged_in):
    assert (await choose_here(logged_in)).name == "openai_codex"
    assert (await choose_here(logged_in, {"OPENAI_API_KEY": "sk-x"})).name == "openai"
    assert (await choose_here(logged_in, agents={"defaults": {"model": "my-own"}})).name == "offline"


async def test_copilot_goes_through_litellm_for_whoever_asks_for_it(logged_in):
    chosen = await choose_here(logged_in, **using("githubCopilot", backend="litellm"))

    assert isinstance(chosen.provider, LiteLLMProvider)
    with pytest.raises(ConfigError, match="backend cannot be litellm"):
        await choose_here(logged_in, **using("openaiCodex", backend="litellm"))
