"""`nanobot replay`: a turn as it happened, its prompt, and the same turn with another model."""

import asyncio
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.config.schema import Config
from nanobot.providers.base import LLMResponse
from nanobot.session.manager import SessionManager
from nanobot.testing import calls, open_bot
from nanobot.testing.model_server import Calls, Fail, FakeModels, Say

USAGE = {"prompt_tokens": 1200, "completion_tokens": 50, "cached_tokens": 1000}


@pytest.fixture
def home() -> Path:
    """Three turns: one with a tool, a slash command, one that failed."""
    data = Path.home() / ".nanobot"

    async def talk() -> None:
        async with open_bot(data, config=Config()) as bot:
            bot.provider.script(
                calls(
                    ("list_dir", {"path": "."}),
                    ("exec", {"command": "echo --token hunter2; exit 3"}),
                    ("no_such_tool", {"token": "hunter2"}),
                    text="Let me look.",
                ),
                LLMResponse("Some *files*.\nAnd more.", usage=USAGE, cost_usd=0.0042),
            )
            await bot.say("what is here?\n漢字")
            await bot.say("/help")
            bot.provider.script(ValueError("the \x1b[31msky\x07 fell"))
            await bot.say("again")

    asyncio.run(talk())
    return data


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["replay", *words])


def configure(home: Path, server: FakeModels) -> None:
    config = {
        "agents": {"defaults": {"provider": "custom", "model": "stand-in"}},
        "providers": {"custom": {"apiKey": "k", "apiBase": server.v1}},
    }
    (home / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_turn_is_shown_as_it_happened(home: Path):
    text = run("cli:direct", "-3").stdout

    assert re.search(r"^cli:direct, turn [0-9a-f]{12}, 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d, from cli$", text, re.MULTILINE)
    assert "scripted (ScriptedProvider), 0 messages before it" in text
    assert "You\n  what is here?\n  漢字\n" in text
    assert "Let me look." in text
    assert re.search(r'^  > list_dir \{"path": "\."\}  [<\d.]+ m?s$', text, re.MULTILINE)
    assert re.search(r"^  > exec .*  failed$", text, re.MULTILINE)
    assert "1,200 tokens in (1,000 cached), 50 out  $0.004" in text
    assert "  Some *files*.\n  And more.\n" in text
    assert re.search(r"^Answered after .*: 2 steps, 1,200 tokens in", text, re.MULTILINE)
    assert "\nPhases: restore " in text


def test_the_last_turn_is_the_default_and_says_why_it_failed_and_no_secret_is_shown(home: Path):
    text = run("cli:direct").stdout
    shown = [run("cli:direct", "-3", *option).stdout for option in ([], ["--json"], ["--prompt"])]

    assert "Failed (ValueError)" in text
    assert "the sky fell" in text
    assert "\x1b" not in text
    assert run("cli:direct", "-1").stdout == text
    assert [text for text in shown if "hunter2" in text] == []
    assert "--token [key]" in shown[0]


def test_a_list_has_a_line_a_turn_and_json_has_all_of_it(home: Path):
    lines = [line.split("\t") for line in run("cli:direct", "--list").stdout.splitlines()]
    turn = json.loads(run("cli:direct", "-3", "--json").stdout)
    rows = json.loads(run("cli:direct", "--list", "--json").stdout)

    assert [[line[2], line[4], line[5], line[6]] for line in lines] == [
        ["answered", "1,250", "$0.004", "what is here? 漢字"],
        ["answered", "", "", "/help"],
        ["failed", "", "", "again"],
    ]
    assert run("cli:direct", lines[0][0][:6]).stdout == run("cli:direct", "-3").stdout
    assert (turn["outcome"], turn["usage"], turn["cost_usd"]) == ("answered", USAGE, 0.0042)
    assert [call["name"] for call in turn["steps"][0]["calls"]] == ["list_dir", "exec", "no_such_tool"]
    assert [row["outcome"] for row in rows] == ["answered", "answered", "failed"]
    assert rows[0]["turn"] == turn["turn_id"]


def test_the_prompt_is_shown_as_it_was_sent(home: Path):
    text = run("cli:direct", "-3", "--prompt").stdout
    sent = json.loads(run("cli:direct", "--prompt", "--json").stdout)

    assert "# nanobot\n" in text
    assert "Current Time: " in text
    roles = ["user", "assistant", "tool", "tool", "tool", "assistant", "user"]
    assert [row["role"] for row in sent["messages"]] == roles
    assert sent["messages"][-1]["content"].startswith("again\n\n[Runtime Context")
    assert "list_dir" in [tool["function"]["name"] for tool in sent["tools"]]


WRONG = [
    (("cli:dirct",), 1, "There is no session 'cli:dirct'. Did you mean 'cli:direct'? See `nanobot sessions list`."),
    (("cli:direct", "-w", "elsewhere"), 1, "There is no session 'cli:direct'."),
    (("cli:direct", "-4"), 1, "There is no turn -4: session 'cli:direct' has 3."),
    (("cli:direct", "zzz"), 1, "nanobot replay cli:direct --list"),
    (("cli:direct", "-2", "--prompt"), 1, "called no model"),
    (("cli:direct", "--unknown"), 2, "There is no option --unknown."),
    (("cli:direct", "-1", "--list"), 2, "--list takes no turn"),
    (("cli:direct", "--prompt", "--against", "m"), 2, "cannot be combined"),
]


def test_what_cannot_be_shown_is_said_in_a_line_as_is_a_conversation_that_was_deleted(home: Path):
    for words, code, said in WRONG:
        result = run(*words)

        assert (result.exit_code, result.stdout) == (code, ""), words
        assert said in result.stderr
    assert CliRunner().invoke(app, ["sessions", "delete", "cli:direct", "--yes"]).exit_code == 0
    assert run("cli:direct").exit_code == 1
    assert not [*(home / "state" / "traces").glob("*.jsonl")]


def test_a_session_from_before_there_were_traces_shows_what_its_rows_tell(home: Path):
    manager = SessionManager(home / "workspace")
    session = manager.get_or_create("telegram:1")
    names = {"x": "exec", "y": "list_dir"}
    steps = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}} for id_, name in names.items()
    ]
    session.add_message("user", "hello", turn_id="a")
    session.add_message("assistant", "one", turn_id="a", tool_calls=steps)
    session.add_message("tool", "line\n" * 20, turn_id="a", tool_call_id="y", name="list_dir")
    session.add_message("user", "faster", turn_id="a")
    session.add_message("assistant", "two", turn_id="a")
    manager.save(session)

    text = run("telegram:1").stdout

    assert "This turn was not traced" in text
    said = [
        "  one",
        "  > exec {}",
        "    no result was stored",
        "    ... 15 more lines",
        "You, meanwhile",
        "  faster",
        "  two",
    ]
    assert [line for line in text.splitlines() if line in said] == said
    assert "Answered" in text
    assert run("telegram:1", "--against", "m").exit_code == 1


def test_against_another_model_both_are_told_step_by_step_with_what_they_cost(home: Path):
    with FakeModels(strict=False) as server:
        configure(home, server)
        server.script(Calls(("list_dir", {"path": "/"})), Say("Other files.\nAnd more."), Say("No."))
        before = {path: path.read_bytes() for path in (home / "workspace").rglob("*") if path.is_file()}

        result = run("cli:direct", "-3", "--against", "stand-in")

        compared = json.loads(run("cli:direct", "-3", "--against", "stand-in", "--json").stdout)
        sent = [request.json for request in server.chats]
    assert result.exit_code == 0
    assert "First difference: other calls in step 1, list_dir" in result.stdout
    assert "This call was not run: the turn is being replayed" in result.stdout
    assert "-Some *files*.\n+Other files.\n And more.\n" in result.stdout
    assert len(re.findall(r"^Answered after .*: 2 steps, [\d,]+ tokens in .* out", result.stdout, re.MULTILINE)) == 2
    assert {path: path.read_bytes() for path in (home / "workspace").rglob("*") if path.is_file()} == before
    assert [row["role"] for row in sent[0]["messages"]] == ["system", "user"]
    assert compared["first_difference"]["what"] == "a call less"
    assert (compared["recorded"]["model"], compared["replayed"]["model"]) == ("scripted", "stand-in")
    assert compared["replayed"]["text"] == "No."


def test_against_a_model_that_cannot_be_asked_says_so_and_fails_also_where_the_turn_did(home: Path):
    with FakeModels(strict=False) as server:
        configure(home, server)
        server.default = Fail(401, "bad key")

        results = [run("cli:direct", turn, "--against", "stand-in") for turn in ("-3", "-1")]

    for result in results:
        assert result.exit_code == 1
        assert "It failed: The API key was rejected" in result.stdout
        assert "No difference" not in result.stdout
