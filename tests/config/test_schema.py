"""Defaults, both key styles, ranges, and what start-up pays."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from nanobot.config.schema import Config
from tests.support.configs import made


def test_defaults_are_those_of_the_formats_page(home):
    config = Config()

    defaults = config.agents.defaults
    assert (defaults.model, defaults.provider, defaults.max_tokens) == ("anthropic/claude-opus-4-5", "auto", 8192)
    assert (defaults.temperature, defaults.max_tool_iterations, defaults.memory_window) == (0.1, 40, 100)
    assert (defaults.max_concurrent_subagents, defaults.max_tool_result_chars) == (4, 16000)
    assert config.workspace_path == home / ".nanobot" / "workspace"
    assert (config.gateway.host, config.gateway.port, config.api.port) == ("127.0.0.1", 18790, 8900)
    assert (config.gateway.heartbeat.enabled, config.gateway.heartbeat.interval_s) == (False, 1800)
    assert (config.tools.exec.sandbox, config.tools.approval, config.tools.custom_tools) == ("auto", "ask", False)
    assert (config.channels.discord.intents, config.channels.email.imap_port) == (37377, 993)
    assert config.channels.telegram.allow_from == []
    assert (config.limits.daily_usd, config.limits.turn_tokens) == (None, None)


def test_what_is_passed_in_is_read_in_both_key_styles_wins_over_the_environment_and_reads_no_file(home, monkeypatch):
    (home / ".nanobot").mkdir()
    (home / ".nanobot" / "config.json").write_text('{"api": {"port": 5}}')
    (home / ".env").write_text("NANOBOT_API__PORT=6")
    monkeypatch.chdir(home)
    alone = Config().api.port
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS", "7")
    monkeypatch.setenv("NANOBOT_API__PORT", "99")

    configs = [made(agents={"defaults": {key: 5, "workspace": "~/w"}}) for key in ("maxTokens", "max_tokens")]

    assert alone == 8900
    assert [(each.agents.defaults.max_tokens, each.api.port) for each in configs] == [(5, 99)] * 2
    assert configs[0].workspace_path == home / "w"


def test_ids_may_be_numbers_but_numbers_not_truths_and_a_plugin_s_channel_is_kept_as_it_stands():
    config = made(channels={"telegram": {"allowFrom": [123, "abc"]}, "irc": {"enabled": True, "some_key": [1]}})

    assert config.channels.telegram.allow_from == ["123", "abc"]
    assert (config.channels.__pydantic_extra__ or {})["irc"] == {"enabled": True, "some_key": [1]}
    with pytest.raises(ValidationError):
        made(api={"port": True})


@pytest.mark.parametrize("written", ["http", "streamable-http", "streamableHttp"])
def test_other_clients_names_for_a_transport_are_understood(written):
    config = made(tools={"mcpServers": {"x": {"type": written, "url": "https://example.com"}}})

    assert config.tools.mcp_servers["x"].type == "streamableHttp"


def test_importing_the_schema_brings_in_nothing_heavy():
    code = "import sys, nanobot.config.loader; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    heavy = {"httpx", "rich", "typer", "litellm", "loguru", "tiktoken", "yaml", "jsonschema"}
    assert heavy.isdisjoint(loaded)
    assert "nanobot.providers.base" not in loaded


@pytest.mark.parametrize(("icon", "title"), [("🐈", "nanobot"), ("", "nanobot"), ("🦊", "🦊 nanobot")])
def test_an_icon_that_the_owner_chose_stands_before_the_name(icon, title):
    assert made(agents={"defaults": {"botIcon": icon}}).agents.defaults.bot_title == title


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
