"""Places follow the config in use, and home as it is now."""

import pytest

from nanobot.config.loader import get_config_path, get_data_dir
from nanobot.config.paths import DataPaths, use_config
from nanobot.config.schema import Config
from nanobot.errors import ConfigError


def test_places_lie_at_home_which_is_looked_up_at_each_call(home, monkeypatch):
    assert (get_config_path(), get_data_dir()) == (home / ".nanobot" / "config.json", home / ".nanobot")
    assert Config().workspace_path == home / ".nanobot" / "workspace"

    monkeypatch.setenv("HOME", str(home / "other"))
    monkeypatch.setenv("USERPROFILE", str(home / "other"))

    assert get_config_path() == home / "other" / ".nanobot" / "config.json"


def test_another_config_makes_its_folder_the_data_folder(home):
    use_config("~/elsewhere/bot.json")

    places = DataPaths(get_data_dir())

    data = home / "elsewhere"
    assert get_config_path() == data / "bot.json"
    assert (places.state, places.turns, places.logs) == (data / "state", data / "state" / "turns", data / "logs")
    assert places.cli_history == data / "history" / "cli_history"
    assert (places.config, places.pairing) == (data / "config.json", data / "pairing.json")
    assert places.legacy_sessions == data / "sessions"


def test_a_home_nobody_has_is_a_config_error():
    config = Config.model_validate({"agents": {"defaults": {"workspace": "~no-such-user-here/w"}}})

    with pytest.raises(ConfigError, match="home folder is unknown"):
        _ = config.workspace_path
