"""The files of traces: whole lines, no secrets, within their bounds, whatever the disk and other processes do."""

import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.trace.store import TraceLimits, TraceStore
from nanobot.security.secrets import secrets_scope

Pieces = dict[tuple[str, str], list[dict[str, Any]]]


def piece(turn: str, session: str = "cli:direct", prompt: dict[str, object] | None = None, **facts: Any) -> Pieces:
    return {(session, turn): [{"type": "notice", **facts, **(prompt or {})}]}


def turns(folder: TraceStore, session: str = "cli:direct") -> list[str]:
    return [*folder.turns(session)]


def test_pieces_of_a_turn_come_back_as_one(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    folder.write({**piece("a", text="hi"), **piece("b")})
    folder.write(piece("a", text="there"))

    found = folder.turns("cli:direct")

    assert [*found] == ["a", "b"]
    assert found["a"] == [{"type": "notice", "text": "hi"}, {"type": "notice", "text": "there"}]


def test_two_sessions_whose_files_have_one_name_do_not_see_each_other(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")

    folder.write({**piece("a", "x:y"), **piece("b", "x_y")})

    assert (turns(folder, "x:y"), turns(folder, "x_y")) == (["a"], ["b"])
    assert len([*(tmp_path / "traces").glob("*.jsonl")]) == 1


@pytest.mark.skipif(os.name == "nt", reason="file modes are a POSIX thing")
def test_only_the_owner_may_read_it(tmp_path: Path):
    TraceStore(tmp_path / "traces").write(piece("a", prompt={"system": "be good"}))

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "traces").rglob("*") if path.is_file()}

    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "traces").stat().st_mode) == 0o700


def test_what_prompts_are_made_of_is_stored_once_and_comes_back(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    tools = [
        {"type": "function", "function": {"name": "x", "parameters": {"properties": {"token": {"type": "string"}}}}}
    ]

    for turn in "abc":
        folder.write(piece(turn, prompt={"system": "be good", "tools": tools}))

    [facts] = folder.turns("cli:direct")["c"]
    assert folder.blob(facts["system"]) == "be good"
    assert json.loads(folder.blob(facts["tools"]) or "") == tools
    assert len([*(tmp_path / "traces" / "blobs").iterdir()]) == 2


def test_a_blob_that_is_damaged_or_gone_is_none_and_is_written_again(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    prompt: dict[str, object] = {"system": "be good"}
    folder.write(piece("a", prompt=prompt))
    name = folder.turns("cli:direct")["a"][0]["system"]
    (tmp_path / "traces" / "blobs" / name).write_text("be", encoding="utf-8")
    damaged = folder.blob(name)

    folder.write(piece("b", prompt=prompt))

    assert damaged is None
    assert folder.blob(name) == "be good"
    assert folder.blob("../cli_direct.jsonl") is None


def test_long_texts_and_big_arguments_keep_their_head(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    arguments: dict[str, Any] = {"path": "a.txt", "content": "x" * 100_000}
    wide = {f"key{number}": "y" * 150 for number in range(100)}
    events: list[dict[str, Any]] = [
        {"type": "turn_started", "message": "m" * 100_000},
        *({"type": "tool_started", "call_id": "c", "name": "x", "arguments": each} for each in (arguments, wide)),
        {"type": "tool_ended", "ok": False, "content": "e" * 100_000},
        {"type": "tool_ended", "ok": True, "content": "r" * 100_000},
    ]

    folder.write({("cli:direct", "a"): events})

    _, first, _, failed, fine = folder.turns("cli:direct")["a"]
    assert first["arguments"]["path"] == "a.txt"
    assert first["arguments"]["content"].endswith("... [99840 more characters]")
    assert failed["content"].startswith("eeee")
    assert fine["content"] == ""
    assert (tmp_path / "traces" / "cli_direct.jsonl").stat().st_size < 3000


def test_five_thousand_turns_do_not_grow_beyond_the_caps(tmp_path: Path):
    caps = TraceLimits(file_bytes=20_000, total_bytes=100_000)
    folder = TraceStore(tmp_path / "traces", limits=caps)

    for number in range(5000):
        folder.write(piece(f"t{number}", f"cli:{number % 4}", text="hello " * 10))

    files = [path.stat().st_size for path in (tmp_path / "traces").glob("*.jsonl*")]
    kept = turns(folder, "cli:3")
    assert len(files) == 8
    assert max(files) <= 20_000
    assert kept[-1] == "t4999"
    assert kept == [f"t{number}" for number in range(int(kept[0][1:]), 5000, 4)]


def test_sweeping_throws_away_the_old_the_most_and_prompts_nobody_used_lately(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces", limits=TraceLimits(total_bytes=1500))
    for age, name in enumerate(("new", "recent", "many")):
        for _ in range(2):
            folder.write(piece("a", name, text="x" * 190, prompt={"system": name}))
        made_old(tmp_path / "traces" / f"{name}.jsonl", days=age * 2)
    folder.write(piece("a", "old"))
    made_old(tmp_path / "traces" / "old.jsonl", days=31)
    for blob in (tmp_path / "traces" / "blobs").iterdir():
        made_old(blob, days=32)
    folder.write(piece("b", "new", prompt={"system": "new"}))
    folder.write(piece("b", "new", prompt={"system": "stored a moment ago"}))

    folder.sweep_if_due()

    assert sorted(folder.keys()) == ["new", "recent"]
    kept = {(path.read_text()) for path in (tmp_path / "traces" / "blobs").iterdir()}
    assert kept == {"new", "stored a moment ago"}


def made_old(path: Path, days: float) -> None:
    moment = time.time() - days * 86_400
    os.utime(path, (moment, moment))


def test_it_is_swept_once_a_day_by_whichever_process_comes_first(tmp_path: Path):
    TraceStore(tmp_path / "traces").write(piece("a"))
    first, second = TraceStore(tmp_path / "traces"), TraceStore(tmp_path / "traces")
    first.sweep_if_due()
    made_old(tmp_path / "traces" / "cli_direct.jsonl", days=31)

    second.sweep_if_due()
    left = turns(second)
    made_old(tmp_path / "traces" / ".swept", days=1.1)
    TraceStore(tmp_path / "traces").sweep_if_due()

    assert left == ["a"]
    assert turns(second) == []


def test_a_disk_that_refuses_costs_the_trace_and_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "traces").write_text("a file where a folder should be", encoding="utf-8")
    folder = TraceStore(tmp_path / "traces")

    folder.write(piece("a"))
    folder.write(piece("b"))

    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert folder.turns("cli:direct") == {}


def test_behind_half_a_line_a_new_one_begins_and_damage_costs_only_itself(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    folder.write(piece("a"))
    with open(tmp_path / "traces" / "cli_direct.jsonl", "ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"turn": "cut", "sess')

    folder.write(piece("b"))

    assert turns(folder) == ["a", "b"]


def test_processes_at_once_append_whole_lines(tmp_path: Path):
    script = """if True:
        import sys
        from pathlib import Path
        from nanobot.agent.trace.store import TraceStore
        folder = TraceStore(Path(sys.argv[1]))
        for number in range(300):
            turn = f"{sys.argv[2]}-{number}"
            folder.write({("cli:direct", turn): [{"type": "prompt", "text": "x" * 150, "system": "same"}]})
    """
    command = [sys.executable, "-c", script, str(tmp_path / "traces")]
    writers = [subprocess.Popen([*command, str(number)]) for number in range(3)]

    assert [writer.wait(30) for writer in writers] == [0, 0, 0]
    lines = (tmp_path / "traces" / "cli_direct.jsonl").read_text().splitlines()
    found = [json.loads(line)["turn"] for line in lines if line]
    assert sorted(found) == sorted(f"{writer}-{number}" for writer in range(3) for number in range(300))


def test_forgetting_a_session_leaves_its_neighbours(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    ran = [{"type": "run_started", "model": "m"}]
    folder.write({("x:y", "a"): ran, ("x:y", "b"): ran, **piece("help", "x:y"), **piece("c", "x_y")})

    folder.forget("x:y", {"a"})

    assert turns(folder, "x:y") == ["b"]
    assert turns(folder, "x_y") == ["c"]


def test_secrets_are_taken_out_of_all_that_is_written(tmp_path: Path):
    folder = TraceStore(tmp_path / "traces")
    said = "a plain config key"
    events: list[dict[str, Any]] = [
        {"type": "turn_started", "message": said},
        {"type": "prompt", "system": said, "tools": [{"a": said}]},
        {"type": "tool_started", "name": said, "arguments": {"command": said}, "asked": {"command": said}},
        {"type": "tool_ended", "name": said, "ok": False, "content": said},
        {"type": "approval_asked", "text": said, "reaches": [said], "source": said},
        {"type": "turn_ended", "text": said, "error": said},
    ]

    with secrets_scope(lambda: {"plain config key": "a.key"}):
        folder.write({("cli:direct", "a"): events})

    written = [path.read_text() for path in (tmp_path / "traces").rglob("*") if path.is_file()]
    assert len(written) == 3
    assert not [text for text in written if "config key" in text]
