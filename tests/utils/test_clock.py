"""What time it is, and where."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from nanobot.utils.clock import FrozenClock, SystemClock, zone_name


@pytest.fixture
def shanghai(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    if not hasattr(time, "tzset"):
        pytest.skip("the host's zone cannot be changed here")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_host_s_zone_is_named_as_the_tz_database_names_it(shanghai):
    assert zone_name(SystemClock().now()) == "Asia/Shanghai"


def test_a_zone_of_one_s_own_goes_before_the_host_s(shanghai):
    now = SystemClock(ZoneInfo("Europe/Berlin")).now()

    assert zone_name(now) == "Europe/Berlin"


def test_a_moment_from_elsewhere_is_not_given_the_host_s_zone(shanghai):
    moment = datetime(2026, 2, 26, tzinfo=timezone(timedelta(hours=-3), "ART"))

    assert zone_name(moment) == "ART"
    assert zone_name(datetime(2026, 2, 26, tzinfo=UTC)) == "UTC"


def test_a_frozen_clock_goes_on_only_when_told():
    clock = FrozenClock(datetime(2026, 2, 26, 12, tzinfo=UTC))
    assert (clock.now().hour, clock.monotonic()) == (12, 0.0)

    clock.advance(3600)

    assert (clock.now().hour, clock.monotonic()) == (13, 3600.0)
