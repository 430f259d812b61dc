"""The files of traces: whole lines, no secrets, within their bounds, whatever the disk and other processes do."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.trace.store import TraceStore
from nanobot.security.secrets import secrets_scope

Pieces = dict[tuple[str, str], list[dict[str, Any]]]


@pytest.fixture
def store(tmp_path: Path) -> TraceStore:
    return TraceStore(tmp_path / "traces")


def piece(turn: str, session: str = "cli:direct", **facts: Any) -> Pieces:
    return {(session, turn): [{"type": "notice", **facts}]}


def turns(store: TraceStore, session: str = "cli:direct") -> list[str]:
    return [*store.turns(session)]


def file_of(store: TraceStore, session: str = "cli_direct") -> Path:
    return next(store.path.glob(f"{session}-*.jsonl"))


def blobs(store: TraceStore) -> list[str]:
    return sorted(path.read_text() for path in (store.path / "blobs").iterdir())


@pytest.mark.skipif(os.name == "nt", reason="file modes are a POSIX thing")
def test_only_the_owner_may_read_it(store: TraceStore):
    store.write(piece("a", system="be good"))

    modes = {stat.S_IMODE(path.stat().st_mode) for path in store.path.rglob("*") if path.is_file()}

    assert (modes, stat.S_IMODE(store.path.stat().st_mode)) == ({0o600}, 0o700)


def test_many_turns_do_not_grow_beyond_the_caps(tmp_path: Path):
    store = TraceStore(tmp_path / "traces", file_bytes=2_000)

    for number in range(400):
        store.write(piece(f"t{number}", f"cli:{number % 4}", text="hello " * 10))

    files = [path.stat().st_size for path in store.path.glob("*.jsonl*")]
    kept = turns(store, "cli:3")
    assert (len(files), max(files) <= 2_000) == (8, True)
    assert kept == [f"t{number}" for number in range(int(kept[0][1:]), 400, 4)]


def age(path: Path, days: float) -> None:
    moment = time.time() - days * 86_400
    os.utime(path, (moment, moment))


def test_once_a_day_the_old_the_most_and_prompts_nobody_used_lately_are_deleted(tmp_path: Path):
    store = TraceStore(tmp_path / "traces", total_bytes=1500)
    for days, name in ((0, "new"), (2, "recent"), (4, "many"), (31, "old")):
        for _ in range(2):
            store.write(piece("a", name, text="x" * 190, system=name))
        age(file_of(store, name), days)
    for blob in (store.path / "blobs").iterdir():
        age(blob, days=32)
    store.write(piece("b", "new", system="new"))
    store.write(piece("b", "new", system="stored a moment ago"))

    store.sweep_if_due()
    kept = [name for name in ("new", "recent", "many", "old") if turns(store, name)]
    age(file_of(store, "new"), days=31)
    TraceStore(store.path).sweep_if_due()  # another process, on the same day
    still = turns(store, "new")
    age(store.path / ".swept", days=1.1)
    TraceStore(store.path).sweep_if_due()

    assert (kept, blobs(store)) == (["new", "recent"], ["new", "stored a moment ago"])
    assert (still, turns(store, "new")) == (["a", "b"], [])


def test_behind_half_a_line_a_new_one_begins_and_damage_costs_only_itself(store: TraceStore):
    store.write(piece("a"))
    with file_of(store).open("ab") as file:
        file.write(b'\xff\xfe\n[1]\n{"turn": "cut", "sess')

    store.write(piece("b"))

    assert turns(store) == ["a", "b"]


def test_processes_at_once_append_whole_lines(store: TraceStore):
    script = """if True:
        import sys
        from pathlib import Path
        from nanobot.agent.trace.store import TraceStore
        store = TraceStore(Path(sys.argv[1]))
        for number in range(200):
            turn = f"{sys.argv[2]}-{number}"
            store.write({("cli:direct", turn): [{"type": "prompt", "text": "x" * 150, "system": "same"}]})
    """
    writers = [subprocess.Popen([sys.executable, "-c", script, store.path, name]) for name in "ab"]

    assert [writer.wait(30) for writer in writers] == [0, 0]
    assert sorted(turns(store)) == sorted(f"{writer}-{number}" for writer in "ab" for number in range(200))


def test_forgetting_a_session_leaves_its_neighbours(store: TraceStore):
    ran = [{"type": "run_started", "model": "m"}]
    store.write({("x:y", "a"): ran, ("x:y", "b"): ran, **piece("help", "x:y"), **piece("c", "x_y")})

    store.forget("x:y", {"a"})
    left = turns(store, "x:y")
    store.forget("x:y", {"b"})

    assert (left, turns(store, "x:y"), turns(store, "x_y")) == (["b"], [], ["c"])


def test_secrets_are_taken_out_of_all_that_is_written(store: TraceStore):
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
        store.write({("cli:direct", "a"): events})

    written = [path.read_text() for path in store.path.rglob("*") if path.is_file()]
    assert (len(written), [text for text in written if "config key" in text]) == (3, [])
