"""`nanobot approvals`: what "always" was said to, shown and forgotten."""

import json
import sys
from pathlib import Path

from typer.testing import CliRunner

from nanobot.cli.main import app
from nanobot.config.paths import DataPaths, get_data_dir
from nanobot.security.grants import Grants
from nanobot.utils.clock import SystemClock


def run(*words: str):
    return CliRunner().invoke(app, ["approvals", *words])


def test_what_always_was_said_to_is_listed_and_can_be_forgotten():
    grants = Grants(DataPaths(get_data_dir()).database, SystemClock())
    grants.add(["folder:/srv/files"], outside=False)

    shown = run("list").stdout
    told = json.loads(run("list", "--json").stdout)
    forgotten = run("forget", "folder:/srv/files")

    assert "folder:/srv/files" in shown
    assert [one["rule"] for one in told] == ["folder:/srv/files"]
    assert "I ask about folder:/srv/files again" in forgotten.stdout
    assert "There are no permanent approvals." in run("list").output


def test_listing_approvals_resolves_no_secret(tmp_path: Path):
    resolved = tmp_path / "resolved"
    key = f"${{cmd:{sys.executable} -c \"open('{resolved}', 'w'); print('a-key')\"}}"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"providers": {"openai": {"apiKey": key}}}), encoding="utf-8")

    result = run("list", "--config", str(config))

    assert result.exit_code == 0
    assert not resolved.exists()


def test_a_rule_that_is_not_there_is_an_error_that_says_where_to_look():
    result = run("forget", "folder:/nowhere")

    assert result.exit_code == 1
    assert "nanobot approvals list" in result.stderr
