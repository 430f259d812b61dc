"""Which provider, and what goes out on the wire."""

from pathlib import Path

import pytest

from nanobot.config.provider_table import (
    PROVIDERS,
    context_window,
    find_by_key,
    find_by_model,
    find_by_name,
    match_provider,
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
    assert (match.spec.name, match.spec.default_api_base, match.wire_model) == (name, base, wire)


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


@pytest.mark.parametrize(
    ("config", "name", "model"),
    [
        (  # an endpoint of one's own goes by its name
            {"agents": {"defaults": {"model": "house/large-3"}}, "providers": {"house": {"apiBase": "https://x.example"}}},
            "house", "large-3",
        ),
        (  # a local one needs an address but no key
            {"agents": {"defaults": {"model": "m"}}, "providers": {"vllm": {"apiBase": "http://127.0.0.1:9/v1"}}},
            "vllm", "m",
        ),
        (  # a preset goes before model and provider
            {"agents": {"defaults": {"modelPreset": "small", "model": "gpt-5"}},
             "modelPresets": {"small": {"model": "qwen3:4b", "provider": "ollama"}}},
            "ollama", "qwen3:4b",
        ),
    ],
)  # fmt: skip
def test_a_config_says_where_its_model_is(config, name, model):
    match = made(**config).match_provider()

    assert match is not None and match.spec.speaks_chat_completions
    assert (match.spec.name, match.wire_model, made(**config).get_provider_name()) == (name, model, name)


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


def test_a_key_or_a_model_may_tell_whose_it_is_and_the_family_its_window():
    known = find_by_key("sk-or-v1-abc"), find_by_model("claude-sonnet-4-5")

    assert [spec and spec.name for spec in known] == ["openrouter", "anthropic"]
    assert [find_by_key("sk-abc"), find_by_model("llama3.2:3b")] == [None, None]
    windows = {"anthropic/claude-opus-4-5": 200_000, "nobody/knows": 65536, "gpt-4o-mini": 128_000}
    assert {model: context_window(model) for model in windows} == windows
