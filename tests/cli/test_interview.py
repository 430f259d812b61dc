"""What the wizard makes of what it finds, where nothing has to be asked."""

import pytest

from nanobot.cli.setup.provider import ProviderChoice, ask_provider, default_model
from nanobot.config.provider_table import spec_for
from nanobot.config.schema import Config

USUAL = "http://127.0.0.1:11434/v1"
OLLAMA = spec_for("ollama")


def config_with(**ollama: str) -> Config:
    return Config.model_validate({"providers": {"ollama": ollama}})


@pytest.mark.parametrize(
    ("in_config", "found", "stored"),
    [
        ("", USUAL, None),
        ("", "http://10.0.0.2:11434/v1", "http://10.0.0.2:11434/v1"),
        ("http://old:11434/v1", USUAL, USUAL),
        ("http://10.0.0.2:11434/v1", "http://10.0.0.2:11434/v1", None),
    ],
)
def test_an_address_is_stored_only_where_it_has_to_be_said(in_config: str, found: str, stored: str | None):
    config = config_with(apiBase=in_config)

    wish = ask_provider(config, ProviderChoice(OLLAMA, "m"), ProviderChoice(), {"ollama": found}, may_keep=False)

    assert wish == ProviderChoice(OLLAMA, "m", api_base=stored)


@pytest.mark.parametrize(
    ("defaults", "provider", "model"),
    [
        ({}, "openai", "gpt-5.6"),
        ({"provider": "openai"}, "openai", "gpt-5.6"),
        ({"provider": "openai", "model": "gpt-x"}, "openai", "gpt-x"),
        ({"provider": "openai", "model": "gpt-x"}, "deepseek", "deepseek-v4-flash"),
        ({"provider": "ollama"}, "ollama", ""),
    ],
)
def test_the_model_offered_first_is_the_configs_where_it_speaks_of_this_provider(
    defaults: dict[str, str], provider: str, model: str
):
    config = Config.model_validate({"agents": {"defaults": defaults}})

    assert default_model(spec_for(provider), config) == model
