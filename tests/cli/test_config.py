"""`nanobot config`: one value or the file, checked before it is saved."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.home import POSIX, Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def write(home: Home, text: str) -> Path:
    home.data.mkdir(exist_ok=True)
    file = home.data / "config.json"
    file.write_text(text, encoding="utf-8")
    return file


def test_path_is_that_of_the_file_whether_or_not_it_exists(home: Home, tmp_path: Path):
    assert home.run("config", "path").out == f"{home.data / 'config.json'}\n"
    assert home.run("config", "path", "-c", str(tmp_path / "c.json")).out == f"{tmp_path / 'c.json'}\n"


@pytest.mark.parametrize(
    ("key", "given", "stored"),
    [
        ("agents.defaults.model", "gpt-5-mini", "gpt-5-mini"),
        ("agents.defaults.max_tokens", "77", 77),
        ("agents.defaults.botName", "7", "7"),
        ("tools.restrictToWorkspace", "true", True),
        ("channels.telegram.allowFrom", '["1", "2"]', ["1", "2"]),
    ],
)
def test_a_value_is_stored_with_the_type_of_its_key_and_read_back(home: Home, key: str, given: str, stored: object):
    done = home.run("config", "set", key, given)

    shown = home.run("config", "get", key, "--json")
    assert (done.code, done.aside) == (0, "")
    assert json.loads(shown.out) == stored


def test_what_others_wrote_stays(home: Home):
    file = write(home, '{"mine": 1, "agents": {"defaults": {"maxTokens": 77}}}')

    home.run("config", "set", "agents.defaults.model", "m")

    assert json.loads(file.read_text()) == {"mine": 1, "agents": {"defaults": {"maxTokens": 77, "model": "m"}}}


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("set", "agents.defaults.modelx", "m"), "Did you mean model?"),
        (("get", "agents.defaults.modelx"), "Did you mean model?"),
        (("set", "agents.defaults.maxTokens", "many"), 'agents.defaults.maxTokens must be a whole number, not "many"'),
        (("set", "providers.custom.apiBase", "localhost:1"), "providers.custom.apiBase must be"),
    ],
    ids=str,
)
def test_what_does_not_load_is_refused_and_the_file_stays(home: Home, words: tuple[str, ...], hint: str):
    file = write(home, "{}")

    done = home.run("config", *words)

    assert done.code == 78
    assert hint in done.complaint
    assert file.read_text() == "{}"


def test_secrets_are_masked(home: Home):
    home.run("config", "set", "providers.openai.apiKey", "sk-test-0123456789abcdef")

    shown = [home.run("config", "get", *key).out for key in ((), ("providers.openai.apiKey",), ("providers",))]

    assert "cdef" in shown[0]
    assert not [text for text in shown if "0123456789" in text]


@POSIX
def test_the_editor_saves_what_loads_and_nothing_else(home: Home, tmp_path: Path):
    editor = tmp_path / "editor"
    editor.write_text(f"#!{sys.executable}\nimport os, sys\nopen(sys.argv[1], 'w').write(os.environ['TYPED'])\n")
    editor.chmod(0o755)
    file = write(home, "{}")

    refused = home.run("config", "edit", environ={"EDITOR": str(editor), "TYPED": '{"agents": 5}'})
    assert refused.code == 1
    assert "agents must be an object" in refused.aside
    assert file.read_text() == "{}"

    saved = home.run("config", "edit", environ={"EDITOR": str(editor), "TYPED": '{"mine": 1}'})
    assert saved.code == 0
    assert file.read_text() == '{"mine": 1}'
    assert [child.name for child in home.data.iterdir() if "draft" in child.name] == []
