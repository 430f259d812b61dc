"""The ledger: a row a request, whoever writes, whatever happens to the disk."""

import os
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.utils.database import Database
from tests.support.ledger_rows import row, rows_in

DIES = """
import asyncio, os, sys
from pathlib import Path
from nanobot.usage.ledger import SCHEMA, Ledger
from nanobot.utils.database import Database
from tests.support.ledger_rows import row

async def main():
    ledger = Ledger(Database(Path(sys.argv[1]), SCHEMA))
    for turn in "ab":
        await ledger.write(row(id=turn, turn=turn, outcome="unfinished"))
    await ledger.write(row(id="a", turn="a"))
    os._exit(9)

asyncio.run(main())
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nanobot.db"


@pytest.fixture
async def ledger(file: Path) -> AsyncIterator[Ledger]:
    ledger = Ledger(Database(file, SCHEMA))
    yield ledger
    await ledger.database.close()


async def test_row_is_read_back_as_it_was_written(ledger: Ledger, file: Path):
    november, december = row(session="飞书:1"), row("2026-12-01T00:00:00.000+00:00", usd=None, estimated=True)

    await ledger.write(december)
    await ledger.write(november)

    assert rows_in(file) == [november, december]


async def test_row_with_the_same_id_is_updated(ledger: Ledger, file: Path):
    await ledger.write(row(id="x", outcome="unfinished", usd=None))
    await ledger.write(row(id="x", outcome="ok", usd=0.25))

    assert [(found["outcome"], found["usd"]) for found in rows_in(file)] == [("ok", 0.25)]


async def test_nothing_is_created_before_the_first_row(ledger: Ledger, tmp_path: Path, file: Path):
    assert rows_in(file) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
async def test_only_the_owner_may_read_it(ledger: Ledger, file: Path):
    await ledger.write(row())

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


async def test_text_that_is_no_unicode_is_written_escaped(ledger: Ledger, file: Path):
    await ledger.write(row(session="cli:\ud800"))

    assert [found["session"] for found in rows_in(file)] == ["cli:\\ud800"]


def test_killed_process_leaves_the_rows_of_its_calls(file: Path):
    died = subprocess.run([sys.executable, "-c", DIES, str(file)], check=False)

    assert died.returncode == 9
    assert [(found["turn"], found["outcome"]) for found in rows_in(file)] == [("a", "ok"), ("b", "unfinished")]


async def test_disk_that_fails_costs_no_call_and_is_logged_once(
    ledger: Ledger, file: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "nanobot.usage")
    file.parent.write_text("a file where the folder should be", encoding="utf-8")

    await ledger.write(row(turn="1"))
    await ledger.write(row(turn="2"))
    logged = len(caplog.records)
    file.parent.unlink()
    await ledger.write(row(turn="3"))

    assert logged == 1
    assert caplog.messages[-1] == "Model usage is written again"
    assert [found["turn"] for found in rows_in(file)] == ["1", "2", "3"]
