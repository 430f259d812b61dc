"""The ledger: a row a request, whoever writes, whatever happens to the disk."""

import os
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from nanobot.usage.ledger import SCHEMA, Ledger, UsageSum, format_sum, sum_up, write_calls
from nanobot.utils.database import Database
from tests.support.ledger_rows import row, rows_in


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nanobot.db"


@pytest.fixture
async def ledger(file: Path) -> AsyncIterator[Ledger]:
    ledger = Ledger(Database(file, SCHEMA))
    yield ledger
    await ledger.database.close()


async def test_text_that_is_no_unicode_is_written_escaped(ledger: Ledger, file: Path):
    await ledger.write(row(session="cli:\ud800"))

    assert [found["session"] for found in rows_in(file)] == ["cli:\\ud800"]


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
    if os.name != "nt":
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]
    assert caplog.messages[-1] == "Model usage is written again"
    assert [found["turn"] for found in rows_in(file)] == ["1", "2", "3"]


def test_days_and_months_are_the_owner_s_when_the_request_was_sent():
    shanghai = datetime(2026, 11, 23, 0, 30, tzinfo=ZoneInfo("Asia/Shanghai"))
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        write_calls(db, [row("2026-11-01T07:30:00.000+08:00", usd=1.0)])  # October in UTC
        write_calls(db, [row("2026-11-22T23:59:00.000+08:00", usd=2.0)])
        write_calls(db, [row("2026-11-23T00:01:00.000+08:00", usd=4.0)])  # the 22nd in UTC
        found = sum_up(db, shanghai)

    assert (found.today.spent, found.month.spent) == (4.0, 7.0)


def test_usage_in_a_line():
    used = UsageSum(
        calls=3, failed=1, prompt_tokens=1000, cached_tokens=250, completion_tokens=20, spent=0.0123, unpriced=1
    )

    assert format_sum(used) == ("3 calls (1 failed), 1,000 in (25% cached), 20 out, $0.012 (and 1 of unknown price)")
    assert format_sum(UsageSum(calls=1, unpriced=1)) == "1 call, 0 in, 0 out, price unknown"
