"""When schedules come due: six zones, both clock changes, phases; against a clock that is read minute by minute."""

from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanobot.cron.schedule import check_schedule, from_ms, instants, missed_between, next_instant, to_ms
from nanobot.cron.types import CronError, CronSchedule

CHANGES = {
    "Europe/Berlin": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
    "America/New_York": (datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)),
    "Australia/Lord_Howe": (datetime(2026, 10, 3, 15, 30, tzinfo=UTC), datetime(2026, 4, 4, 15, tzinfo=UTC)),
    "Africa/Cairo": (datetime(2026, 4, 23, 22, tzinfo=UTC), datetime(2026, 10, 29, 21, tzinfo=UTC)),
    "America/St_Johns": (datetime(2026, 3, 8, 5, 30, tzinfo=UTC), datetime(2026, 11, 1, 4, 30, tzinfo=UTC)),
    "Asia/Kolkata": (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)),
}
"""When clocks go forward, and when they go back: Cairo's at midnight, Lord Howe's by half an hour."""
MINUTE = timedelta(minutes=1)


def cron(expr: str, tz: str | None = None) -> CronSchedule:
    return CronSchedule("cron", expr=expr, tz=tz)


def runs(expr: str, zone: str, after: str, count: int) -> list[str]:
    tz = ZoneInfo(zone)
    start = to_ms(datetime.fromisoformat(after).replace(tzinfo=tz))
    found = islice(instants(cron(expr), start, zone=tz, anchor_ms=0), count)
    return [from_ms(due, tz).isoformat(sep=" ", timespec="minutes") for due in found]


@pytest.mark.parametrize(
    ("expr", "after", "expected"),
    [
        ("30 2 * * *", "2026-03-28T12:00", ["2026-03-29 03:00+02:00", "2026-03-30 02:30+02:00"]),
        ("0,30 2 * * *", "2026-03-28T12:00", ["2026-03-29 03:00+02:00", "2026-03-30 02:00+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["2026-10-25 02:30+02:00", "2026-10-26 02:30+01:00"]),
        ("0 9 * * *", "2026-10-24T12:00", ["2026-10-25 09:00+01:00", "2026-10-26 09:00+01:00"]),
        ("30 * * * *", "2026-10-25T01:40", ["2026-10-25 02:30+02:00", "2026-10-25 02:30+01:00"]),
        ("30 * * * *", "2026-03-29T01:00", ["2026-03-29 01:30+01:00", "2026-03-29 03:30+02:00"]),
        ("0 9 * * 1-5", "2026-11-20T10:00", ["2026-11-23 09:00+01:00", "2026-11-24 09:00+01:00"]),
        ("0 0 29 2 *", "2026-11-20T10:00", ["2028-02-29 00:00+01:00", "2032-02-29 00:00+01:00"]),
    ],
)
def test_a_time_of_day_comes_once_a_day_whatever_the_clocks_do(expr: str, after: str, expected: list[str]):
    assert runs(expr, "Europe/Berlin", after, len(expected)) == expected


def shown(start: datetime, hours: int, zone: tzinfo) -> list[tuple[datetime, datetime]]:
    """Each minute of some hours, with what a clock in the zone shows."""
    minutes = [start + MINUTE * number for number in range(60 * hours)]
    return [(minute, minute.astimezone(zone).replace(tzinfo=None)) for minute in minutes]


def read_off(minutes: list[tuple[datetime, datetime]], at: set[tuple[int, int]], every_hour: bool) -> list[datetime]:
    """The oracle: when somebody who looks at the clock each minute would ring."""
    if every_hour:
        return [minute for minute, wall in minutes if (wall.hour, wall.minute) in at]
    rung: set[datetime] = set()
    day = minutes[0][1].replace(hour=0, minute=0)
    while day <= minutes[-1][1]:
        wanted = [day.replace(hour=hour, minute=minute) for hour, minute in at]
        rung.update(next((minute for minute, wall in minutes if wall >= one), minutes[0][0]) for one in wanted)
        day += timedelta(days=1)
    return sorted(rung)


@given(
    zone=st.sampled_from(sorted(CHANGES)),
    forward=st.booleans(),
    minutes=st.sets(st.integers(0, 59), min_size=1, max_size=3),
    hours=st.one_of(st.none(), st.sets(st.integers(0, 4), min_size=1, max_size=3)),
)
def test_what_comes_due_is_what_a_clock_on_the_wall_shows(
    zone: str, forward: bool, minutes: set[int], hours: set[int] | None
):
    tz, change = ZoneInfo(zone), CHANGES[zone][0 if forward else 1]
    expr = f"{','.join(map(str, sorted(minutes)))} {'*' if hours is None else ','.join(map(str, sorted(hours)))} * * *"
    start = change - timedelta(hours=12)
    wanted = {(hour, minute) for hour in (hours or range(24)) for minute in minutes}
    expected = read_off(shown(start - timedelta(hours=24), 60, tz), wanted, hours is None)

    found = []
    for due in instants(cron(expr), to_ms(start), zone=tz, anchor_ms=0):
        if due >= to_ms(start + timedelta(hours=24)):
            break
        found.append(from_ms(due))

    assert found == [due for due in expected if start < due < start + timedelta(hours=24)]


@given(
    every=st.integers(1, 10**8),
    anchor=st.integers(0, 2 * 10**12),
    after=st.integers(0, 2 * 10**12),
    until=st.integers(0, 10**9),
)
def test_an_interval_keeps_its_phase_and_its_instants_are_counted(every: int, anchor: int, after: int, until: int):
    schedule = CronSchedule("every", every_ms=every)
    first, second = islice(instants(schedule, after, zone=UTC, anchor_ms=anchor), 2)

    count, before, last = missed_between(schedule, first, first + until, zone=UTC, limit=10)

    assert 0 < first - after <= every
    assert second - first == every
    assert (first - anchor) % every == 0
    assert (count - 1) * every == last - first
    assert last <= first + until < last + every
    assert before == max(last - every, first)


@settings(max_examples=20)
@given(
    expr=st.sampled_from(["*/37 * * * *", "0 9 * * 1-5", "15 */5 * * *", "30 2 * * *", "0 0 1 * *"]),
    zone=st.sampled_from(sorted(CHANGES)),
    hours=st.integers(0, 24 * 15),
    limit=st.integers(2, 50),
)
def test_the_last_two_instants_are_found_however_few_are_counted(expr: str, zone: str, hours: int, limit: int):
    tz = ZoneInfo(zone)
    first = next(instants(cron(expr), to_ms(CHANGES[zone][0]) - 86_400_000, zone=tz, anchor_ms=0))
    until = first + hours * 3_600_000
    each = [first]
    for due in instants(cron(expr), first, zone=tz, anchor_ms=0):
        if due > until:
            break
        each.append(due)

    count, before, last = missed_between(cron(expr), first, until, zone=tz, limit=limit)

    assert [before, last] == [each[-2:][0], each[-1]]
    assert count == min(len(each), limit)


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("0 0 31 2 *", "never matches any date"),
        ("0 0 30 2 *", "never matches any date"),
        ("61 * * * *", "Invalid cron expression"),
        ("", "Invalid cron expression"),
        ("@every 5m", "Invalid cron expression"),
        ("R * * * *", "random fields"),
        ("H 3 * * *", "random fields"),
        ("a b c d e", "Invalid cron expression"),
        ("* * *", "Invalid cron expression"),
        ("0 9 * * mon#9", "Invalid cron expression"),
    ],
)
def test_what_never_fires_is_refused_with_an_example(expr: str, said: str):
    with pytest.raises(CronError, match=said) as refused:
        check_schedule(cron(expr))

    assert "0 9 * * 1-5" in str(refused.value)


@pytest.mark.parametrize(
    "schedule",
    [CronSchedule("at"), CronSchedule("every"), CronSchedule("every", every_ms=-5), CronSchedule("at", at_ms=-1)],
)
def test_half_a_schedule_is_refused(schedule: CronSchedule):
    with pytest.raises(CronError):
        check_schedule(schedule)


def test_a_one_shot_comes_once():
    schedule = CronSchedule("at", at_ms=5_000)

    assert next_instant(schedule, 4_999, zone=UTC, anchor_ms=0) == 5_000
    assert next_instant(schedule, 5_000, zone=UTC, anchor_ms=0) is None
