"""`provider list`, `skills list/show`, `tools list`: the same facts in a table, in tabs and as JSON."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.security.sandbox.landlock import can_scope
from nanobot.testing.model_server import FakeModels, Say
from tests.support.home import NANOBOT, using


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


def test_a_skill_is_shown_as_the_agent_reads_it_and_an_unknown_one_gets_the_nearest():
    write_skill("fly", "---\ndescription: How to fly\n---\nRun {baseDir}/fly.sh\n")

    text, unknown = run("skills", "show", "fly").stdout, run("skills", "show", "fli")

    assert f"{Path('skills/fly')}/fly.sh" in text
    assert json.loads(run("skills", "show", "fly", "--json").stdout)["text"].endswith("fly.sh\n")
    assert (unknown.exit_code, "Did you mean 'fly'?" in unknown.stderr) == (1, True)


@pytest.mark.parametrize("enable", [True, False])
def test_tools_are_those_that_a_request_carries_with_their_effect(enable: bool):
    with FakeModels() as server:
        server.script(Say("Hello."))
        config = {**using("custom", "stand-in", apiKey="k", apiBase=server.v1), "tools": {"exec": {"enable": enable}}}
        path = Path.home() / ".nanobot" / "config.json"
        path.parent.mkdir()
        path.write_text(json.dumps(config), encoding="utf-8")
        assert run("agent", "-m", "hi").exit_code == 0
        carried = {tool["function"]["name"] for tool in server.chats[0].json["tools"]}

    tools = {row["name"]: row for row in rows("tools", "list")}

    assert tools.keys() == carried
    assert ("exec" in tools) is enable
    assert (tools["read_file"]["effect"], tools["edit_file"]["effect"]) == ("read", "once")
    assert tools["read_file"]["parameters"]["type"] == "object"
    assert "edit_file\tonce\t" in run("tools", "list").stdout


@pytest.mark.parametrize("subject", ["provider", "skills", "tools", "sessions", "approvals", "mcp", "pairing", "cron"])
def test_listing_makes_nothing_and_fetches_no_secret(subject: str, tmp_path: Path):
    empty = run(subject, "list")
    made = list(Path.home().iterdir())
    key = f"${{cmd:{sys.executable} -c \"open('{tmp_path / 'asked'}', 'w')\"}}"
    server = {"url": "https://example.org/mcp", "headers": {"Authorization": f"Bearer {key}"}}
    config = {"providers": {"openai": {"apiKey": key}}, "tools": {"mcpServers": {"far": server}}}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")

    listed = run(subject, "list", "--config", str(tmp_path / "config.json"))

    assert (empty.exit_code, listed.exit_code, made) == (0, 0, [])
    assert "\x1b" not in listed.stdout
    assert not (tmp_path / "asked").exists()


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


def test_an_approval_that_is_not_there_is_an_error_that_says_where_to_look():
    result = run("approvals", "forget", "folder:/nowhere")

    assert result.exit_code == 1
    assert "nanobot approvals list" in result.stderr
