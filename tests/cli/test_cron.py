"""`nanobot cron`: jobs from the command line, plain in a pipe and as JSON."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner, Result

from nanobot.cli.main import app
from nanobot.cron.service import CronService
from tests.support.eventually import wait_until
from tests.support.home import start_program


def home() -> Path:
    return Path.home() / ".nanobot"


def store() -> Path:
    return home() / "workspace" / "cron" / "jobs.json"


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["cron", *words])


def add(*words: str) -> str:
    """Make a job; its id."""
    made = run("add", "-m", "Stretch", *words, "--json")
    assert made.exit_code == 0, made.stderr
    return str(json.loads(made.stdout)["id"])


def rows(*words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run(*words, "--json").stdout)
    return found


@pytest.fixture(autouse=True)
def in_berlin() -> None:
    home().mkdir()
    config = {"agents": {"defaults": {"timezone": "Europe/Berlin"}}, "channels": {"telegram": {"enabled": True}}}
    (home() / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_job_is_made_with_its_next_three_runs_and_the_gateway_is_named():
    made = run("add", "-n", "standup", "-m", "Stand up", "-c", "0 9 * * 1-5", "--tz", "Asia/Kolkata")

    first, heading, *runs = made.stdout.splitlines()
    assert made.exit_code == 0
    assert first.endswith('"standup" runs every weekday at 09:00 (Asia/Kolkata).')
    assert (heading, len(runs)) == ("Next runs:", 3)
    assert all("09:00 +05:30 (in " in run for run in runs)
    assert "No gateway is running" in made.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-c", "0 9 * * *", "--tz", "America/Vancovuer"], "Error: unknown timezone 'America/Vancovuer'"),
        (["-c", "0 0 31 2 *"], "never matches any date"),
        (["-c", "99 9 * * *"], "Invalid cron expression"),
        (["--at", "2020-01-01T00:00"], "in the past"),
        (["-c", "99 99 * * *"], 'Invalid cron expression "99 99 * * *": minute 99 is out of range 0-59.'),
        (["-e", "abc"], "Cannot read 'abc' as seconds. Examples: 3600"),
        (["-e", "1"], "each run is a model call: 86,400 a day"),
        (["-c", "* * * * * *"], "or add --force"),
        (["-e", "60", "-d"], "needs a channel and a chat id"),
        (["-e", "60", "-d", "--channel", "telegram", "--to", "last"], "needs a channel and a chat id"),
        (["-e", "60", "-d", "--channel", "slack", "--to", "5"], "not enabled"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(words: list[str], said: str):
    result = run("add", "-n", "demo", "-m", "hello", *words)

    assert result.exit_code == 1
    assert said in result.stderr
    assert not store().exists()


def test_jobs_are_listed_switched_and_removed():
    assert "There are no jobs" in run("list").stderr
    assert not (home() / "workspace").exists(), "looking makes nothing"
    job = add("-n", "a\nb", "-e", "1200", "-d", "--channel", "telegram", "--to", "5", "--notify", "on_change")

    assert run("list").stdout.startswith(f"{job}\ta b\tevery 20 minutes\ttelegram:5 (on_change)\t20")
    assert run("disable", job).exit_code == 0
    assert rows("list") == []
    assert [row["enabled"] for row in rows("list", "-a")] == [False]
    assert "Next runs:" in run("enable", job).stdout
    assert run("remove", job).exit_code == 0
    assert rows("list", "-a") == []
    assert "There is no job" in run("remove", job).stderr


def test_a_job_changes_its_text_and_its_time_and_what_cannot_be_is_refused():
    job = add("-e", "1200")
    before = store().read_bytes()
    for wrong, said in (
        ([], "What should change?"), (["-e", "5"], "--force"), (["-m", " "], "needs a message"),
        (["--at", "2020-01-01"], "in the past"), (["-c", "0 9 * *"], ""),
    ):  # fmt: skip
        refused = run("edit", job, *wrong)
        assert refused.exit_code != 0 and said in refused.stderr, wrong
    assert store().read_bytes() == before
    assert "Next runs:" in run("edit", "Stretch", "-c", "0 9 * * 1-5").stdout
    assert run("edit", job, "-m", "Walk", "-n", "walk").exit_code == 0
    [row] = rows("list")

    assert (row["name"], row["payload"]["message"], row["schedule"]["expr"]) == ("walk", "Walk", "0 9 * * 1-5")
    next_run = datetime.fromtimestamp(row["state"]["nextRunAtMs"] / 1000, ZoneInfo("Europe/Berlin"))
    assert (next_run.hour, next_run.minute) == (9, 0)
    assert "There is no job" in run("edit", "none", "-m", "x").stderr


def test_a_job_may_be_called_by_its_name_where_only_one_has_it():
    first = add("-n", "Stretch", "-e", "1200")
    second = add("-n", "tea", "-e", "1200")
    add("-n", "tea", "-e", "1200")

    several = run("disable", "tea")
    disabled = run("disable", "stretch")

    assert second in several.stderr and "Several jobs are named" in several.stderr
    assert f"Job {first} " in disabled.stdout
    assert run("history", "stretch").exit_code == 0
    assert "Did you mean 'Stretch'?" in run("remove", "stretches").stderr


def test_a_job_is_run_here_where_no_gateway_is():
    job = add("-n", "look", "-e", "1200", "-d", "--channel", "telegram", "--to", "5")
    run("disable", job)

    refused, result = run("run", job), run("run", job, "-f")

    assert "is disabled" in refused.stderr
    assert result.exit_code == 0
    assert "Reminder: Stretch\n\n(No model is set up" in result.stdout
    assert "Not sent to telegram:5" in result.stderr
    (row,) = rows("history", job)
    assert (row["outcome"], row["trigger"]) == ("ran", "manual")
    assert "manual" in run("history").stdout
    assert [path.name for path in (home() / "workspace" / "sessions").glob("*.jsonl")] == [f"cron_{job}.jsonl"]


def test_a_job_is_run_by_whoever_serves_the_store():
    job = add("-e", "1200")
    child = start_program("tests.cron.cron_child", str(store().parent), "quick")
    try:
        while (served := run("add", "-m", "x", "-e", "9000", "--no-deliver")).stderr:
            assert "No gateway" in served.stderr
            time.sleep(0.05)
        result = run("run", job)
    finally:
        child.kill()
        child.wait()

    assert result.exit_code == 0
    assert "ran in" in result.stderr
    assert len((store().parent / "ran.txt").read_text().splitlines()) == 1


def test_job_that_is_at_work_is_shown_and_not_asked_for_again():
    job = add("-n", "tea", "-e", "9000")
    child = start_program("tests.cron.cron_child", str(store().parent), "hangs")
    try:
        wait_until(lambda: not run("add", "-m", "x", "-e", "9000", "--no-deliver").stderr)
        CronService(store()).request_run(job)
        wait_until(lambda: any(line.endswith("\trunning") for line in run("list").stdout.splitlines()))
        (shown,) = run("history", job).stdout.splitlines()
        result = run("run", job)
    finally:
        child.kill()
        child.wait()

    assert shown.split("\t")[1:4] == [job, "tea", "running"]
    assert f"Job {job} is already running" in result.stderr


def test_what_would_fire_is_shown_with_collisions_and_changes_of_the_clock():
    one, two = add("-n", "one", "-c", "0 9 * * *"), add("-n", "two", "-c", "0 9,10 * * *")

    lines = run("rehearse", "--days", "1").stdout.splitlines()
    found = rows("rehearse", "--days", "400", "--limit", "5000")

    assert len(lines) == 3
    assert {row["jobId"]: row["collidesWith"] for row in found[:6] if row["collidesWith"]} == {
        one: ["two"],
        two: ["one"],
    }
    assert {row["remark"] for row in found} == {"", "clocks go back by 60 min", "clocks go forward by 60 min"}
    assert "There is more" in run("rehearse", "--days", "400").stderr
    add("-n", "early", "-c", "30 2 * * *")
    moved = {row["remark"] for row in rows("rehearse", "--days", "400", "--limit", "5000") if row["jobId"]}
    assert moved == {"", "this time of day is skipped on this day", "this hour occurs twice; first time"}
    run("disable", one)
    assert all("collides" not in line for line in run("rehearse", "--days", "1").stdout.splitlines())


def test_a_damaged_store_is_told_and_left_alone_and_one_of_an_earlier_release_moved_to_the_workspace():
    store().parent.mkdir(parents=True)
    store().write_bytes(b'{"version": 1, "jobs": [')
    for words in (["list"], ["add", "-m", "x", "-e", "60"], ["remove", "a"], ["rehearse"]):
        result = run(*words)
        assert (result.exit_code, "was not changed" in result.stderr) == (1, True)
    assert store().read_bytes() == b'{"version": 1, "jobs": ['
    store().unlink()

    old, due = home() / "cron" / "jobs.json", datetime.now(UTC) + timedelta(hours=1)
    old.parent.mkdir()
    schedule = {"kind": "at", "atMs": int(due.timestamp() * 1000)}
    job = {"id": "1a2b3c4d", "name": "old", "schedule": schedule, "payload": {}}
    old.write_text(json.dumps({"version": 1, "jobs": [job]}), encoding="utf-8")

    assert [row["id"] for row in rows("list")] == ["1a2b3c4d"]
    assert (old.exists(), store().exists()) == (False, True)


@pytest.mark.parametrize("words", [("tomorrow 9am", "Call Ann"), ("--at", "tomorrow 9am", "Call Ann")])
def test_a_job_may_be_added_in_two_words_at_a_time_of_the_users_zone(words: tuple[str, ...]):
    made = json.loads(run("add", *words, "--json").stdout)
    run("add", "2126-07-01T09:00", "Look at the long report of the week")

    at = datetime.fromtimestamp(made["schedule"]["atMs"] / 1000, ZoneInfo("Europe/Berlin"))
    assert (f"{at:%H:%M}", made["payload"]["message"]) == ("09:00", "Call Ann")
    assert at.date() == (datetime.now(ZoneInfo("Europe/Berlin")) + timedelta(days=1)).date()
    assert rows("list")[1]["name"] == "Look at the long report of the"  # the first whole words
    assert rows("list")[1]["state"]["nextRunAtMs"] == datetime(2126, 7, 1, 7, tzinfo=UTC).timestamp() * 1000
    assert "2126-07-01 09:00" in run("list").stdout


@pytest.mark.parametrize(
    "words",
    [
        ("18:00",),
        ("18:00", "Call Ann", "-m", "Call Ben"),
        ("-e", "60"),
        ("-m", "Call Ann"),
        ("-e", "60", "--at", "18:00", "-m", "x"),
    ],
    ids=str,
)
def test_a_job_without_a_text_or_a_time_or_with_two_is_refused(words: tuple[str, ...]):
    assert run("add", *words).exit_code == 2
    assert not store().exists()


def test_a_job_answers_in_the_owners_own_chat_unless_it_is_to_be_silent():
    nowhere = run("add", "-m", "Stretch", "-e", "5", "--force")
    pairing = {"owners": {"telegram": ["12345|ann"]}, "approved": {"telegram": ["12345|ann"]}}
    (home() / "pairing.json").write_text(json.dumps(pairing), encoding="utf-8")

    told, silent = run("add", "-m", "Stretch", "-e", "60"), run("add", "-m", "Stretch", "-e", "60", "--no-deliver")

    assert "--channel NAME --to CHAT" in nowhere.stderr
    assert "Delivers to telegram 12345 (--no-deliver keeps it silent)." in told.stderr
    assert [row["payload"]["to"] for row in rows("list")] == [None, "12345", None]
    assert "for telegram:12345" in told.stdout and "telegram" not in silent.stdout
    assert "add --channel" not in silent.stderr
