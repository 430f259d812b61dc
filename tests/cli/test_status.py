"""`nanobot status`: what is configured, where it comes from, and what it does not load for that."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.testing.model_server import Fail, FakeModels, Say
from tests.support.home import using

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def models() -> Iterator[FakeModels]:
    with FakeModels(api_key=KEY, default=Say("Hello there.")) as server:
        yield server


def status(*words: str) -> Result:
    return CliRunner().invoke(app, ["status", *words])


def facts(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(status("--json", *words).stdout)
    return found


def write_config(**config: Any) -> Path:
    path = Path.home() / ".nanobot" / "config.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(config, indent=2), encoding="utf-8")
    return path


def openai_at(url: str, key: str = KEY) -> dict[str, Any]:
    return {
        "agents": {"defaults": {"provider": "openai", "model": "gpt-x"}},
        "providers": {"openai": {"apiKey": key, "apiBase": url}},
    }


def test_a_fresh_machine_is_told_what_holds_and_nothing_is_made():
    result = status()

    assert result.exit_code == 0
    assert "none yet; using defaults" in result.stdout
    assert list(Path.home().iterdir()) == []


def test_limits_are_shown_and_models_that_dollars_cannot_count():
    house = {"provider": "house", "model": "house-1"}
    config = {"agents": {"defaults": house}, "providers": {"house": {"apiBase": "http://127.0.0.1:9/v1"}}}
    write_config(**config, limits={"turnTokens": 1000})
    tokens_only = facts()["missing_prices"]
    write_config(**config, limits={"dailyUsd": 2.5})

    assert tokens_only == []
    assert "providers.house.prices" in facts()["missing_prices"][0]
    shown = " ".join(status().stdout.split())
    assert "Limits 2.5 USD a day" in shown
    assert "Problems No price is known for the model house-1 of house." in shown


def test_what_stands_around_commands_is_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    without = facts()["sandbox"]
    write_config(tools={"exec": {"enable": False}})

    assert "bwrap is not installed" in without["summary"]
    assert "Sandbox not needed: commands are disabled (tools.exec.enable is false)" in " ".join(status().stdout.split())


def test_the_model_and_why_it_was_chosen_and_where_each_setting_comes_from(monkeypatch, models: FakeModels):
    path = write_config(**openai_at(models.v1))
    monkeypatch.setenv("NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS", "100")

    shown = status().stdout
    settings = {setting["key"]: setting for setting in facts("--all")["settings"]}

    assert "gpt-x (openai): agents.defaults.provider is openai; providers.openai.apiKey in config.json" in shown
    assert str(path) in shown
    assert models.requests == []
    model = {"key": "agents.defaults.model", "value": "gpt-x", "source": "file", "where": str(path)}
    assert settings["agents.defaults.model"] == model
    assert settings["agents.defaults.maxTokens"]["where"] == "NANOBOT_AGENTS__DEFAULTS__MAX_TOKENS"
    assert settings["agents.defaults.temperature"]["source"] == "default" and len(settings) > 100
    assert "agents.defaults.temperature" not in {setting["key"] for setting in facts()["settings"]}
    assert len(shown.splitlines()) < 32
    assert settings["providers.openai.apiKey"]["value"] == "••••cdef"


def test_a_key_in_the_environment_is_named_and_never_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)

    result = status("--all")

    assert "deepseek-v4-flash (deepseek): DEEPSEEK_API_KEY is set in the environment" in result.stdout
    assert KEY not in result.stdout
    assert "deepseek ••••cdef DEEPSEEK_API_KEY" in " ".join(result.stdout.split())


def test_a_secret_that_is_kept_elsewhere_is_told_by_its_place_and_not_fetched(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("GROQ_HERE", KEY)
    keys = {"openai": "file:~/key", "gemini": "cmd:pass show gemini", "groq": "${GROQ_HERE}"}
    tracker = {"url": "https://example.com/mcp", "headers": {"Authorization": "Bearer ${file:tokens/tracker}"}}
    write_config(
        providers={name: {"apiKey": key} for name, key in keys.items()}, tools={"mcpServers": {"tracker": tracker}}
    )

    told = " ".join(status().stdout.split())

    assert "providers.openai.apiKey •••• ~/key (secret file)" in told
    assert "providers.gemini.apiKey •••• pass (command)" in told
    assert "providers.groq.apiKey ••••cdef GROQ_HERE (environment)" in told
    assert "tools.mcpServers.tracker.headers.Authorization •••• tokens/tracker (secret file)" in told
    assert "tools.mcpServers.tracker.command" not in told


def test_a_setting_nobody_knows_is_a_warning_with_its_line_and_many_leave_room_for_the_rest():
    path = write_config(agents={"defaults": {"maxTokns": 1}})
    told = status("--json")
    write_config(agents={f"key{number}": 1 for number in range(40)})
    many = status()

    warning = f"{path}:4: agents.defaults.maxTokns is not a known key. Did you mean maxTokens?"
    assert (told.exit_code, told.stderr) == (0, f"Warning: {warning}\n")
    assert json.loads(told.stdout)["warnings"] == [warning]
    assert len(many.stderr.splitlines()) == 6
    assert "35 more" in many.stderr


def test_a_config_that_is_invalid_or_missing_where_it_was_named_stops_it(tmp_path: Path):
    path = write_config(agents={"defaults": {"maxTokens": "many"}})

    invalid, missing = status(), status("-c", str(tmp_path / "none.json"))

    assert (invalid.exit_code, invalid.stdout, missing.exit_code) == (78, "", 78)
    assert invalid.stderr.startswith(f"Error: {path}:4: agents.defaults.maxTokens")
    assert "does not exist" in missing.stderr


def test_a_model_that_cannot_be_asked_is_said_without_failing():
    write_config(agents={"defaults": {"provider": "openai"}})

    result = status()

    assert result.exit_code == 0
    assert "cannot be used: There is no key for OpenAI" in result.stdout


def test_probe_asks_the_model_for_real_is_in_the_ledger_and_shows_no_secret_that_it_fetched(models: FakeModels):
    path = write_config(**openai_at(models.v1, "file:key"))
    path.with_name("key").write_text(KEY, encoding="utf-8")

    result = status("--probe")
    told = facts("--probe")
    used = json.loads(CliRunner().invoke(app, ["usage", "--by", "cause", "--json"]).stdout)["rows"]

    assert result.exit_code == 0
    assert "gpt-x (openai) answered in 0." in result.stdout
    assert "Hello there." in result.stdout and told["probe"]["answer"] == "Hello there."
    assert [(row["cause"], row["calls"]) for row in used] == [("trial", 2)]
    (setting,) = [one for one in told["settings"] if one["key"] == "providers.openai.apiKey"]
    assert (setting["source"], setting["where"]) == ("secret file", "key")
    assert KEY not in result.output + str(told)


def test_no_secret_of_the_config_is_shown():
    server = {"command": "c", "env": {"A": "geheim"}, "headers": {"B": "geheim"}}
    words = {"command": "c", "args": ["--token", "geheim-1", "--api-key=geheim-2", "--verbose", "word"]}
    write_config(
        providers={"openai": {"apiKey": "sk-geheim-0123456789abcd", "extraHeaders": {"X-Auth": "geheim"}}},
        channels={"email": {"imapPassword": "geheim"}, "irc": {"enabled": True, "nickPassword": "geheim"}},
        tools={"web": {"proxy": "http://me:geheim@proxy:1"}, "mcpServers": {"x": server, "y": words}},
    )

    found = {setting["key"]: setting["value"] for setting in facts("--all")["settings"]}

    assert found["providers.openai.apiKey"] == "••••abcd"
    assert found["channels.email.imapPassword"] == "••••"
    assert found["tools.web.proxy"] == "http://••••@proxy:1"
    assert found["tools.mcpServers.y.args"] == ["--token", "••••", "--api-key=[key]", "--verbose", "word"]
    assert "geheim" not in status("--all").output + str(found)


def test_a_probe_that_fails_is_one_line_in_plain_words_and_exit_1(models: FakeModels):
    write_config(**openai_at(models.v1))
    models.script(Fail(500, "no room"))
    refused = status("--probe")
    write_config(**using("custom", "m", apiBase="http://127.0.0.1:1/v1"))
    down = status("--probe")

    assert (refused.exit_code, down.exit_code) == (1, 1)
    assert refused.stderr.startswith("Error: The provider is overloaded or failing")
    assert refused.stderr.count("\n") == 1
    assert "http://127.0.0.1:1/v1]: nothing answers there. Is the server running?" in down.stderr
    assert "Errno" not in down.output


def test_channels_and_jobs_are_told_also_while_no_gateway_runs():
    fresh = " ".join(status().stdout.split())
    write_config(channels={"telegram": {"enabled": True, "token": "1:x"}})
    CliRunner().invoke(app, ["cron", "add", "-m", "Tea", "--at", "2099-01-01T16:00+00:00"])

    shown = " ".join(status().stdout.split())
    told = facts()

    assert "Channels none yet; `nanobot channels login telegram` sets one up" in fresh
    assert "Gateway not running; `nanobot gateway` starts it Channels telegram Jobs 1, next 2099-01-01" in shown
    assert (told["gateway"], told["channels"]["telegram"]["state"]) == ({"running": False}, "off")
    assert told["jobs"]["count"] == 1


def test_channels_that_cannot_start_say_why_without_a_gateway(monkeypatch):
    monkeypatch.setitem(sys.modules, "discord", None)  # as where its SDK is missing
    on = {"enabled": True}
    write_config(channels={"telegram": on, "discord": on, "email": on, "slack": {**on, "botToken": "xoxb-1"}})

    shown = " ".join(status().stdout.split())
    told = facts()["channels"]

    assert {name: one["state"] for name, one in told.items()} == dict.fromkeys(told, "failed")
    assert "channels.telegram.token is not set. Run `nanobot channels login telegram`." in shown
    assert "channels.slack.appToken is not set" in shown
    assert "channels.email.imapUsername and channels.email.imapPassword" in shown
    assert "nanobot[discord]" in told["discord"]["lastError"]


def test_jobs_are_counted_where_earlier_releases_kept_them_and_a_damaged_store_does_not_hide_the_rest():
    CliRunner().invoke(app, ["cron", "add", "-m", "Tea", "--at", "2099-01-01T16:00+00:00"])
    data = Path.home() / ".nanobot"
    (data / "workspace" / "cron").rename(data / "cron")
    count = facts()["jobs"]["count"]
    store = data / "cron" / "jobs.json"
    store.write_text("{nonsense", encoding="utf-8")

    result = status()

    assert (count, result.exit_code) == (1, 0)
    assert str(store) in " ".join(line for line in result.stdout.splitlines() if "Jobs" in line)
