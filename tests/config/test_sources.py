"""Where each value comes from, and that no secret is shown."""

import pytest
from pydantic import ValidationError

from nanobot.config.loader import load_config
from nanobot.config.sources import sources
from tests.support.configs import made


def test_each_setting_knows_its_source(config_file, monkeypatch):
    monkeypatch.setenv("NANOBOT_API__PORT", "5")
    path = config_file({"agents": {"defaults": {"max_tokens": 9}}, "providers": {"mine": {"apiBase": "http://x"}}})

    found = {setting.key: setting for setting in sources(load_config(path))}

    known = {key: (found[key].value, found[key].source, found[key].where) for key in found}
    assert known["agents.defaults.maxTokens"] == (9, "file", str(path))
    assert known["providers.mine.apiBase"] == ("http://x", "file", str(path))
    assert known["api.port"] == (5, "environment", "NANOBOT_API__PORT")
    assert known["gateway.port"] == (18790, "default", "")


def test_secrets_are_masked(config_file):
    path = config_file(
        {
            "providers": {"openai": {"apiKey": "sk-geheim-0123456789abcd", "extraHeaders": {"X-Auth": "geheim"}}},
            "channels": {"email": {"imapPassword": "geheim"}, "irc": {"enabled": True, "nickPassword": "geheim"}},
            "tools": {
                "web": {"proxy": "http://me:geheim@proxy:1"},
                "mcpServers": {
                    "x": {"command": "c", "env": {"A": "geheim"}, "headers": {"B": "geheim"}},
                    "y": {"command": "c", "args": ["--token", "geheim-1", "--api-key=geheim-2", "--verbose", "word"]},
                },
            },
        }
    )

    found = {setting.key: setting.value for setting in sources(load_config(path))}

    assert found["providers.openai.apiKey"] == "••••abcd"
    assert found["channels.email.imapPassword"] == "••••"
    assert found["tools.web.proxy"] == "http://••••@proxy:1"
    assert found["tools.mcpServers.y.args"] == ["--token", "••••", "--api-key=[key]", "--verbose", "word"]
    assert "geheim" not in str(found)


def test_no_secret_is_in_a_repr_or_in_an_error():
    config = made(
        providers={"openai": {"apiKey": "geheim", "extraHeaders": {"X": "geheim"}}},
        channels={"telegram": {"token": "geheim"}, "irc": {"password": "geheim"}},
        tools={"mcpServers": {"x": {"env": {"A": "geheim"}}}},
        api={"token": "geheim"},
    )

    assert "geheim" not in f"{config} {config!r} {config.providers.openai!r}"
    assert "telegram" in repr(config)
    with pytest.raises(ValidationError) as caught:
        made(api={"token": ["geheim"]})
    assert "geheim" not in str(caught.value)
