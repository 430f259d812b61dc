"""A home of its own for each test, and an environment without keys."""

import json
import os

import pytest

from nanobot.config.paths import use_config
from nanobot.config.provider_table import PROVIDERS


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in [*os.environ]:
        if name.upper().startswith("NANOBOT_"):
            monkeypatch.delenv(name)
    for spec in PROVIDERS:
        for name in spec.env_keys:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    use_config(None)
    yield tmp_path
    use_config(None)


@pytest.fixture
def config_file(tmp_path):
    """Write a config; text as it is, anything else as JSON."""

    def write(content):
        path = tmp_path / "config.json"
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            text = content if isinstance(content, str) else json.dumps(content, indent=2)
            path.write_text(text, encoding="utf-8")
        return path

    return write
