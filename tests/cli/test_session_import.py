"""`nanobot sessions import`: conversations from elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.bus.events import InboundMessage
from nanobot.cli.main import app
from nanobot.messages.repair import legalise
from nanobot.messages.types import ChatMessage, text_of
from nanobot.session.import_export import read_conversations
from nanobot.session.manager import SessionManager
from nanobot.testing import open_bot

TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Where is the 会議?", "timestamp": "2026-01-02T10:00:00", "provenance": "owner"},
    {"role": "assistant", "content": "In room 4.", "timestamp": "2026-01-02T10:00:05", "provenance": "system"},
]
CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{}"}}


@pytest.fixture
def sessions() -> SessionManager:
    return SessionManager(Path.home() / ".nanobot" / "workspace")


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["sessions", *words])


def file_of(folder: Path, content: object, name: str = "talk.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def stored(sessions: SessionManager, key: str) -> list[ChatMessage]:
    session = sessions.read(key)
    assert session is not None
    return session.messages


def test_an_export_comes_back_as_it_was(sessions: SessionManager, tmp_path: Path):
    session = sessions.get_or_create("telegram:7")
    session.messages.extend(TALK)  # type: ignore[arg-type]
    session.metadata["model"] = "some/model"
    sessions.save(session)
    run("export", "telegram:7", "-o", str(tmp_path / "out.jsonl"))
    sessions.delete("telegram:7")

    result = run("import", str(tmp_path / "out.jsonl"))

    again = sessions.read("telegram:7")
    assert (result.exit_code, result.stdout) == (0, "telegram:7: 2 messages\n")
    assert again is not None
    assert again.messages == TALK
    assert again.metadata == {"model": "some/model"}


def test_a_session_that_is_here_stays_and_another_key_helps(sessions: SessionManager, tmp_path: Path):
    path = file_of(tmp_path, lines({"_type": "metadata", "key": "cli:direct"}, *TALK), "a.jsonl")
    run("import", str(path))
    session = sessions.get_or_create("cli:direct")
    session.add_message("user", "mine")
    sessions.save(session)

    refused, taken = run("import", str(path)), run("import", str(path), "--as", "cli:old")

    assert refused.exit_code == 1
    assert "--as KEY" in refused.stderr
    assert len(stored(sessions, "cli:direct")) == 3
    assert taken.exit_code == 0
    assert len(stored(sessions, "cli:old")) == 2


def test_a_file_of_the_original_keeps_its_name_and_its_cursor(sessions: SessionManager, tmp_path: Path):
    record = {"_type": "metadata", "created_at": "2026-01-01T00:00:00", "metadata": {}, "last_consolidated": 1}
    rows = [{**row, "provenance": ""} for row in TALK]
    path = file_of(tmp_path, lines(record, *rows), "telegram_7.jsonl")

    run("import", str(path))

    session = sessions.get_or_create("telegram:7")
    assert session.last_consolidated == 1
    assert [row["provenance"] for row in session.messages] == ["file", "file"]


def test_a_list_of_messages_becomes_legal_and_leaves_its_prompt_behind(sessions: SessionManager, tmp_path: Path):
    told = [
        {"role": "system", "content": "You are a pirate."},
        {"role": "assistant", "content": "Ahoy"},
        {"role": "user", "content": "read"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "user", "content": "and?"},
    ]

    result = run("import", str(file_of(tmp_path, told)), "--as", "cli:pirate")

    rows = stored(sessions, "cli:pirate")
    assert "1 left out" in result.stdout
    assert "pirate" not in json.dumps(rows)
    assert legalise(rows) == rows
    assert all(row.get("timestamp") for row in rows)


def test_what_show_prints_as_json_can_be_imported_and_is_found_at_once(sessions: SessionManager, tmp_path: Path):
    run("import", str(file_of(tmp_path, TALK)), "--as", "cli:one")
    path = file_of(tmp_path, run("show", "cli:one", "--json").stdout, "shown.json")

    assert run("import", str(path), "--as", "cli:two").exit_code == 0
    assert stored(sessions, "cli:two") == stored(sessions, "cli:one")
    assert "会議" in run("search", "会議").stdout


def test_a_folder_of_sessions_comes_whole_says_what_stays_and_one_bad_file_keeps_no_other_out(tmp_path: Path):
    for chat in ("7", "8"):
        file_of(tmp_path, lines({"_type": "metadata", "key": f"telegram:{chat}"}, *TALK), f"telegram_{chat}.jsonl")

    first, second = run("import", str(tmp_path)), run("import", str(tmp_path))
    file_of(tmp_path, "", "a_1.jsonl")
    file_of(tmp_path, lines(*TALK), "b_2.jsonl")
    third = run("import", str(tmp_path))

    assert [line.split(": ")[0] for line in first.stdout.splitlines()] == ["telegram:7", "telegram:8"]
    assert second.exit_code == 1
    assert "telegram:7, telegram:8" in second.stderr
    assert (third.exit_code, third.stdout) == (1, "b:2: 2 messages\n")
    assert "a_1.jsonl has no chat messages" in third.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no chat messages"),
        ("Dear diary,\n", "no chat messages"),
        ("[]", "no chat messages"),
        ({"a": 1}, "no chat messages"),
        ([{"role": "user", "content": "hi"}, 7], "entry 2 is not a chat message"),
        ([{"role": "admin"}], '"admin"'),
        (lines({"name": "Ann", "role": "boss"}), '"boss"'),
        ("[" * 100_000, "no chat messages"),
    ],
)
def test_what_is_no_conversation_or_is_at_a_wrong_place_is_refused_with_a_word(
    sessions: SessionManager, tmp_path: Path, content: object, said: str
):
    result = run("import", str(file_of(tmp_path, content)))
    (tmp_path / "empty").mkdir()
    empty = str(tmp_path / "empty")
    wrong = [run("import", *words).exit_code for words in (["missing.json"], [empty, "--as", "cli:x"], [empty])]

    assert (result.exit_code, wrong) == (1, [1, 1, 1])
    assert said in result.stderr
    assert sessions.list_sessions() == []


def test_damaged_lines_stay_behind_and_are_counted(sessions: SessionManager, tmp_path: Path):
    path = file_of(tmp_path, lines(TALK[0]) + '{"role": "user", "cont\n' + lines(TALK[1]), "cli_x.jsonl")

    assert run("import", str(path)).stdout == "cli:x: 2 messages, 1 left out (damaged lines, system prompts)\n"


@pytest.mark.parametrize("cut", [1, 2, 3])
async def test_nothing_of_a_conversation_that_was_cut_off_is_gone_on_with(tmp_path: Path, cut: int):
    call = {**CALL, "function": {"name": "write_file", "arguments": '{"path": "planted.txt", "content": "x"}'}}
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "write", "provenance": "owner", "turn_id": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call], "provenance": "owner", "turn_id": "a"},
        {"role": "tool", "tool_call_id": "c1", "name": "write_file", "content": "ok", "turn_id": "a"},
    ]
    record = {"_type": "metadata", "key": "cli:x", "metadata": {"runtime_checkpoint": {}, "goal_state": {"text": "x"}}}
    [found], _ = read_conversations(file_of(tmp_path, lines(record, *rows[:cut]), "cli_x.jsonl"))
    sessions = SessionManager(tmp_path / "workspace")
    sessions.save(found.as_session("cli:x"))

    async with open_bot(tmp_path, "hello") as bot:
        result = await bot.run_turn(InboundMessage("cli", "owner", "x", "hi"))

    assert result.text == "hello"
    assert [text_of(row["content"]) for row in bot.provider.requests[0] if row["role"] == "user"][-1].startswith("hi")
    assert not (tmp_path / "workspace" / "planted.txt").exists()
    assert stored(sessions, "cli:x")[0].get("content") == "write"
    assert found.metadata == {}
