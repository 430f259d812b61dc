"""Schedules in and out of people's words: naive times, zones, offsets, what is refused."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanobot.cron.format import format_job, format_schedule, format_time, parse_instant, parse_schedule
from nanobot.cron.schedule import HOST, clock_changes, from_ms, read_wall_time, to_ms, zone_of
from nanobot.cron.types import CronError, CronJob, CronSchedule


@contextmanager
def host_zone(name: str) -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = name
    time.tzset()
    try:
        yield
    finally:
        os.environ.pop("TZ")
        os.environ.update({"TZ": before} if before is not None else {})
        time.tzset()


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="only POSIX lets a process change its zone")
@pytest.mark.parametrize(
    ("at", "tz", "user", "expected"),
    [
        ("2026-07-01T09:00", "Asia/Tokyo", "Europe/Berlin", "2026-07-01 00:00:00"),
        ("2026-07-01T09:00", None, "Europe/Berlin", "2026-07-01 07:00:00"),
        ("2026-07-01T09:00", None, None, "2026-07-01 13:00:00"),
        ("2026-07-01T09:00+05:30", "Asia/Tokyo", "Europe/Berlin", "2026-07-01 03:30:00"),
        ("2026-07-01 09:00:30", None, "UTC", "2026-07-01 09:00:30"),
        ("2026-03-29T02:30", "Europe/Berlin", None, "2026-03-29 01:00:00"),
        ("2026-10-25T02:30", "Europe/Berlin", None, "2026-10-25 00:30:00"),
        ("2026-12-24", None, "UTC", "2026-12-24 00:00:00"),
    ],
)
def test_a_time_without_an_offset_is_of_the_job_s_zone_else_the_user_s_else_the_host_s(
    at: str, tz: str | None, user: str | None, expected: str
):
    with host_zone("America/New_York"):
        schedule = parse_schedule(at=at, tz=tz, user_zone=user)

    assert f"{from_ms(schedule.at_ms or 0):%Y-%m-%d %H:%M:%S}" == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18:00", "Mon 23 18:00"),
        ("16:00", "Tue 24 16:00"),
        ("9am", "Tue 24 09:00"),
        ("12am", "Tue 24 00:00"),
        ("9:30 PM", "Mon 23 21:30"),
        ("today 23:00", "Mon 23 23:00"),
        ("today 8:00", "Mon 23 08:00"),
        ("tomorrow", "Tue 24 09:00"),
        ("tomorrow 9am", "Tue 24 09:00"),
        ("monday 8:00", "Mon 30 08:00"),
        ("Fri at 7pm", "Fri 27 19:00"),
        ("+20m", "Mon 23 17:20"),
        ("in 2 hours", "Mon 23 19:00"),
        ("+1.5 days", "Wed 25 05:00"),
    ],
)
def test_a_time_in_everyday_words_is_the_next_one(text: str, expected: str):
    berlin, five_o_clock = ZoneInfo("Europe/Berlin"), datetime(2026, 11, 23, 16, tzinfo=UTC)

    assert parse_instant(text, berlin, five_o_clock).astimezone(berlin).strftime("%a %d %H:%M") == expected


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "One of them is needed"),
        ({"every_seconds": 5, "at": "2026-12-24T18:00"}, "Only one of them"),
        ({"at": "soon"}, "as a time. Examples: 18:00"),
        ({"at": "25:00"}, "as a time. Examples: 18:00"),
        ({"at": "13pm"}, "as a time. Examples: 18:00"),
        ({"every_seconds": 0}, "at least one second"),
        ({"every_seconds": 0.5}, "at least one second"),
        ({"every_seconds": float("nan")}, "at least one second"),
        ({"every_seconds": 60, "tz": "UTC"}, "An interval has no time zone"),
        (
            {"cron_expr": "0 9 * * *", "tz": "Europe/Berln"},
            r"unknown timezone 'Europe/Berln'. Did you mean Europe/Berlin\?",
        ),
        ({"cron_expr": "0 9 * * *", "tz": "../etc/passwd"}, "unknown timezone"),
        ({"cron_expr": "0 9 * * *", "tz": "America"}, "unknown timezone"),
        ({"cron_expr": "0 9 * * *", "tz": "x\0y"}, "unknown timezone"),
    ],
)
def test_what_is_no_time_is_refused_with_what_would_be_one(wanted: dict[str, object], said: str):
    with pytest.raises(CronError, match=said):
        parse_schedule(**wanted)  # type: ignore[arg-type]


def test_schedules_are_told_in_words_with_their_offsets():
    berlin = ZoneInfo("Europe/Berlin")
    job = CronJob("1a2b3c4d", "tea", schedule=parse_schedule(cron_expr="0  9 * * 1-5", tz="Europe/Berlin"))
    job.payload.deliver, job.payload.channel, job.payload.to = True, "telegram", "5"

    runs = [to_ms(datetime(2026, month, 1, 8, tzinfo=UTC)) for month in (1, 7)]

    lines = format_job(job, berlin, runs).splitlines()
    assert [line.partition(" (")[0] if line.startswith("-") else line for line in lines] == [
        'Job 1a2b3c4d "tea" runs every weekday at 09:00 (Europe/Berlin), for telegram:5.',
        "Next runs:",
        "- 2026-01-01 09:00 +01:00",
        "- 2026-07-01 10:00 +02:00",
    ]
    told = [format_schedule(CronSchedule("every", every_ms=ms), berlin) for ms in (1_200_000, 3_600_000, 90_000, 1_500)]
    assert told == ["every 20 minutes", "every hour", "every 90 seconds", "every 1.5 seconds"]
    assert format_time(0, ZoneInfo("America/St_Johns")).startswith("1969-12-31 20:30 -03:30 (")


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="only POSIX lets a process change its zone")
@given(
    name=st.sampled_from(
        ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe", "America/Santiago"]
    ),
    instant=st.datetimes(datetime(2020, 1, 1), datetime(2035, 1, 1)),
)
def test_the_host_s_zone_is_read_as_its_name_would_be(name: str, instant: datetime):
    zone, wall = ZoneInfo(name), instant.replace(microsecond=0)
    ms = to_ms(wall.replace(tzinfo=UTC))

    with host_zone(name):
        told, read = format_time(ms, HOST), read_wall_time(wall, HOST)

    assert told == format_time(ms, zone)
    assert read == read_wall_time(wall, zone)
    assert zone_of(None, "") is HOST


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="only POSIX lets a process change its zone")
def test_the_host_s_clock_changes_are_found():
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)

    with host_zone("Europe/Berlin"):
        found = [change.at.astimezone(UTC) for change in clock_changes(HOST, start, end)]

    assert found == [datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)]
    assert from_ms(0, HOST).utcoffset() is not None


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("0 18 * * *", "every day at 18:00 (UTC)"),
        ("5 9 * * mon", "every Monday at 09:05 (UTC)"),
        ("0 9 * * 0", "every Sunday at 09:00 (UTC)"),
        ("0 9 1 * *", "cron 0 9 1 * * (UTC)"),
        ("*/5 9 * * *", "cron */5 9 * * * (UTC)"),
    ],
)
def test_a_daily_or_weekly_schedule_reads_as_words(expr: str, words: str):
    assert format_schedule(CronSchedule("cron", expr=expr), UTC) == words
