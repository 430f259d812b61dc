"""`provider list`, `skills list/show`, `tools list`: the same facts in a table, in tabs and as JSON."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.security.sandbox.landlock import can_scope
from nanobot.testing.model_server import FakeModels, Say
from tests.support.home import NANOBOT


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def rows(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*words, "--json").stdout)
    return found


def write_skill(name: str, text: str) -> None:
    folder = Path.home() / ".nanobot" / "workspace" / "skills" / name
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(text, encoding="utf-8")


def test_providers_with_their_keys_masked_and_where_they_are(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789abcdefgh")

    providers = {row["name"]: row for row in rows("provider", "list")}

    assert (providers["openai"]["key_from"], providers["openai"]["key"]) == ("OPENAI_API_KEY", "••••efgh")
    assert providers["anthropic"]["backend"] == "litellm"
    assert providers["ollama"]["local"] is True
    assert "sk-0123456789" not in run("provider", "list").stdout


def test_a_provider_of_ones_own_is_listed_too():
    path = Path.home() / ".nanobot" / "config.json"
    path.parent.mkdir()
    path.write_text('{"providers": {"attic": {"apiBase": "http://attic:1/v1", "apiKey": "k"}}}', encoding="utf-8")

    assert "attic\t***" in run("provider", "list").stdout or "attic\t••••" in run("provider", "list").stdout
    assert rows("provider", "list")[-1]["api_base"] == "http://attic:1/v1"


def test_skills_with_what_they_lack():
    write_skill(
        "fly",
        '---\nname: fly\ndescription: How to fly\nmetadata: {"nanobot": {"requires": {"bins": ["wings"]}}}\n---\n',
    )

    skill = next(row for row in rows("skills", "list") if row["name"] == "fly")

    assert (skill["source"], skill["available"], skill["missing"]) == ("workspace", False, ["program: wings"])
    assert "fly\tworkspace\tneeds program: wings\tHow to fly" in run("skills", "list").stdout


@pytest.mark.skipif(not can_scope(), reason="where Landlock closes no sockets, each command needs approval instead")
def test_a_skill_whose_sockets_the_sandbox_closes_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    write_skill(
        "mux", '---\nname: mux\ndescription: x\nmetadata: {"nanobot": {"requires": {"sandbox": ["sockets"]}}}\n---\n'
    )
    monkeypatch.setenv("PATH", str(tmp_path))  # no bubblewrap

    skill = next(row for row in rows("skills", "list") if row["name"] == "mux")

    assert not skill["available"]
    assert "install bubblewrap" in run("skills", "show", "mux").output


def test_a_skill_is_shown_as_the_agent_reads_it():
    write_skill("fly", "---\ndescription: How to fly\n---\nRun {baseDir}/fly.sh\n")

    text = run("skills", "show", "fly").stdout

    assert f"{Path('skills/fly')}/fly.sh" in text
    assert json.loads(run("skills", "show", "fly", "--json").stdout)["text"].endswith("fly.sh\n")


def test_an_unknown_skill_gets_the_nearest_one():
    write_skill("fly", "Flap.")

    result = run("skills", "show", "fli")

    assert result.exit_code == 1
    assert "Did you mean 'fly'?" in result.stderr


def test_tools_are_those_that_a_request_carries():
    with FakeModels() as server:
        server.script(Say("Hello."))
        config = {
            "agents": {"defaults": {"model": "stand-in", "provider": "custom"}},
            "providers": {"custom": {"apiKey": "k", "apiBase": server.v1}},
        }
        path = Path.home() / ".nanobot" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config), encoding="utf-8")
        assert run("agent", "-m", "hi").exit_code == 0
        carried = {tool["function"]["name"] for tool in server.chats[0].json["tools"]}

    assert {row["name"] for row in rows("tools", "list")} == carried


def test_tools_with_their_effect():
    tools = {row["name"]: row for row in rows("tools", "list")}

    assert tools["read_file"]["effect"] == "read"
    assert tools["exec"]["effect"] == "once"
    assert {"cron", "message"} <= tools.keys()
    assert tools["read_file"]["parameters"]["type"] == "object"
    assert "\nedit_file\tonce\t" in run("tools", "list").stdout


def test_a_tool_that_is_switched_off_is_not_listed():
    path = Path.home() / ".nanobot" / "config.json"
    path.parent.mkdir()
    path.write_text('{"tools": {"exec": {"enable": false}}}', encoding="utf-8")

    assert "exec" not in {row["name"] for row in rows("tools", "list")}


def test_listing_makes_nothing():
    for words in (["provider", "list"], ["skills", "list"], ["tools", "list"], ["sessions", "list"]):
        assert run(*words).exit_code == 0

    assert list(Path.home().iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_in_a_terminal_a_table_fits_the_width_and_counts_wide_characters():
    from tests.support.terminal import shown  # not on Windows

    write_skill("飞行", f"---\ndescription: {'怎么飞 ' * 40}\n---\n")

    text = shown([*NANOBOT, "skills", "list"], 80)

    lines = [line for line in text.splitlines() if line.strip()]

    from rich.cells import cell_len
    from rich.text import Text

    plain = [Text.from_ansi(line).plain for line in lines]
    columns = {
        cell_len(line[: line.index(word)]) for line in plain for word in ("builtin", "workspace") if word in line
    }
    assert len(columns) == 1
    assert max(map(cell_len, plain)) <= 80
    assert "飞行" in text


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_a_narrow_terminal_gets_the_whole_of_a_table():
    from tests.support.terminal import shown  # not on Windows

    assert run("cron", "add", "-n", "Water all the plants", "-m", "x", "--at", "2099-12-24T18:00").exit_code == 0

    text = shown([*NANOBOT, "cron", "list"], 60)

    assert {"Water", "all", "plants", "2099-12-24", "18:00"} <= {*text.split()}
    assert "…" not in text


@pytest.mark.skipif(os.name == "nt", reason="pexpect needs a POSIX terminal")
def test_a_terminal_too_narrow_for_the_columns_gets_each_row_as_a_block_with_whole_words():
    from tests.support.terminal import shown  # not on Windows

    words = re.sub(r"\x1b\[[0-9;]*m", "", shown([*NANOBOT, "provider", "list"], 60)).split()

    assert {"openrouter", "https://openrouter.ai/api/v1", "anthropic/claude-opus-4-5"} <= {*words}
    assert words.count("Backend") > 5  # in each block


def test_a_pipe_gets_no_escape_sequences():
    done = run("skills", "list")

    assert "\x1b" not in done.stdout
    assert done.exit_code == 0
