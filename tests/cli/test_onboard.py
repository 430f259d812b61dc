"""Onboarding: from an empty home to a model that answers, without editing a file."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.testing.model_server import Fail, FakeModels, Say
from tests.support.home import NANOBOT

pexpect = pytest.importorskip("pexpect")
KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def models() -> Iterator[FakeModels]:
    with FakeModels(api_key=KEY, default=Say("Hello there.")) as server:
        yield server


def onboard(*words: str, answers: str = "") -> Result:
    return CliRunner().invoke(app, ["onboard", *words], input=answers)


def config_path() -> Path:
    return Path.home() / ".nanobot" / "config.json"


def config() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(config_path().read_text(encoding="utf-8"))
    return found


def flags(models: FakeModels, key: str = KEY) -> list[str]:
    return ["--provider", "openai", "--api-key", key, "--api-base", models.v1, "--model", "gpt-x"]


def test_yes_makes_config_and_workspace_for_the_owner_alone_and_says_what_to_type_next(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEEPSEEK_API_KEY", KEY)

    result = onboard("--yes")

    assert result.exit_code == 0
    assert config() == {}
    assert (Path.home() / ".nanobot/workspace/AGENTS.md").is_file()
    assert "nanobot agent" in result.stdout
    assert "deepseek" in result.stdout and "DEEPSEEK_API_KEY" in result.stdout
    assert KEY not in config_path().read_text(encoding="utf-8") + result.output
    if os.name != "nt":
        home = config_path().parent
        assert [path.stat().st_mode & 0o777 for path in (config_path(), home, home / "workspace")] == [
            0o600,
            0o700,
            0o700,
        ]


def test_flags_are_tried_with_one_completion_and_saved_in_a_few_lines(models: FakeModels):
    result = onboard("--yes", *flags(models))

    assert result.exit_code == 0
    assert "Hello there." in result.stdout
    assert [request.json["model"] for request in models.chats] == ["gpt-x"]
    assert config() == {
        "agents": {"defaults": {"model": "gpt-x", "provider": "openai"}},
        "providers": {"openai": {"apiKey": KEY, "apiBase": models.v1}},
    }


def test_a_local_server_is_asked_for_its_models(monkeypatch: pytest.MonkeyPatch):
    with FakeModels(models=("small", "large")) as local:
        monkeypatch.setenv("OLLAMA_HOST", local.url)

        result = onboard("--yes", "--provider", "ollama")

    assert result.exit_code == 0, result.output
    assert config()["agents"] == {"defaults": {"model": "small", "provider": "ollama"}}
    assert config()["providers"] == {"ollama": {"apiBase": local.v1}}


def test_flags_that_do_not_work_are_saved_where_nobody_can_be_asked_and_the_exit_code_says_so(models: FakeModels):
    result = onboard("--yes", *flags(models, key="sk-wrong"))

    assert result.exit_code == 1
    assert "Warning: The API key was rejected" in result.stderr
    assert "status --probe" in result.stderr
    assert config_path().exists()


def test_flags_change_an_existing_config_and_leave_the_rest_as_it_was(models: FakeModels):
    config_path().parent.mkdir()
    written = {"agents": {"defaults": {"maxTokens": 77, "modelPreset": "p"}}, "modelPresets": {"p": {"model": "m"}}}
    config_path().write_text(json.dumps({**written, "mine": 1}), encoding="utf-8")
    before = config_path().read_bytes()

    kept = onboard("--yes")
    after = config_path().read_bytes()
    onboard("--yes", *flags(models))

    assert "Config already exists" in kept.stdout and "existing values preserved" in kept.stdout
    assert after == before
    assert (config()["mine"], config()["modelPresets"]) == (1, written["modelPresets"])
    assert config()["agents"] == {"defaults": {"maxTokens": 77, "model": "gpt-x", "provider": "openai"}}


def test_reset_starts_over_keeps_the_old_config_beside_and_overwrites_no_file_of_the_workspace():
    agents = Path.home() / ".nanobot/workspace/AGENTS.md"
    agents.parent.mkdir(parents=True)
    agents.write_text("mine", encoding="utf-8")
    config_path().write_text("{broken", encoding="utf-8")

    result = onboard("--yes", "--reset")

    backups = [path for path in config_path().parent.iterdir() if path.name.endswith(".bak") and path.name.count("-")]
    assert result.exit_code == 0
    assert config() == {}
    assert [path.read_text(encoding="utf-8") for path in backups] == ["{broken"]
    assert str(backups[0]) in result.stdout
    assert agents.read_text(encoding="utf-8") == "mine"
    assert (agents.parent / "SOUL.md").is_file()


@pytest.mark.parametrize(
    ("broken", "kept", "named"),
    [
        ('{"agents": {"defaults": {"maxTokens": 77, "botName": "Ann",}}}', {"maxTokens": 77, "botName": "Ann"}, ":1:"),
        ('{"agents": {"defaults": {"maxTokens": "many", "botName": "Ann"}}}', {"botName": "Ann"}, "maxTokens must be"),
    ],
    ids=["not JSON", "a wrong value"],
)
def test_a_broken_config_is_repaired_and_a_copy_of_it_kept(broken: str, kept: dict[str, Any], named: str):
    config_path().parent.mkdir()
    config_path().write_text(broken, encoding="utf-8")

    result = onboard("--yes")

    assert result.exit_code == 0, result.output
    assert named in result.stderr
    assert config()["agents"]["defaults"] == kept
    assert broken in [file.read_text(encoding="utf-8") for file in config_path().parent.glob("config.json.*bak")]


def test_a_model_that_does_not_answer_may_be_tried_again_or_left_unsaved(models: FakeModels):
    config_path().parent.mkdir()
    config_path().write_text('{"agents": {"defaults": {"maxTokens": "many"}}}', encoding="utf-8")
    models.script(Fail(500), Fail(500), Say("Hello there."))

    left = onboard(*flags(models), answers="leave\n")
    before = config_path().read_text(encoding="utf-8")
    result = onboard(*flags(models), answers="retry\n")

    assert left.exit_code == 1
    assert "The provider is overloaded or failing" in left.stdout
    assert "many" in before  # a broken config stays as it is until something is saved
    assert result.exit_code == 0, result.output
    assert config()["agents"]["defaults"]["model"] == "gpt-x"


def test_another_workspace_is_remembered_and_another_config_file_made_where_it_was_named(tmp_path: Path):
    onboard("--yes", "-w", str(tmp_path / "desk"), "-c", str(tmp_path / "deep" / "mine.json"))

    written = json.loads((tmp_path / "deep" / "mine.json").read_text(encoding="utf-8"))
    assert written == {"agents": {"defaults": {"workspace": str(tmp_path / "desk")}}}
    assert (tmp_path / "desk" / "AGENTS.md").is_file()
    assert not config_path().exists()


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (["--provider", "opnai"], 2, "There is no provider 'opnai'. Did you mean openai"),
        (["--api-key", "x"], 2, "Add --provider"),
        (["--provider", "azureOpenai"], 2, "Give one with --model"),
        (["--provider", "ollama"], 2, "Start it, or give one with --model"),
        (["--api-base", "localhost:28911/v1", "--model", "m"], 78, "providers.custom.apiBase must be"),
    ],
    ids=str,
)
def test_flags_that_do_not_fit_are_refused_before_anything_is_saved(
    monkeypatch, words: list[str], code: int, error: str
):
    monkeypatch.setenv("OLLAMA_HOST", "127.0.0.1:1")

    result = onboard("--yes", *words)

    assert result.exit_code == code
    assert error in result.stderr
    assert not config_path().exists()


@pytest.mark.parametrize(
    ("answers", "told"), [("", "No interactive input"), ("\n\n", "empty: continue without a model")]
)
def test_who_has_no_key_yet_or_cannot_be_asked_goes_on_without_a_model(answers: str, told: str):
    result = onboard(answers=answers)

    assert (result.exit_code, config()) == (0, {})
    assert told in result.stdout and "a stand-in answers" in result.stdout


def test_a_rejected_answer_has_its_reason():
    result = onboard(answers="custom\n\nlocalhost:28911\n")

    assert "A URL is needed." in result.stdout
    assert "'localhost:28911' is not a URL: it must begin with http:// or https://." in result.stdout


def test_less_known_providers_are_one_question_further():
    result = onboard(answers="more\nmistral\n")

    assert "API key for Mistral AI" in result.stdout
    assert result.exit_code == 1
    assert "Aborted." in result.stderr
    assert not config_path().exists()


@pytest.mark.parametrize("asks", [True, False])
def test_a_base_url_that_lacks_its_version_is_made_whole(models: FakeModels, asks: bool):
    flags = ["--yes", "--api-base", models.url, "--api-key", KEY, "--model", "stand-in"]
    result = onboard(answers=f"custom\n{models.url}\n{KEY}\n") if asks else onboard(*flags)

    assert f"Found the API at {models.v1}." in result.stdout
    assert "Hello there." in result.stdout
    assert config()["providers"] == {"custom": {"apiKey": KEY, "apiBase": models.v1}}


def test_a_model_that_does_not_answer_may_be_tried_again_or_saved_anyway(models: FakeModels):
    models.script(Fail(401), Fail(401))

    again = onboard(*flags(models, key="sk-wrong"), answers=f"again\ncustom\n{models.v1}\n{KEY}\nsave\n")

    assert again.exit_code == 0, again.output
    assert config()["agents"] == {"defaults": {"model": "stand-in", "provider": "custom"}}


def test_who_changes_the_answers_finds_the_earlier_ones_as_defaults(models: FakeModels):
    models.script(Fail(500))

    result = onboard(answers=f"custom\n{models.v1}\n{KEY}\nagain\n\n\n\n")

    assert result.exit_code == 0, result.output
    assert config()["providers"] == {"custom": {"apiKey": KEY, "apiBase": models.v1}}
    assert config()["agents"] == {"defaults": {"model": "stand-in", "provider": "custom"}}


def test_a_rejected_key_is_said_at_once_and_may_be_entered_again(models: FakeModels):
    result = onboard("--provider", "custom", "--api-base", models.v1, answers=f"sk-wrong\n\n{KEY}\n")

    assert result.exit_code == 0, result.output
    assert "the API key was rejected (HTTP 401): Incorrect API key provided" in result.stdout
    assert "sk-wrong" not in result.stdout
    assert result.stdout.count("Checking the key ...") == 2
    assert config()["providers"]["custom"]["apiKey"] == KEY
    assert len(models.chats) == 1


@pytest.mark.parametrize(("decision", "stored"), [("keep\nm\nsave", "sk-wrong"), ("later", None)])
def test_a_rejected_key_may_be_kept_or_the_model_left_for_later(models: FakeModels, decision: str, stored: str | None):
    result = onboard("--provider", "openai", "--api-base", models.v1, answers=f"sk-wrong\n{decision}\n")

    assert result.exit_code == 0, result.output
    assert config().get("providers", {}).get("openai", {}).get("apiKey") == stored


def test_a_model_of_a_known_provider_is_chosen_from_its_own_list():
    with FakeModels(api_key=KEY, models=("small", "large"), default=Say("Hello there.")) as models:
        result = onboard("--provider", "openai", "--api-base", models.v1, answers=f"{KEY}\nlarge\n\n")

    assert result.exit_code == 0, result.output
    assert "https://platform.openai.com/api-keys" in result.stdout
    assert config()["agents"]["defaults"]["model"] == "large"


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that refuses even root")
def test_a_home_that_refuses_or_is_a_file_is_said_in_a_line_before_the_first_question(monkeypatch, tmp_path: Path):
    (tmp_path / "home").write_text("no folder", encoding="utf-8")
    results = []
    for home in ("/proc", str(tmp_path / "home")):
        monkeypatch.setenv("HOME", home)
        results.append(onboard(answers="later\n"))

    assert results[0].stderr.startswith("Error: /proc/.nanobot cannot be written")
    for result in results:
        assert (result.exit_code in (1, 78), result.stdout) == (True, "")
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_the_wizard_takes_a_newcomer_to_a_real_reply_with_arrow_keys():
    from tests.support.terminal import at_home, on_screen  # not on Windows

    with FakeModels(default=Say("Hello there."), models=("small", "large")) as models:
        env = at_home(OLLAMA_HOST=models.url)
        child = on_screen([*NANOBOT, "onboard"], env=env, dimensions=(40, 60), timeout=20)

        child.expect("Step 1 of 3: Model")
        child.expect("Which model provider")
        child.expect("Arrow keys move")
        child.send("\r")  # the server that answers stands first
        child.expect("Which model")
        child.expect("large")
        child.send("\x1b[B")
        child.send("\r")
        child.expect(r"Which model\?\S* large")  # the list became one line
        child.expect("Hello there.")
        child.expect("Step 2 of 3")
        child.expect("enough for now")
        child.send("\r")
        child.expect("Step 3 of 3")
        child.expect("Next:")
        child.expect(pexpect.EOF)
        child.close()

        assert child.exitstatus == 0
        assert config()["agents"] == {"defaults": {"model": "large", "provider": "ollama"}}
        assert models.chats[-1].json["model"] == "large"


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_a_key_typed_into_the_wizard_is_not_shown_and_ctrl_c_leaves_it_without_saving(models: FakeModels):
    from tests.support.terminal import at_home, on_screen  # not on Windows

    words = ["onboard", "--provider", "openai", "--api-base", models.v1, "--model", "m"]
    child = on_screen([*NANOBOT, *words], env=at_home(), dimensions=(40, 100), timeout=20, encoding="utf-8")

    child.expect("API key for OpenAI")
    child.send(f"{KEY}\r")
    child.expect("Hello there.")
    seen = child.before
    child.expect("enough for now")
    child.send("\x03")
    child.expect_exact("Nothing was saved.")
    child.expect(pexpect.EOF)
    child.close()

    assert child.exitstatus == 130
    assert KEY not in seen
    assert not config_path().parent.exists()


def test_a_rotated_key_is_used_at_once_without_deleting_anything(models: FakeModels):
    onboard("--yes", *flags(models, key="sk-old-0123456789abcdef"))
    assert "The API key was rejected" in CliRunner().invoke(app, ["status", "--probe"]).stderr

    text = config_path().read_text(encoding="utf-8").replace("sk-old-0123456789abcdef", KEY)
    config_path().write_text(text, encoding="utf-8")
    result = CliRunner().invoke(app, ["status", "--probe"])

    assert result.exit_code == 0
    assert "Hello there." in result.stdout
    assert models.chats[-1].headers["authorization"] == f"Bearer {KEY}"
