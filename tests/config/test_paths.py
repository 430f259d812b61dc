"""Places follow the config in use, and home as it is now."""

import pytest

from nanobot.config.loader import get_config_path, get_data_dir
from nanobot.config.paths import Places, get_workspace_path, use_config
from nanobot.errors import ConfigError


def test_places_lie_at_home(home):
    assert get_config_path() == home / ".nanobot" / "config.json"
    assert get_data_dir() == home / ".nanobot"
    assert get_workspace_path() == home / ".nanobot" / "workspace"
    assert Places.of().media("telegram") == home / ".nanobot" / "media" / "telegram"


def test_home_is_looked_up_at_each_call(home, monkeypatch):
    monkeypatch.setenv("HOME", str(home / "other"))
    monkeypatch.setenv("USERPROFILE", str(home / "other"))

    assert get_config_path() == home / "other" / ".nanobot" / "config.json"


def test_another_config_makes_its_folder_the_data_folder(home):
    use_config("~/elsewhere/bot.json")

    places = Places.of()

    assert get_config_path() == home / "elsewhere" / "bot.json"
    assert (places.state, places.logs) == (home / "elsewhere" / "state", home / "elsewhere" / "logs")
    assert places.cli_history == home / "elsewhere" / "history" / "cli_history"
    assert (places.pairing, places.old_sessions) == (
        home / "elsewhere" / "pairing.json",
        home / "elsewhere" / "sessions",
    )
    assert places.old_jobs == home / "elsewhere" / "cron" / "jobs.json"


def test_a_home_nobody_has_is_a_config_error():
    with pytest.raises(ConfigError, match="no such home"):
        get_workspace_path("~no-such-user-here/w")
