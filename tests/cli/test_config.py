"""`nanobot config`: one value or the file, checked before it is saved."""

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from tests.support.home import POSIX


def config(*words: str, **environ: str) -> Result:
    return CliRunner().invoke(app, ["config", *words], env=environ)


def path() -> Path:
    return Path.home() / ".nanobot" / "config.json"


def write(text: str) -> Path:
    path().parent.mkdir()
    path().write_text(text, encoding="utf-8")
    return path()


def test_path_is_that_of_the_file_whether_or_not_it_exists(tmp_path: Path):
    assert config("path").stdout == f"{path()}\n"
    assert config("path", "-c", str(tmp_path / "c.json")).stdout == f"{tmp_path / 'c.json'}\n"


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
def test_a_value_is_stored_with_the_type_of_its_key_and_read_back(key: str, given: str, stored: object):
    done = config("set", key, given)

    shown = config("get", key, "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(shown.stdout) == stored


def test_what_others_wrote_stays():
    file = write('{"mine": 1, "agents": {"defaults": {"maxTokens": 77}}}')

    config("set", "agents.defaults.model", "m")

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
def test_what_does_not_load_is_refused_and_the_file_stays(words: tuple[str, ...], hint: str):
    file = write("{}")

    done = config(*words)

    assert done.exit_code == 78
    assert hint in done.stderr
    assert file.read_text() == "{}"


def test_secrets_are_masked():
    config("set", "providers.openai.apiKey", "sk-test-0123456789abcdef")

    shown = [config("get", *key).stdout for key in ((), ("providers.openai.apiKey",), ("providers",))]

    assert "cdef" in shown[0]
    assert not [text for text in shown if "0123456789" in text]


@POSIX
def test_the_editor_saves_what_loads_and_nothing_else(tmp_path: Path):
    editor = tmp_path / "editor"
    editor.write_text(f"#!{sys.executable}\nimport os, sys\nopen(sys.argv[1], 'w').write(os.environ['TYPED'])\n")
    editor.chmod(0o755)
    file = write("{}")

    refused = config("edit", EDITOR=str(editor), VISUAL="", TYPED='{"agents": 5}')
    assert refused.exit_code == 1
    assert "agents must be an object" in refused.stderr
    assert file.read_text() == "{}"

    saved = config("edit", EDITOR=str(editor), VISUAL="", TYPED='{"mine": 1}')
    assert saved.exit_code == 0
    assert file.read_text() == '{"mine": 1}'
    assert [child.name for child in path().parent.iterdir() if "draft" in child.name] == []
