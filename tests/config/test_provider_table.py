"""Which provider, and what goes out on the wire."""

from pathlib import Path

import pytest

from nanobot.config.provider_match import match_provider
from nanobot.config.provider_table import (
    PROVIDERS,
    context_window,
    find_by_key,
    find_by_model,
    find_by_name,
    wire_model,
)
from nanobot.config.schema import ProvidersConfig
from tests.support.configs import PAIRS, made


@pytest.mark.parametrize(("provider", "keyed", "model", "name", "base", "wire"), PAIRS)
def test_a_model_goes_to_its_provider_byte_for_byte(provider, keyed, model, name, base, wire):
    config = made(
        agents={"defaults": {"provider": provider, "model": model}}, providers={key: {"apiKey": "k"} for key in keyed}
    )

    match = config.match_provider()

    assert match is not None
    assert (match.spec.name, config.get_api_base(), match.wire_model) == (name, base, wire)


@pytest.mark.parametrize(
    ("keyed", "environ", "model", "name", "asked", "reason"),
    [
        (["openai"], {}, "anthropic/claude-opus-4-5", "openai", "gpt-5.6", "key"),
        (["groq", "openrouter"], {}, "some-model", "openrouter", "some-model", "key"),
        ([], {"OPENAI_API_KEY": "k"}, "anthropic/claude-opus-4-5", "openai", "gpt-5.6", "environment"),
        ([], {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}, "gpt-5", "openai", "gpt-5", "environment"),
        ([], {"OPENROUTER_API_KEY": "k"}, "z-ai/glm-4.6", "openrouter", "z-ai/glm-4.6", "environment"),
        (["openrouter"], {"ANTHROPIC_API_KEY": "k"}, "anthropic/claude-opus-4-5", "openrouter",
         "anthropic/claude-opus-4-5", "key"),
        ([], {"HF_TOKEN": "k", "OPENAI_API_KEY": "k"}, "anthropic/claude-opus-4-5", "openai", "gpt-5.6", "environment"),
        (["openai", "huggingface"], {}, "some-model", "huggingface", "some-model", "key"),
        ([], {"OPENAI_API_KEY": ""}, "gpt-5", None, None, None),
        ([], {"AZURE_OPENAI_API_KEY": "k"}, "gpt-5", None, None, None),
    ],
)  # fmt: skip
def test_without_an_explicit_provider_keys_decide(keyed, environ, model, name, asked, reason):
    sections = ProvidersConfig.model_validate({key: {"apiKey": "k"} for key in keyed}).by_name()

    match = match_provider(model, "auto", sections, environ)

    assert (match and match.spec.name, match and match.model, match and match.reason) == (name, asked, reason)


def test_one_s_own_endpoint_is_a_provider_by_its_name():
    config = made(
        agents={"defaults": {"model": "house/large-3"}},
        providers={"house": {"apiKey": "k", "apiBase": "https://api.house.example/v1"}},
    )

    match = config.match_provider()

    assert match is not None and match.spec.speaks_chat_completions
    assert (match.spec.name, match.wire_model, config.get_api_key()) == ("house", "large-3", "k")
    assert config.get_api_base() == "https://api.house.example/v1"


def test_a_local_endpoint_needs_an_address_but_no_key():
    config = made(providers={"vllm": {"apiBase": "http://127.0.0.1:9/v1"}}, agents={"defaults": {"model": "m"}})

    assert config.get_provider_name() == "vllm"
    assert config.get_api_key() is None
    assert config.get_api_base() == "http://127.0.0.1:9/v1"


def test_the_key_may_lie_in_the_environment(monkeypatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", "from-env")
    config = made(agents={"defaults": {"model": "deepseek-chat"}})

    assert config.get_provider_name() == "deepseek"
    assert config.get_api_key() == "from-env"
    assert config.get_provider() == config.providers.deepseek


def test_a_preset_goes_before_model_and_provider():
    config = made(
        agents={"defaults": {"modelPreset": "small", "temperature": 0.5}},
        modelPresets={"small": {"model": "qwen3:4b", "provider": "ollama", "maxTokens": 100}},
    )

    preset = config.active_preset()

    assert config.get_provider_name() == "ollama"
    assert (preset.model, preset.max_tokens, preset.temperature) == ("qwen3:4b", 100, 0.5)


def test_every_row_can_be_named_in_any_spelling_and_has_a_section():
    for spec in PROVIDERS:
        assert (
            find_by_name(spec.name)
            is find_by_name(spec.config_key)
            is find_by_name(spec.name.replace("_", "-"))
            is spec
        )
        assert spec.name in ProvidersConfig.model_fields


def test_every_provider_with_a_key_has_an_address_and_a_model():
    """So that a key is all a person has to enter; custom and Azure have no common address, local servers no key."""
    reached_by_key = [spec for spec in PROVIDERS if spec.needs_key and spec.name != "azure_openai"]

    assert len(reached_by_key) >= 40
    for spec in reached_by_key:
        base = spec.default_api_base or ""
        assert spec.default_model and (spec.env_keys or spec.name == "opencode_zen"), spec.name
        assert base.startswith("https://") and not base.endswith("/"), spec.name


def test_the_guide_names_every_provider_that_needs_a_key():
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "first-model.md").read_text(encoding="utf-8")

    assert [spec.name for spec in PROVIDERS if spec.needs_key and f"`{spec.config_key}`" not in guide] == []


@pytest.mark.parametrize(
    ("name", "model", "wire"),
    [("openai", "openai/", "openai/"), ("openai", "openai", "openai"), ("openai", "/x", "/x"), ("groq", "Groq/x", "x")],
)
def test_only_a_whole_prefix_is_taken_off(name, model, wire):
    spec = find_by_name(name)

    assert spec is not None
    assert wire_model(spec, model) == wire


def test_a_key_may_tell_whose_it_is():
    found = find_by_key("sk-or-v1-abc")

    assert found is not None and found.name == "openrouter"
    assert find_by_key("sk-abc") is None


def test_a_model_points_at_a_provider():
    found = find_by_model("claude-sonnet-4-5")

    assert found is not None and found.name == "anthropic"
    assert find_by_model("llama3.2:3b") is None


@pytest.mark.parametrize(
    ("model", "tokens"), [("anthropic/claude-opus-4-5", 200_000), ("nobody/knows", 65536), ("gpt-4o-mini", 128_000)]
)
def test_the_window_comes_from_the_family(model, tokens):
    assert context_window(model) == tokens
