"""`nanobot sessions`: list, show, search, export and delete what the agent stored."""

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.session.manager import SessionManager

CALL = {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "notes.md"}'}}


@pytest.fixture
def sessions() -> SessionManager:
    """A workspace with two conversations, one of them with a tool call."""
    manager = SessionManager(Path.home() / ".nanobot" / "workspace")
    put(
        manager,
        "cli:direct",
        {
            "role": "user",
            "content": "Was steht in den Notizen? 你好",
            "runtime_context": "[Runtime Context] secret time",
        },
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "name": "read_file", "content": "1\tbuy milk\n2\tcall Ann"},
        {"role": "user", "content": "go on", "origin": "system"},
        {"role": "assistant", "content": "Milk, and a call to **Ann**."},
    )
    time.sleep(0.002)  # the newer one has a later time
    put(manager, "telegram:42", {"role": "user", "content": "hello\n[Runtime Context]\nCurrent Time: now"})
    return manager


def put(manager: SessionManager, key: str, *rows: dict[str, Any]) -> None:
    session = manager.get_or_create(key)
    for row in rows:
        session.add_message(**row)
    manager.save(session)


def run(*words: str, answers: str = "") -> Result:
    return CliRunner().invoke(app, ["sessions", *words], input=answers)


def test_list_shows_the_newest_first_with_its_first_words(sessions: SessionManager):
    lines = [line.split("\t") for line in run("list").stdout.splitlines()]

    assert [line[0] for line in lines] == ["telegram:42", "cli:direct"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", lines[0][1])
    assert lines[0][2:] == ["1", "hello"]
    assert lines[1][2:] == ["5", "Was steht in den Notizen? 你好"]


def test_list_and_the_chat_show_the_title_that_was_given_on_the_page(sessions: SessionManager):
    session = sessions.get_or_create("cli:direct")
    session.metadata["title"] = "Milk and Ann"
    sessions.save(session)

    assert "\tMilk and Ann\n" in run("list").stdout
    listed = CliRunner().invoke(app, ["agent", "-s", "cli:direct", "/sessions"]).stdout
    assert "Milk and Ann" in listed


def test_list_as_json_counts_no_damaged_lines(sessions: SessionManager):
    with open(sessions.folder / "telegram_42.jsonl", "ab") as end:
        end.write(b'no JSON\n\n{"role": "user", "content": "cut o\n')

    rows = json.loads(run("list", "--json").stdout)

    assert [(row["name"], row["messages"], row["archived"]) for row in rows] == [
        ("telegram:42", 1, False),
        ("cli:direct", 5, False),
    ]


def test_list_without_sessions_says_how_to_begin_and_knows_another_workspace(tmp_path: Path):
    put(SessionManager(tmp_path), "cli:there", {"role": "user", "content": "over there"})
    result = run("list")

    assert run("list", "-w", str(tmp_path)).stdout.startswith("cli:there")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "nanobot agent" in result.stderr
    assert json.loads(run("list", "--json").stdout) == []


def test_show_reads_as_a_conversation(sessions: SessionManager):
    text = run("show", "cli:direct").stdout

    assert "Was steht in den Notizen? 你好" in text
    assert '> read_file {"path": "notes.md"} -> 1 buy milk 2 call Ann\n' in text
    assert "Milk, and a call to **Ann**." in text
    assert "secret time" not in text
    assert "go on" not in text


def test_show_as_json_has_the_rows_as_stored_and_can_show_only_the_last(sessions: SessionManager):
    shown = json.loads(run("show", "cli:direct", "--json").stdout)
    last = run("show", "cli:direct", "-n", "1").stdout

    assert shown["key"] == "cli:direct"
    assert shown["messages"][0]["runtime_context"] == "[Runtime Context] secret time"
    assert "Ann" in last and "Notizen" not in last
    assert "Current Time" not in run("show", "telegram:42").stdout  # as old sessions hold it


def calls(*arguments: str) -> dict[str, Any]:
    """A step that calls a tool with each of these arguments, all under one id."""
    made = [{"id": "x", "type": "function", "function": {"name": "exec", "arguments": each}} for each in arguments]
    return {"role": "assistant", "content": "", "tool_calls": made}


def test_each_call_stands_with_its_own_result_in_a_line_and_a_failure_with_its_reason(sessions: SessionManager):
    result = {"role": "tool", "tool_call_id": "x", "name": "exec"}
    put(
        sessions,
        "cli:odd",
        calls("first"),
        {**result, "content": "plums"},
        calls("again"),
        {**result, "content": "line\n" * 500},
        calls("a" * 5000),
        {**result, "content": "long"},
        calls("echo `date`"),
        {"role": "assistant", "content": "No answer came.", "error": "ProviderTimeoutError"},
    )

    shown, exported = (run(*words).stdout for words in (["show", "cli:odd"], ["export", "cli:odd", "-f", "markdown"]))

    assert "exec first -> plums\n" in shown and "exec again -> line line" in shown
    assert max(map(len, shown.splitlines())) < 300
    assert "> exec echo `date` -> no result" in shown and "- `` exec echo `date` -> no result ``" in exported
    assert "[failed: ProviderTimeoutError]" in shown


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
TABLES = st.dictionaries(st.sampled_from(["id", "function", "name", "arguments", "text", "type"]), SCALARS, max_size=3)
CALLS = st.fixed_dictionaries({"id": SCALARS, "function": SCALARS | TABLES})
ANYTHING = SCALARS | TABLES | st.lists(SCALARS | TABLES | CALLS, max_size=2)
FIELDS = ("content", "tool_calls", "tool_call_id", "timestamp", "error", "origin")
ROWS = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "other"])}, optional=dict.fromkeys(FIELDS, ANYTHING)
)


@given(st.lists(ROWS, max_size=3))
def test_whatever_a_file_holds_can_be_shown(sessions: SessionManager, rows: list[dict[str, Any]]):
    (sessions.folder / "cli_any.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    assert [run(*words, "cli:any").exit_code for words in (["show"], ["export", "-f", "markdown"])] == [0, 0]


def test_what_was_stored_cannot_steer_the_terminal(sessions: SessionManager):
    put(sessions, "cli:direct", {"role": "assistant", "content": "red \x1b[31malert\x1b]0;title\x07"})

    assert "\x1b" not in run("show", "cli:direct").stdout
    assert "\x1b" not in run("search", "alert").stdout


@pytest.mark.parametrize("command", ["show", "export", "delete"])
def test_an_unknown_key_gets_the_nearest_one(sessions: SessionManager, command: str):
    result = run(command, "cli:dir")

    assert result.exit_code == 1
    assert result.stderr == (
        "Error: There is no session 'cli:dir'. Did you mean 'cli:direct'? See `nanobot sessions list`.\n"
    )


def test_an_archived_session_goes_by_the_name_of_its_file(sessions: SessionManager):
    archived = sessions.archive("cli:direct")
    assert archived is not None
    stem = archived.stem

    assert stem in run("list").stdout
    assert "buy milk" in run("show", stem).stdout
    assert run("search", "Ann").stdout.startswith(stem)
    assert run("show", "cli:direct").exit_code == 1


def test_export_as_markdown_into_a_file_of_the_owners_alone(sessions: SessionManager, tmp_path: Path):
    result = run("export", "cli:direct", "--format", "markdown", "-o", str(tmp_path / "chat.md"))

    text = (tmp_path / "chat.md").read_text(encoding="utf-8")
    assert result.stdout == ""
    assert text.startswith("# cli:direct\n")
    assert "## You" in text
    assert '- `read_file {"path": "notes.md"} -> 1 buy milk 2 call Ann`' in text
    if os.name != "nt":
        assert (tmp_path / "chat.md").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.name == "nt", reason="there are no named pipes in folders")
def test_export_into_a_pipe_is_no_new_file(sessions: SessionManager, tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)

    run("export", "cli:direct", "-o", str(tmp_path / "pipe"))

    assert (tmp_path / "pipe").is_fifo()
    assert b"milk" in os.read(pipe, 1 << 16)
    os.close(pipe)


def test_export_into_a_folder_that_is_not_there_is_one_line(sessions: SessionManager, tmp_path: Path):
    result = run("export", "cli:direct", "-o", str(tmp_path / "no" / "chat.jsonl"))

    assert result.exit_code == 1
    assert result.stderr == f"Error: {tmp_path / 'no' / 'chat.jsonl'}: No such file or directory.\n"


@pytest.mark.parametrize(
    ("words", "answers", "code", "told"),
    [
        ([], "\n", 0, "cli:direct (5 messages) permanently?"),
        ([], "", 1, "--yes"),
        (["--yes"], "", 0, "Deleted cli:direct (5 messages)."),
        ([], "y\n", 0, "Deleted cli:direct (5 messages)."),
    ],
    ids=["no answer is no", "nobody to ask", "without asking", "after a yes"],
)
def test_delete_asks_and_deletes_for_good(
    sessions: SessionManager, words: list[str], answers: str, code: int, told: str
):
    result = run("delete", "cli:direct", *words, answers=answers)

    left = [path.name for path in sessions.folder.rglob("*.jsonl")]
    assert (result.exit_code, told in result.output) == (code, True)
    assert ("cli_direct.jsonl" in left) == (not told.startswith("Deleted"))


def test_search_sees_what_a_person_sees_and_says_what_it_left_out(sessions: SessionManager):
    put(sessions, "cli:rows", *({"role": "user", "content": f"row {number}"} for number in range(5)))

    result = run("search", "row", "-n", "2")

    assert len(result.stdout.splitlines()) == 2
    assert "3 more" in result.stderr
    assert "buy milk" in run("search", "milk").stdout
    for hidden in ("secret time", "go on", "notes.md", "tool_call_id"):
        assert run("search", hidden).stdout == ""


def test_a_damaged_file_is_read_as_far_as_it_goes(sessions: SessionManager):
    path = sessions.folder / "telegram_42.jsonl"
    path.write_bytes(
        path.read_bytes()
        + b'{"role": "assistant", "cont\x00\xff\n[]\n{"role":"assistant","content":7,"tool_calls":3}\n'
    )

    assert run("show", "telegram:42").exit_code == 0
    assert run("search", "hello").stdout.startswith("telegram:42")
    assert run("export", "telegram:42", "-f", "markdown").exit_code == 0
    assert "hello" in run("list").stdout


@pytest.mark.slow
def test_search_in_a_hundred_thousand_messages_takes_about_a_second(sessions: SessionManager):
    rows = (json.dumps({"role": "user", "content": f"row {number} " + "word " * 60}) for number in range(100_000))
    (sessions.folder / "cli_long.jsonl").write_text("\n".join(rows), encoding="utf-8")
    began = time.perf_counter()

    result = run("search", "row 99999 ")

    assert result.stdout.startswith("cli:long")
    assert time.perf_counter() - began < 5  # about 0.3 on the machine it was written on


def test_search_finds_words_that_stand_apart_where_the_text_as_it_is_occurs_nowhere(sessions: SessionManager):
    put(
        sessions,
        "cli:direct",
        {"role": "user", "content": "On Monday I see the dentist", "timestamp": "2026-03-01T10:00:00"},
    )

    assert run("search", "dentist monday").stdout == "cli:direct\t2026-03-01 10:00\tuser\tOn Monday I see the dentist\n"
    assert run("search", "dentist").stdout.count("dentist") == 1
    assert "occurs in no session" in run("search", "dentist sunday").stderr


@pytest.mark.parametrize("text", ["straße", "élan", "ÉLAN", "会議", "ёлка", 'say "hi"'])
@pytest.mark.parametrize("escaped", [False, True])
def test_search_minds_no_case_and_reads_what_another_program_escaped(
    sessions: SessionManager, text: str, escaped: bool
):
    row = {"role": "user", "content": 'Die Straße, mit Élan; 会議; Ёлка; say "Hi"'}
    with open(sessions.folder / "cli_direct.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=escaped) + "\n")

    (hit,) = json.loads(run("search", text, "--json").stdout)

    assert (hit["name"], hit["role"]) == ("cli:direct", "user")
    assert hit["snippet"].startswith("Die Straße, mit Élan")


def test_nothing_of_a_deleted_session_stays_in_the_index(sessions: SessionManager):
    put(sessions, "cli:direct", *({"role": "user", "content": "xylophone canary"} for _ in range(50)))
    run("search", "canary the xylophone")
    run("search", "canary xylophone")
    state = Path.home() / ".nanobot" / "state"
    before = (state / "search.db").read_bytes()

    run("delete", "cli:direct", "--yes")

    assert b"xylophone" in before
    assert all(b"xylophone" not in path.read_bytes() for path in state.glob("search*"))


def test_search_for_nothing_is_a_wrong_use(sessions: SessionManager):
    result = run("search", " \n")

    assert result.exit_code == 2
    assert "the text to search for is empty" in result.stderr
