"""What a config becomes: who stands behind whom, and what they share."""

import subprocess
import sys
from typing import Any

import pytest

from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.providers import errors
from nanobot.providers.base import CallContext, LLMProvider, LLMResponse, call_context
from nanobot.providers.factory import ProviderChains, with_preset
from nanobot.testing.model_server import Fail, FakeModels, Say
from tests.support.clock import Waits
from tests.support.sample_requests import HELLO

OWN = {"apiKey": "k", "apiBase": "https://models.example.com/v1"}


def made(**settings: Any) -> Config:
    return Config(**settings)


def config(*fallbacks: Any, presets: dict[str, Any] | None = None, **defaults: Any) -> Config:
    return made(
        agents={"defaults": {"provider": "custom", "model": "m", "fallbackModels": list(fallbacks), **defaults}},
        modelPresets=presets or {},
        providers={"custom": OWN},
    )


async def test_a_persistent_bot_asks_again_around_everybody():
    with FakeModels() as server:
        server.script(*[Fail(500), Fail(429, "slow")] * 3, Say("at last"))
        settings = config(
            "spare", presets={"spare": {"model": "n", "provider": "custom"}}, providerRetryMode="persistent"
        )
        settings.providers.custom.api_base = server.v1
        waits = Waits()
        chosen = await ProviderChains({}, sleep=waits.sleep, monotonic=waits.monotonic).choose(settings)

        response = await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert (response.content, chosen.name, chosen.model, chosen.provider.get_default_model()) == (
        "at last", "custom", "m", "m",
    )  # fmt: skip
    assert [request.json["model"] for request in server.chats] == ["m", "n", "m", "n", "m", "n", "m"]


async def test_every_request_is_counted_under_the_name_of_its_provider():
    counted: list[str] = []

    def add_meter(provider: LLMProvider, name: str) -> LLMProvider:
        counted.append(name)
        return provider

    with FakeModels() as a, FakeModels() as b:
        a.script(Fail(401, "no"))
        both = made(
            agents={
                "defaults": {
                    "provider": "openai",
                    "model": "gpt-4.1",
                    "fallbackModels": [{"model": "deepseek-chat", "provider": "deepseek"}],
                }
            },
            providers={"openai": {"apiKey": "k", "apiBase": a.v1}, "deepseek": {"apiKey": "k", "apiBase": b.v1}},
        )
        chosen = await ProviderChains({}, add_meter=add_meter).choose(both)
        assert counted == ["openai"], "a fallback is made when it is needed"
        await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert counted == ["openai", "deepseek"]


async def test_a_first_model_without_a_key_is_an_error_and_nobody_is_switched():
    with pytest.raises(ConfigError, match="GROQ_API_KEY"):
        await ProviderChains({}).choose(
            config({"model": "m2", "provider": "custom"}, provider="groq", model="llama-3.3-70b-versatile")
        )


async def test_a_fallback_without_a_key_is_told_by_the_failure_of_the_first():
    with FakeModels() as server:
        server.script(Fail(500), Fail(500), Fail(500), Fail(500))
        waits = Waits()
        settings = made(
            agents={
                "defaults": {
                    "provider": "custom",
                    "model": "m",
                    "fallbackModels": [{"model": "llama-3.3", "provider": "groq"}],
                }
            },
            providers={"custom": {"apiKey": "k", "apiBase": server.v1}},
        )
        chosen = await ProviderChains({}, sleep=waits.sleep, monotonic=waits.monotonic).choose(settings)

        with pytest.raises(errors.ModelOverloadedError, match=r"llama-3\.3 cannot be used: There is no key for Groq"):
            await chosen.provider.chat(HELLO)
        await chosen.provider.close()


async def test_a_preset_as_a_fallback_goes_out_with_its_own_settings_and_once():
    presets = {"spare": {"model": "small", "provider": "custom", "maxTokens": 77, "temperature": 0.5}}
    with FakeModels() as server:
        server.script(Fail(429, "slow", retry_after=1000), Say("small here"))
        settings = config("spare", {"model": "small", "provider": "custom"}, "spare", presets=presets)
        settings.providers.custom.api_base = server.v1
        chosen = await ProviderChains({}).choose(settings)
        response = await chosen.provider.chat(HELLO)
        await chosen.provider.close()

    assert response.content == "small here"
    sent = server.chats[-1].json
    assert (sent["model"], sent["max_tokens"], sent["temperature"]) == ("small", 77, 0.5)


async def test_a_model_is_no_fallback_of_its_own():
    contexts: list[CallContext] = []

    class Watched(LLMProvider):
        async def chat(self, messages, tools=None, model=None, max_tokens=4096, temperature=0.7):
            contexts.append(call_context())
            return LLMResponse("hi")

    settings = config("spare", presets={"spare": {"model": "small", "provider": "custom"}})
    chains = ProviderChains({}, add_meter=lambda provider, name: Watched())
    await (await chains.choose(settings)).provider.chat(HELLO)
    await (await chains.choose(with_preset(settings, "spare"))).provider.chat(HELLO)

    assert [context.has_fallback for context in contexts] == [True, False]


async def test_all_chains_of_a_bot_share_their_breakers():
    with FakeModels() as server:
        server.script(*[Fail(429, "slow", retry_after=1000)] * 3)
        settings = config()
        settings.providers.custom.api_base = server.v1
        chains = ProviderChains({})
        first, second, other = [(await chains.choose(settings, model)).provider for model in (None, None, "another")]
        for _ in range(3):
            with pytest.raises(errors.RateLimitedError):
                await first.chat(HELLO)

        with pytest.raises(errors.ModelUnavailableError):
            await second.chat(HELLO)
        assert (await other.chat(HELLO)).content == "ok"
        for provider in (first, second, other):
            await provider.close()

    assert len(server.chats) == 4


async def test_with_nothing_set_up_the_stand_in_answers_still():
    chosen = await ProviderChains({}, local_servers=[]).choose(Config())

    assert chosen.name == "offline"
    assert (await chosen.provider.chat(HELLO)).content


def test_a_chain_loads_no_client_and_no_sdk_before_somebody_is_asked():
    script = (
        "import asyncio, sys\n"
        "from nanobot.config.schema import Config\n"
        "from nanobot.providers.factory import ProviderChains\n"
        "defaults = {'model': 'gpt-4.1', 'fallbackModels': [{'model': 'claude-opus-4-5'}]}\n"
        "config = Config(agents={'defaults': defaults}, providers={'openai': {'apiKey': 'k'}})\n"
        "asyncio.run(ProviderChains({}).choose(config))\n"
        "print(sorted({'httpx', 'litellm', 'openai', 'json_repair'} & set(sys.modules)))\n"
    )

    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert told.strip() == "[]"
