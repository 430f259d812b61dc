"""The table of commands: help, version, completion, wrong words, and what is not imported for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nanobot import __version__
from nanobot.cli.main import COMMANDS, DEFAULT_COMMANDS, GROUPS, app

runner = CliRunner()


def run(*words: str) -> tuple[int, str, str]:
    result = runner.invoke(app, list(words), prog_name="nanobot")
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("words", [[], ["-h"], ["--help"], ["help"]])
def test_help_lists_every_command_with_its_line(words: list[str]):
    code, output, _ = run(*words)

    assert code == 0
    for name, (_target, line) in COMMANDS.items():
        assert (line if " " not in name else GROUPS[name.split()[0]]) in output


@pytest.mark.parametrize("group", [group for group in GROUPS if group not in DEFAULT_COMMANDS])
def test_a_group_alone_prints_its_help(group: str):
    code, output, _ = run(*group.split())

    assert code == 0
    lines = {name: line for name, (_, line) in COMMANDS.items()} | GROUPS
    assert all(line in output for name, line in lines.items() if name.rpartition(" ")[0] == group)


@pytest.mark.parametrize(("group", "usual"), DEFAULT_COMMANDS.items())
def test_a_group_that_does_something_alone_shows_the_options_of_that(group: str, usual: str):
    _, alone, _ = run(group, "--help")
    _, itself, _ = run(group, usual, "--help")

    assert itself.partition("Options:")[2].strip() in alone
    assert all(line in alone for name, (_, line) in COMMANDS.items() if name.startswith(f"{group} "))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str):
    code, output, _ = run(*name.split(), "-h")

    assert code == 0
    assert f"Usage: nanobot {name}" in output
    assert "--debug" in output
    assert "--config" in output


@pytest.mark.parametrize("word", ["-v", "--version", "version"])
def test_version(word: str):
    assert run(word) == (0, f"nanobot {__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["stats"], "Error: No such command 'stats'. Did you mean `nanobot status`?\nSee nanobot --help\n"),
        (
            ["sessions", "lst"],
            "Error: No such command 'lst'. Did you mean `nanobot sessions list`?\nSee nanobot sessions --help\n",
        ),
        (["--versio"], "Error: No such option: --versio (Possible options: --version)\nSee nanobot --help\n"),
    ],
)
def test_wrong_words_get_the_nearest_right_one_in_two_lines(words: list[str], error: str):
    assert run(*words) == (2, "", error)
    assert [run(*wrong)[0] for wrong in (["sessions", "list", "--jsn"], ["gateway", "--port", "99999"])] == [2, 2]


def test_completion_knows_commands_groups_and_options():
    def complete(line: str) -> list[str]:
        env = {"_NANOBOT_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        result = runner.invoke(app, [], prog_name="nanobot", env=env)
        return result.stdout.split()

    assert complete("nanobot s") == ["serve", "send", "status", "sessions", "skills"]
    assert complete("nanobot sessions s") == ["show", "search"]
    assert "--json" in complete("nanobot sessions list --j")


def test_help_and_version_import_no_engine():
    heavy = {"pydantic", "asyncio", "rich", "httpx", "litellm", "openai", "mcp", "telegram", "prompt_toolkit", "yaml"}
    code = (
        "import atexit, os, sys; os._exit = lambda code: None; from nanobot.__main__ import main; main(); "
        "print(*sys.modules, file=sys.stderr)"
    )
    for word in ("--help", "--version", "sessions"):
        done = subprocess.run([sys.executable, "-c", code, word], capture_output=True, text=True)

        loaded = set(done.stderr.split())
        assert "nanobot.cli.main" in loaded
        assert not heavy & loaded
        assert not {name for name in loaded if name.startswith("nanobot.") and "cli" not in name} - {
            "nanobot.errors",
            "nanobot.__main__",
            "nanobot.plugins",
            "nanobot.utils",
            "nanobot.utils.garbage",
        }


def test_looking_things_up_loads_no_sdk_no_engine_and_no_line_editor():
    heavy = {"litellm", "openai", "mcp", "telegram", "prompt_toolkit", "httpx", "tiktoken", "jsonschema", "rich"}
    heavy |= {"slack_sdk", "aiohttp", "nanobot.runtime.build"}
    config = Path.home() / ".nanobot" / "config.json"
    config.parent.mkdir()
    on = {"enabled": True, "token": "1:x", "botToken": "xoxb-1"}
    config.write_text(json.dumps({"channels": {"telegram": on, "slack": on}}), encoding="utf-8")
    code = """
import sys
from nanobot.cli.main import app
for words in (["usage"], ["pairing", "list"], ["status"]):
    try:
        app(words)
    except SystemExit as end:
        assert not end.code
    print(*sys.modules, file=sys.stderr)
"""

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    loaded = [set(line.split()) for line in done.stderr.splitlines() if "nanobot.cli.main" in line]
    assert len(loaded) == 3, done.stderr
    assert "nanobot.cli.commands.status" in loaded[2]
    assert not {"nanobot.agent", "nanobot.providers"} & loaded[0]
    assert not heavy & loaded[2]
