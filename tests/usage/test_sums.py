"""Adding up the ledger."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from nanobot.usage.ledger import SCHEMA, write_calls
from nanobot.usage.sums import UsageSum, format_sum, sum_up
from tests.support.ledger_rows import row

NOW = datetime(2026, 11, 22, 12, tzinfo=ZoneInfo("UTC"))


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        yield db


def test_the_dearest_comes_first_and_days_in_their_order(db: sqlite3.Connection):
    for model, usd in (("cheap", 0.1), ("dear", 3.0), ("unknown", None)):
        write_calls(db, [row(model=model, usd=usd)])

    assert list(sum_up(db, NOW, by="model").groups) == ["dear", "cheap", "unknown"]


def test_days_and_months_are_the_owner_s_when_the_request_was_sent(db: sqlite3.Connection):
    write_calls(db, [row("2026-11-01T07:30:00.000+08:00", usd=1.0)])  # October in UTC
    write_calls(db, [row("2026-11-22T23:59:00.000+08:00", usd=2.0)])
    write_calls(db, [row("2026-11-23T00:01:00.000+08:00", usd=4.0)])  # the 22nd in UTC
    shanghai = datetime(2026, 11, 23, 0, 30, tzinfo=ZoneInfo("Asia/Shanghai"))

    found = sum_up(db, shanghai)

    assert (found.today.spent, found.month.spent) == (4.0, 7.0)


def test_a_session_has_its_own_sum(db: sqlite3.Connection):
    write_calls(db, [row(session="telegram:1")])
    write_calls(db, [row()])

    assert sum_up(db, NOW, session="telegram:1").session.calls == 1


def test_in_a_line():
    used = UsageSum(
        calls=3, failed=1, prompt_tokens=1000, cached_tokens=250, completion_tokens=20, spent=0.0123, unpriced=1
    )

    assert format_sum(used) == ("3 calls (1 failed), 1,000 in (25% cached), 20 out, $0.012 (and 1 of unknown price)")
    assert format_sum(UsageSum(calls=1, unpriced=1)) == "1 call, 0 in, 0 out, price unknown"


@pytest.mark.slow
def test_sum_of_a_hundred_thousand_rows_is_not_waited_for(db: sqlite3.Connection):
    write_calls(db, [row() for _ in range(100_000)])
    started = time.thread_time()

    found = sum_up(db, NOW, by="model")

    assert found.month.prompt_tokens == 10_000_000
    assert time.thread_time() - started < 2
