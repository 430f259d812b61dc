"""`nanobot usage`: totals, what is left, and where it went."""

import json
import re
import sqlite3
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.usage.budget import raise_limit
from tests.support.home import NANOBOT
from tests.support.ledger_rows import put_rows, row


def home() -> Path:
    return Path.home() / ".nanobot"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["usage", *words])


def spend(usd: float | None, *, days_ago: int = 0, **other: Any) -> None:
    when = datetime.now(UTC) - timedelta(days=days_ago)
    put_rows(home(), row(when.isoformat(timespec="milliseconds"), usd=usd, **other))


@pytest.fixture(autouse=True)
def in_utc() -> None:
    home().mkdir()
    limits = {"dailyUsd": 2.5, "turnTokens": 200_000}
    config = {"agents": {"defaults": {"timezone": "UTC"}}, "limits": limits}
    (home() / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_before_the_first_message_there_is_nothing_and_nothing_is_made():
    result = run()

    assert result.exit_code == 0
    assert "No model was used" in result.stderr
    assert [path.name for path in home().iterdir()] == ["config.json"]


def test_totals_what_is_left_and_a_row_a_day_plain_in_a_pipe():
    spend(0.5, prompt_tokens=1000, cached_tokens=250, completion_tokens=100)
    spend(0.25, outcome="failed", error="StreamCutError")

    lines = run().stdout.splitlines()

    assert lines[0] == "Today: 2 calls (1 failed), 1,100 in (23% cached), 110 out, $0.75"
    assert lines[1].startswith("This month: 2 calls")
    assert lines[2:4] == ["Left today: $1.75 of $2.50", "A turn may use 200,000 tokens"]
    assert lines[5] == f"{datetime.now(UTC):%Y-%m-%d}\t2\t1\t1100\t250\t110\t0.75"


def test_an_owner_who_added_dollars_for_today_has_them_left():
    spend(2.5)
    with closing(sqlite3.connect(home() / "state" / "nanobot.db")) as db, db:
        raise_limit(db, "limits.dailyUsd", f"{datetime.now(UTC):%Y-%m-%d}", 1.25)

    plain, told = run().stdout, json.loads(run("--json").stdout)

    assert "Left today: $1.25 of $3.75" in plain
    assert (told["limits"]["dailyUsd"], told["limits"]["leftTodayUsd"]) == (3.75, 1.25)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("model", ["kimi", "gpt-4o"]),
        ("provider", ["openai"]),
        ("session", ["cron:1", "cli:direct"]),
        ("cause", ["cron", "turn"]),
    ],
)
def test_by_whatever_one_asks(by: str, names: list[str]):
    spend(0.5)
    spend(2.0, model="kimi", session="cron:1", cause="cron")

    assert [one[by] for one in json.loads(run("--by", by, "--json").stdout)["rows"]] == names
    assert "day" in run("--by", "moon").stderr


def test_as_json_so_many_days_back():
    spend(0.5, reasoning_tokens=4)
    spend(None, model="nobody-knows")
    spend(0.5, days_ago=3)

    found = json.loads(run("--days", "3", "--json").stdout)

    assert [found["today"][key] for key in ("usd", "unpriced", "reasoning_tokens")] == [0.5, 1, 4]
    assert (found["limits"]["turnTokens"], found["limits"]["monthlyUsd"]) == (200_000, None)
    assert len(found["rows"]) == 1
    assert len(json.loads(run("--days", "4", "--json").stdout)["rows"]) == 2


def test_damaged_database_is_an_error_that_says_what_to_do():
    spend(0.5)
    (home() / "state" / "nanobot.db").write_bytes(b"what is this" * 1000)

    result = run()

    assert result.exit_code == 1
    assert "nanobot.db cannot be read" in result.stderr and "nanobot doctor" in result.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are POSIX")
@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (100, "Model Calls Failed In Cached Out Cost"),
        (60, "Model Calls Failed In Cached Out Cost"),
        (40, "Model Calls In Cost"),
    ],
)
def test_on_a_narrow_screen_a_name_is_cut_and_never_a_number(width: int, headings: str):
    from tests.support.terminal import shown  # not on Windows

    spend(12.34, model="anthropic/claude-sonnet-4-5-20250929-of-a-very-long-name-that-fits-nowhere", prompt_tokens=9)
    spend(112.34, model="gpt-4o", prompt_tokens=9_629_100)

    text = re.sub(r"\x1b\[[0-9;]*m", "", shown([*NANOBOT, "usage", "--by", "model"], width, COLUMNS=str(width)))
    table = text.rpartition("\n\n")[2].splitlines()

    assert " ".join(table[0].split()) == headings
    assert [re.findall(r"[\d.,]+(?= *$)|9,629,100", line)[-1] for line in table[1:3]] == ["112.34", "12.34"]
    assert "9,629,100" in table[1]
    assert len({len(line) for line in table[1:3]}) == 1  # numbers end in one column
    assert max(map(len, table)) <= width
