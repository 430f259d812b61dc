"""`nanobot mcp`: what is set up, what it offers, and why it cannot be reached."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from tests.support.mcp import MCP_SERVER


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.fixture(autouse=True)
def config() -> Path:
    lamp = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER, "--token", "geheim-geheim"]}
    servers: dict[str, Any] = {
        "lamp": {**lamp, "enabledTools": ["echo", "pid", "mcp_lamp_peek"]},
        "gone": {"command": "no-such-program"},
        "typo": {"url": "htp:/example.org"},
        "far": {"url": "https://me:geheim-geheim@example.org/mcp?key=geheim-geheim"},
    }
    path = Path.home() / ".nanobot" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"tools": {"mcpServers": servers}}), encoding="utf-8")
    return path


def test_servers_are_listed_without_being_started():
    listed = run("mcp", "list")

    assert "lamp\tstdio\tunknown yet\t" in listed.stdout
    assert "far\tstreamableHttp\tunknown yet\thttps://example.org/mcp" in listed.stdout
    assert "geheim" not in listed.stdout


def test_a_server_that_is_met_is_remembered_also_with_a_secret_and_its_tools_are_listed(config: Path):
    config.with_name("token").write_text("geheim-geheim", encoding="utf-8")
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace("geheim-geheim", "${file:token}", 1), encoding="utf-8")

    tested, listed = run("mcp", "test", "lamp"), run("mcp", "list")

    names = [row["name"] for row in json.loads(run("tools", "list", "--json").stdout)]
    facts = json.loads(run("mcp", "list", "--json").stdout)[0]
    assert tested.exit_code == 0, tested.output
    assert "child 1 answered in" in tested.stdout
    assert "Excluded by enabledTools: big, die" in tested.stdout
    assert "In enabledTools, but the server does not have them: mcp_lamp_peek." in tested.stdout
    assert [name for name in names if name.startswith("mcp_")] == ["mcp_lamp_echo", "mcp_lamp_pid"]
    assert (facts["met"], "echo" in facts["tools"]) == (True, True)
    assert re.search(r"^lamp\tstdio\t\d+\t", listed.stdout, re.MULTILINE)
    assert "geheim" not in listed.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["test", "gone"], "There is no program 'no-such-program'"),
        (["test", "typo"], "'htp:/example.org' is not a web URL"),
        (["test", "lmap"], "Did you mean 'lamp'?"),
        (
            ["add", "down", "--url", "http://127.0.0.1:1/mcp"],
            "The MCP server down cannot be reached: nothing answers at http://127.0.0.1:1/mcp.",
        ),
    ],
    ids=str,
)
def test_a_server_that_cannot_be_reached_fails_with_the_reason(words: list[str], said: str):
    done = run("mcp", *words)

    assert (done.exit_code, said in done.stderr, "Errno" in done.output) == (1, True, False)


def test_without_servers_there_is_a_sentence(config: Path):
    config.write_text("{}", encoding="utf-8")

    assert "No MCP server is configured" in run("mcp", "list").stderr
    assert json.loads(run("mcp", "list", "--json").stdout) == []


def stored(config: Path) -> dict[str, Any]:
    servers: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))["tools"]["mcpServers"]
    return servers


def test_a_server_is_tried_added_and_removed_and_the_rest_of_the_config_stays(config: Path, monkeypatch):
    monkeypatch.setenv("LAMP_TOKEN", "geheim-geheim")
    before = stored(config)

    added = run("mcp", "add", "desk", "--env", "TOKEN=${LAMP_TOKEN}", "--", sys.executable, "-I", "-S", MCP_SERVER)

    assert added.exit_code == 0, added.output
    assert "child 1 answered in" in added.stdout
    entry = {"command": sys.executable, "args": ["-I", "-S", MCP_SERVER], "env": {"TOKEN": "${LAMP_TOKEN}"}}
    assert stored(config) == {**before, "desk": entry}
    assert run("mcp", "add", "desk", "--", "true").exit_code == 1
    assert run("mcp", "remove", "desk").exit_code == 0
    assert stored(config) == before


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["new", "--", "no-such-program"], "no-such-program"),
        (["new", "--url", "htp:/example.org"], "htp:/example.org"),
        (["new"], "mcp add time --"),
        (["new", "--env", "TOKEN", "--", "true"], "KEY=VALUE"),
        (["a.b", "--", "true"], "letters, digits"),
        (["lamp", "--", "true"], "--replace"),
    ],
)
def test_a_server_that_fails_or_is_not_described_right_is_not_added(config: Path, words: list[str], hint: str):
    before = stored(config)

    refused = run("mcp", "add", *words)

    assert refused.exit_code in (1, 2)
    assert hint in refused.stderr
    assert stored(config) == before
