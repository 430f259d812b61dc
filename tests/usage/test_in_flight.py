"""Calls that a kill cuts off: each has its row, once, whoever writes it and whenever."""

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from nanobot.usage.in_flight import InFlightCalls
from nanobot.usage.ledger import Ledger
from tests.support.ledger_rows import row

DIES = """
import os, sys
from pathlib import Path
from nanobot.usage.ledger import Ledger
from tests.support.ledger_rows import row
ledger = Ledger(Path(sys.argv[1]))
first, second, third = (ledger.begin(row(turn=turn, process="dead")) for turn in "abc")
ledger.add(row(turn="a", process="dead"))
ledger.end(first)
ledger.add(row(turn="b", process="dead"))
os._exit(9)
"""


def turns_in(folder: Path) -> list[str]:
    return [found["turn"] for found in Ledger(folder).reader().rows(date(2026, 11, 1))]


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "in-flight").iterdir())


def test_a_call_that_ended_leaves_nothing(tmp_path: Path):
    ledger = Ledger(tmp_path)

    numbers = [ledger.begin(row(turn=turn)) for turn in "ab"]
    busy = len(left_in(tmp_path))
    for number in numbers:
        ledger.end(number)
    idle = [path.stat().st_size for path in (tmp_path / "in-flight").iterdir()]
    ledger.close()

    assert busy == 2, "the lines and the lock"
    assert idle == [0, 0]
    assert left_in(tmp_path) == []


def test_a_killed_process_s_calls_get_their_rows_once(tmp_path: Path):
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path)], check=False)

    for _ in range(2):
        Ledger(tmp_path).catch_up()

    assert died.returncode == 9
    assert sorted(turns_in(tmp_path)) == ["a", "b", "c"], "b was written, and only the word of it is missing"
    assert left_in(tmp_path) == []


def test_what_lives_is_left_alone(tmp_path: Path):
    ledger = Ledger(tmp_path)
    number = ledger.begin(row())

    Ledger(tmp_path).catch_up()

    assert turns_in(tmp_path) == []
    assert len(left_in(tmp_path)) == 2
    ledger.end(number)


@pytest.mark.parametrize(
    "left", [b"", b"\x00\xff", b'{"call": 1, "row": {"when": "no"}}\n', b'{"call": 1, "ro', b'[1]\n{"ended": []}\n7\n']
)
def test_lines_that_cannot_be_read_are_no_rows_and_go(tmp_path: Path, left: bytes):
    folder = tmp_path / "in-flight"
    folder.mkdir()
    (folder / "x.jsonl").write_bytes(left)

    Ledger(tmp_path).catch_up()

    assert turns_in(tmp_path) == []
    assert left_in(tmp_path) == []


def test_a_disk_that_refuses_costs_no_call(tmp_path: Path):
    (tmp_path / "file").write_text("no folder", encoding="utf-8")
    calls = InFlightCalls(tmp_path / "file")

    calls.end(calls.begin(row()))

    calls.take_over(lambda rows: None)


def test_a_file_that_is_never_empty_stays_small_and_keeps_what_is_under_way(tmp_path: Path):
    ledger = Ledger(tmp_path)
    long = ledger.begin(row(turn="long"))
    for _ in range(10_000):
        ledger.end(ledger.begin(row(turn="short")))

    [file] = (tmp_path / "in-flight").glob("*.jsonl")
    size = file.stat().st_size
    (tmp_path / "in-flight" / "dead.jsonl").write_bytes(file.read_bytes())
    Ledger(tmp_path).catch_up()
    ledger.end(long)
    ledger.close()

    assert size < 2_000_000
    assert turns_in(tmp_path) == ["long"]
    assert left_in(tmp_path) == []
