"""Adding up the ledger."""

import json
import time
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from nanobot.usage.ledger import Ledger
from nanobot.usage.sums import By, UsageSum, format_sum, sum_up
from tests.support.ledger_rows import row

NOW = datetime(2026, 11, 22, 12, tzinfo=ZoneInfo("UTC"))


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("day", {"2026-11-20": 1, "2026-11-22": 2}),
        ("model", {"gpt-4o": 2, "kimi": 1}),
        ("provider", {"openai": 3}),
        ("session", {"cli:direct": 2, "cron:1": 1}),
        ("cause", {"turn": 2, "cron": 1}),
    ],
)
def test_by_whatever_one_asks(tmp_path: Path, by: By, groups: dict[str, int]):
    ledger = Ledger(tmp_path)
    ledger.add(row("2026-11-20T12:00:00.000+00:00"))
    ledger.add(row(model="kimi", usd=0.1))
    ledger.add(row(session="cron:1", cause="cron"))

    found = sum_up(ledger, NOW, by=by)

    assert {name: used.calls for name, used in found.groups.items()} == groups


def test_the_dearest_comes_first_and_days_in_their_order(tmp_path: Path):
    ledger = Ledger(tmp_path)
    for model, usd in (("cheap", 0.1), ("dear", 3.0), ("unknown", None)):
        ledger.add(row(model=model, usd=usd))

    assert list(sum_up(ledger, NOW, by="model").groups) == ["dear", "cheap", "unknown"]


def test_days_and_months_are_those_of_the_owner(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row("2026-10-31T23:30:00.000+00:00", usd=1.0))  # November in Shanghai
    ledger.add(row("2026-11-22T15:59:00.000+00:00", usd=2.0))
    ledger.add(row("2026-11-22T16:01:00.000+00:00", usd=4.0))  # the 23rd there
    shanghai = datetime(2026, 11, 23, 0, 30, tzinfo=ZoneInfo("Asia/Shanghai"))

    found = sum_up(ledger, shanghai)

    assert (found.today.spent, found.month.spent) == (4.0, 7.0)


def test_a_session_has_its_own_sum(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row(session="telegram:1"))
    ledger.add(row())

    assert sum_up(ledger, NOW, session="telegram:1").session.calls == 1


def test_days_back_are_counted_with_today(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row("2026-11-21T23:59:00.000+00:00"))
    ledger.add(row("2026-11-20T23:59:00.000+00:00"))

    assert list(sum_up(ledger, NOW, days=2).groups) == ["2026-11-21"]


def test_a_row_of_no_day_is_counted_as_damaged(tmp_path: Path):
    ledger = Ledger(tmp_path)
    ledger.add(row())
    with (tmp_path / "2026-11.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(row("some day")) + "\n")

    found = sum_up(ledger, NOW)

    assert (found.month.calls, found.damaged) == (1, 1)


def test_in_a_line():
    used = UsageSum(
        calls=3, failed=1, prompt_tokens=1000, cached_tokens=250, completion_tokens=20, spent=0.0123, unpriced=1
    )

    assert format_sum(used) == ("3 calls (1 failed), 1,000 in (25% cached), 20 out, $0.012 (and 1 of unknown price)")
    assert format_sum(UsageSum(calls=1, unpriced=1)) == "1 call, 0 in, 0 out, price unknown"


def test_many_rows_are_added_up_within_a_breath(tmp_path: Path):
    line = json.dumps(row(), separators=(",", ":")).encode() + b"\n"
    (tmp_path / "2026-11.jsonl").write_bytes(line * 20_000)
    started = time.thread_time()
    json.loads(b"[" + b",".join([line] * 20_000) + b"]")
    parsed_s = time.thread_time() - started

    started = time.thread_time()
    found = sum_up(Ledger(tmp_path), NOW, by="model")
    taken_s = time.thread_time() - started

    assert found.month.prompt_tokens == 2_000_000
    assert taken_s < 6 * parsed_s, f"{taken_s:.2f} s, and {parsed_s:.2f} s to parse them"
