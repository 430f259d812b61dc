"""Writing config.json: little, faithful, private, and whole at any moment."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from nanobot.config.loader import load_config, load_warnings, save_config
from nanobot.config.schema import Config
from nanobot.errors import StorageError
from tests.support.configs import made
from tests.support.home import start_program, told

RELEASES = sorted((Path(__file__).parent / "fixtures").glob("release-*.json"))


def test_only_what_differs_is_written_in_camel_case(tmp_path):
    config = Config()
    config.agents.defaults.max_tokens = 5
    config.providers.lm_studio.api_base = "http://127.0.0.1:1/v1"

    save_config(config, tmp_path / "new" / "config.json")

    text = (tmp_path / "new" / "config.json").read_text()
    expected = {
        "agents": {"defaults": {"maxTokens": 5}},
        "providers": {"lmStudio": {"apiBase": "http://127.0.0.1:1/v1"}},
    }
    assert text == json.dumps(expected, indent=2) + "\n"


@pytest.mark.skipif(os.name == "nt", reason="file modes are POSIX")
def test_file_and_backup_are_ours_alone(tmp_path):
    path = tmp_path / "new" / "config.json"
    save_config(made(api={"port": 1}), path)
    path.chmod(0o644)
    save_config(made(api={"port": 2}), path)

    modes = [stat.S_IMODE(place.stat().st_mode) for place in (path.parent, path, path.with_name("config.json.bak"))]

    assert modes == [0o700, 0o600, 0o600]


def test_a_round_trip_loses_nothing(config_file):
    written = {
        "zebra": {"keep": [1, {"me": None}]},
        "_comment": "mine",
        "providers": {"stepfun": {"apiKey": "k", "apiBase": "https://x.example/v1", "apiType": "responses"}},
        "modelPresets": {"fast": {"model": "m"}},
        "channels": {"mattermost": {"enabled": False, "bot_id": "x"}, "telegram": {"token": "t", "poolTimeout": 5.0}},
        "tools": {"mcpServers": {"my_files": {"command": "x", "env": {"SOME_KEY": "v"}}}, "unheard": 1},
        "agents": {"defaults": {"model": "m", "fallbackModels": ["fast", {"model": "other", "provider": "groq"}]}},
    }
    path = config_file(written)

    save_config(load_config(path))

    assert list(json.loads(path.read_text()).items()) == list(written.items())


def test_references_are_kept_as_written(config_file, monkeypatch):
    monkeypatch.setenv("KEY", "geheim")
    monkeypatch.setenv("PLACE", "~/.nanobot/workspace")
    written: dict[str, Any] = {
        "providers": {"openai": {"apiKey": "${KEY}", "extraHeaders": {"A": "Bearer ${KEY}"}}},
        "api": {"port": 81, "token": "${KEY}"},
        "agents": {"defaults": {"workspace": "${PLACE}", "disabledSkills": ["a", "${KEY}"]}},
        "channels": {"irc": {"password": "${KEY}"}},
    }
    path = config_file(written)
    config = load_config(path)
    config.api.port = 82
    config.agents.defaults.disabled_skills.insert(0, "first")
    config.api.token = "new"

    save_config(config)

    text = path.read_text()
    assert "geheim" not in text
    written["api"] = {"port": 82, "token": "new"}
    written["agents"]["defaults"]["disabledSkills"] = ["first", "a", "${KEY}"]
    assert json.loads(text) == written


def test_what_was_removed_is_gone_and_what_stands_beside_it_stays_as_written(config_file, monkeypatch):
    monkeypatch.setenv("KEY", "geheim")
    headers = {"Authorization": "Bearer ${KEY}", "X-Trace": "on"}
    servers = {"old": {"command": "x", "args": ["${KEY}"]}, "kept": {"url": "https://x.example", "headers": headers}}
    path = config_file({"tools": {"mcpServers": servers}, "providers": {"mine": {"apiBase": "http://x"}}})
    config = load_config(path)
    del config.tools.mcp_servers["old"]
    assert config.tools.mcp_servers["kept"].headers
    config.tools.mcp_servers["kept"].headers["X-Trace"] = "off"
    config.providers.__pydantic_extra__.clear()

    save_config(config)

    kept = {"url": "https://x.example", "headers": {**headers, "X-Trace": "off"}}
    assert json.loads(path.read_text())["tools"] == {"mcpServers": {"kept": kept}}
    assert json.loads(path.read_text()).get("providers", {}) == {}


@pytest.mark.parametrize("written", [{"gateway": {"heartbeat": {"enabled": False}}}, {}])
def test_a_heartbeat_that_was_switched_off_stays_off(config_file, written):
    path = config_file(written)
    config = load_config(path)
    config.gateway.heartbeat.enabled = False
    config.api.port = 5

    save_config(config)

    assert json.loads(path.read_text()) == {"gateway": {"heartbeat": {"enabled": False}}, "api": {"port": 5}}


@pytest.mark.parametrize("written", [{"gateway": {"port": 7}}, {"api": {"port": 8900}, "gateway": {"port": 7}}])
def test_what_the_environment_filled_in_stays_out_and_what_the_file_said_still_wins(config_file, monkeypatch, written):
    monkeypatch.setenv("NANOBOT_PROVIDERS__OPENAI__API_KEY", "geheim")
    monkeypatch.setenv("NANOBOT_API__PORT", "5")
    path = config_file(written)
    config = load_config(path)
    config.gateway.port = 8

    save_config(config)

    assert json.loads(path.read_text()) == {**written, "gateway": {"port": 8}}


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.stem)
def test_what_a_release_wrote_means_the_same_after_a_save(release, tmp_path):
    config = load_config(release)

    save_config(config, tmp_path / "config.json")
    again = load_config(tmp_path / "config.json")

    assert again == config
    assert load_warnings(again) == ()
    assert len((tmp_path / "config.json").read_text()) < len(release.read_text()) / 2


def test_an_old_key_is_saved_at_its_new_place(config_file):
    path = config_file({"tools": {"exec": {"restrictToWorkspace": True}}})

    save_config(load_config(path))

    assert json.loads(path.read_text()) == {"tools": {"restrictToWorkspace": True}}


def test_three_files_before_this_one_are_kept(config_file):
    path = config_file({"api": {"port": 1}})
    config = load_config(path)
    for port in (2, 3, 4, 5, 5):
        config.api.port = port
        save_config(config)

    ports = [
        json.loads(path.with_name(path.name + end).read_text())["api"]["port"]
        for end in ("", ".bak", ".bak.1", ".bak.2")
    ]

    assert ports == [5, 4, 3, 2]
    assert not path.with_name("config.json.bak.3").exists()


def test_a_disk_that_refuses_leaves_the_old_file(tmp_path):
    (tmp_path / "file").write_text("x")

    with pytest.raises(StorageError, match="cannot be written"):
        save_config(Config(), tmp_path / "file" / "config.json")

    assert (tmp_path / "file").read_text() == "x"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and SIGKILL")
def test_changes_of_two_processes_are_both_in_the_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("{}", encoding="utf-8")
    children = [start_program("tests.config.config_child", str(path), prefix, "8") for prefix in ("A_", "B_")]
    assert [child.wait() for child in children] == [0, 0]

    names = load_config(path).tools.exec.allowed_env_keys
    assert sorted(names) == sorted(f"{prefix}{number}" for prefix in ("A_", "B_") for number in range(8))


def test_kill_9_in_the_middle_of_a_save_leaves_a_file_that_loads(tmp_path):
    saved = told("tests.programs.killed_saves", str(tmp_path / "c.json"))

    assert int(saved) > 15  # each of the fifteen had saved, and none of it was lost
