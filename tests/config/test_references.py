"""Config values that point at a secret: where they are followed, where they are not, and what is saved."""

import json
import os
import stat

import pytest

from nanobot.config.loader import load_config
from nanobot.config.saver import save_config


@pytest.fixture
def pointing(config_file, tmp_path, monkeypatch):
    """A config that keeps its secrets elsewhere."""
    monkeypatch.setenv("KEYS", str(tmp_path / "keys"))
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "openai").write_text("from-a-file\n")
    (tmp_path / "keys" / "mcp").write_text("${KEYS} stays\n")
    return config_file(
        {
            "providers": {"openai": {"apiKey": "file:${KEYS}/openai"}, "groq": {"apiKey": "cmd:echo from a command"}},
            "channels": {"irc": {"nickPassword": "cmd:echo nick"}},
            "tools": {
                "mcpServers": {
                    "x": {
                        "command": "c",
                        "args": ["file:///data", "--token", "${file:keys/openai}"],
                        "env": {"DATABASE_URL": "file:./dev.db", "DB_PASSWORD": "file:keys/openai"},
                        "headers": {"Authorization": "Bearer ${file:keys/mcp}"},
                    }
                }
            },
        }
    )


def test_secrets_are_taken_from_where_they_are_kept(pointing, tmp_path):
    config = load_config(pointing)

    assert config.providers.openai.api_key == "from-a-file"
    assert config.providers.groq.api_key == "from a command"
    assert (config.channels.__pydantic_extra__ or {})["irc"] == {"nickPassword": "nick"}
    server = config.tools.mcp_servers["x"]
    assert server.args == ["file:///data", "--token", "from-a-file"]
    assert server.env == {"DATABASE_URL": "file:./dev.db", "DB_PASSWORD": "from-a-file"}
    assert server.headers == {"Authorization": "Bearer ${KEYS} stays"}


def test_what_is_saved_points_at_them_still(pointing):
    before = json.loads(pointing.read_text())
    config = load_config(pointing)
    config.agents.defaults.max_tokens = 99

    save_config(config)

    after = json.loads(pointing.read_text())
    assert after.pop("agents") == {"defaults": {"maxTokens": 99}}
    assert after == before
    assert stat.S_IMODE(pointing.stat().st_mode) == 0o600 or os.name == "nt"


def test_who_needs_no_secret_runs_no_command(config_file, tmp_path):
    path = config_file({"providers": {"groq": {"apiKey": "cmd:touch ran"}, "openai": {"apiKey": "file:nowhere"}}})

    config = load_config(path, secrets=False)
    save_config(config)

    assert config.providers.groq.api_key == "cmd:touch ran"
    assert not (tmp_path / "ran").exists()
    assert json.loads(path.read_text())["providers"]["groq"] == {"apiKey": "cmd:touch ran"}


def test_what_the_environment_says_is_not_run(config_file, monkeypatch, tmp_path):
    monkeypatch.setenv("KEY", "cmd:touch ran")

    config = load_config(config_file({"providers": {"openai": {"apiKey": "${KEY}"}}}))

    assert config.providers.openai.api_key == "cmd:touch ran"
    assert not (tmp_path / "ran").exists()
