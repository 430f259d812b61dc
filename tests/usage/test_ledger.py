"""The ledger: a row a request, whoever writes, whatever happens to the disk."""

import json
import math
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.usage.ledger import Ledger
from tests.support.ledger_rows import row

EVER = date(2000, 1, 1)


def lines(folder: Path) -> list[str]:
    return (folder / "2026-11.jsonl").read_text(encoding="utf-8").splitlines()


def test_a_row_is_a_line_of_its_month_and_comes_back_as_it_was(tmp_path: Path):
    ledger = Ledger(tmp_path / "usage")
    november, december = row(session="飞书:1"), row("2026-12-01T00:00:00.000+00:00", usd=None)

    ledger.add(november)
    ledger.add(december)

    assert json.loads(lines(tmp_path / "usage")[0]) == november
    assert sorted(path.name for path in (tmp_path / "usage").iterdir()) == ["2026-11.jsonl", "2026-12.jsonl"]
    assert list(ledger.reader().rows(EVER)) == [november, december]


def test_nothing_is_touched_before_the_first_row(tmp_path: Path):
    ledger = Ledger(tmp_path / "usage")

    assert list(ledger.reader().rows(EVER)) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_owner_may_read_it(tmp_path: Path):
    Ledger(tmp_path / "usage").add(row())

    assert stat.S_IMODE((tmp_path / "usage" / "2026-11.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "usage").stat().st_mode) == 0o700


def test_rows_that_threads_add_at_once_are_written_once(tmp_path: Path):
    ledger, before = Ledger(tmp_path), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda turn: ledger.add(row(turn=str(turn))), range(400)))
    finally:
        sys.setswitchinterval(before)

    assert sorted(int(found["turn"]) for found in ledger.reader().rows(EVER)) == [*range(400)]


def test_a_reader_gives_each_row_once_also_those_of_others(tmp_path: Path):
    ours, theirs = Ledger(tmp_path), Ledger(tmp_path)
    reader = ours.reader()
    ours.add(row(turn="1"))
    first = [found["turn"] for found in reader.rows(EVER)]

    theirs.add(row(turn="2"))
    ours.add(row(turn="3"))

    assert first == ["1"]
    assert [found["turn"] for found in reader.rows(EVER)] == ["2", "3"]
    assert list(reader.rows(EVER)) == []


def test_months_before_are_not_read(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row("2026-09-30T12:00:00.000+00:00"))
    ledger.add(row("2026-10-31T12:00:00.000+00:00"))
    ledger.add(row())

    assert [found["when"][:7] for found in ledger.reader().rows(date(2026, 11, 2))] == ["2026-11"]
    assert len(list(ledger.reader().rows(date(2026, 11, 1)))) == 2, "who travelled may have a row of today in October"


def test_half_a_row_costs_itself_and_is_counted(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row(turn="1"))
    with (tmp_path / "2026-11.jsonl").open("ab") as file:
        file.write(b'{"when":"2026-11-22T1')
    half = ledger.reader()
    before = [found["turn"] for found in half.rows(EVER)], half.damaged

    ledger.add(row(turn="2"))
    after = [found["turn"] for found in half.rows(EVER)], half.damaged

    assert before == (["1"], 1)
    assert after == (["2"], 1)


def test_a_whole_row_behind_half_a_one_is_not_lost(tmp_path: Path):
    whole = json.dumps(row(turn="2"), separators=(",", ":"))
    (tmp_path / "2026-11.jsonl").write_text(f'{{"when":"2026-11-2{whole}\n', encoding="utf-8")
    reader = Ledger(tmp_path).reader()

    assert [found["turn"] for found in reader.rows(EVER)] == ["2"]
    assert reader.damaged == 1


@given(damage=st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([b"[]", b"1", b'{"when":1}', b"\xff\x00"]))))
def test_no_bytes_between_rows_lose_a_row(tmp_path_factory: pytest.TempPathFactory, damage: list[bytes]):
    folder = tmp_path_factory.mktemp("ledger")
    sound = [json.dumps(row(turn=str(number))).encode() for number in range(len(damage) + 1)]
    mixed = [part for pair in zip(sound, [*damage, b""], strict=True) for part in pair]
    (folder / "2026-11.jsonl").write_bytes(b"\n".join(mixed))

    found = [one["turn"] for one in Ledger(folder).reader().rows(EVER)]

    assert found == [str(number) for number in range(len(sound))]


@pytest.mark.parametrize(
    "damage",
    [{"usd": math.nan}, {"usd": math.inf}, {"usd": -5.0}, {"usd": 10**400}, {"prompt_tokens": -1}, {"usd": True}],
)
def test_what_no_call_can_cost_is_damage_and_spoils_no_sum(tmp_path: Path, damage: dict[str, Any]):
    lines = [json.dumps(row(**damage)), json.dumps(row(usd=1.5))]
    (tmp_path / "2026-11.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    reader = Ledger(tmp_path).reader()

    usd = [found["usd"] for found in reader.rows(date(2026, 11, 1))]

    assert (usd, reader.damaged) == ([1.5], 1)


def test_a_disk_that_refuses_costs_no_answer_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    place = tmp_path / "usage"
    place.write_text("a file where the folder should be", encoding="utf-8")
    ledger = Ledger(place)

    ledger.add(row(turn="1"))
    ledger.add(row(turn="2"))
    told = len(caplog.records)
    place.unlink()
    ledger.add(row(turn="3"))

    assert told == 1
    assert caplog.messages[-1] == f"Model usage is written to {place} again"
    assert [json.loads(line)["turn"] for line in lines(place)] == ["1", "2", "3"]


@pytest.mark.skipif(os.name == "nt", reason="Windows lets nobody take away what is open")
@pytest.mark.parametrize("by", ["another", "nothing", "nothing, and its folder"])
def test_a_row_goes_to_the_file_that_is_there_now(tmp_path: Path, by: str):
    place = tmp_path / "usage"
    ledger, file = Ledger(place), place / "2026-11.jsonl"
    ledger.add(row(turn="1"))
    if by == "another":
        file.with_suffix(".new").touch()
        file.with_suffix(".new").replace(file)
    else:
        file.rename(tmp_path / "kept.jsonl")
        if by != "nothing":
            place.rmdir()

    ledger.add(row(turn="2"))
    ledger.close()
    ledger.add(row(turn="3"))

    assert [json.loads(line)["turn"] for line in lines(place)] == ["2", "3"]


def test_many_processes_append_whole_rows(tmp_path: Path):
    code = (
        "import sys, pathlib\n"
        "from nanobot.usage.ledger import Ledger\n"
        "from tests.support.ledger_rows import row\n"
        "ledger = Ledger(pathlib.Path(sys.argv[1]))\n"
        "for number in range(300): ledger.add(row(turn=f'{sys.argv[2]}-{number}', session='x' * number))\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(number)]) for number in range(3)]
    assert [writer.wait(30) for writer in writers] == [0, 0, 0]

    reader = Ledger(tmp_path).reader()

    assert len({found["turn"] for found in reader.rows(EVER)}) == 900
    assert reader.damaged == 0
