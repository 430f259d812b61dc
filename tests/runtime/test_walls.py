"""What the config becomes when it is wired."""

import json
from pathlib import Path

import pytest

from nanobot.config.loader import load_config, save_config
from nanobot.runtime.sandbox import path_policy
from nanobot.security.files.paths import PathDeniedError


@pytest.mark.parametrize("name", ["config.json", "another.json"])
def test_no_file_tool_reads_the_config_in_use_or_its_backups(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_text(json.dumps({"providers": {"openai": {"apiKey": "sk-1"}}}), encoding="utf-8")
    config = load_config(path)
    config.agents.defaults.max_tokens = 100
    save_config(config, path)

    paths = path_policy(config, tmp_path, tmp_path / "workspace")

    for file in tmp_path.glob("*.json*"):
        with pytest.raises(PathDeniedError):
            paths.resolve_readable(file)
    assert len(list(tmp_path.glob("*.json*"))) == 2


@pytest.mark.parametrize("name", ["config.json", "another.json"])
def test_no_yes_lets_a_tool_write_the_config_in_use_or_what_is_ours(tmp_path: Path, name: str):
    (tmp_path / name).write_text("{}", encoding="utf-8")
    paths = path_policy(load_config(tmp_path / name), tmp_path, tmp_path / "workspace")
    everything = {f"folder:{tmp_path}", f"secrets:{tmp_path}"}

    paths.resolve_readable(tmp_path / name, everything)
    for file in (name, f"{name}.bak", "pairing.json", "state/nanobot.db", "workspace/sessions/x.jsonl"):
        with pytest.raises(PathDeniedError, match="nanobot's own state"):
            paths.resolve_writable(tmp_path / file, everything)
