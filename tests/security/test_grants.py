"""What "always" means: a rule, for thirty days, apart for words from outside."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from nanobot.errors import StorageError
from nanobot.security.grants import VALID, Grants
from nanobot.utils.clock import FrozenClock

RULE = "folder:/srv/files"


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock(datetime(2026, 3, 1, 12))


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "state" / "nanobot.db"


@pytest.fixture
def grants(database: Path, clock: FrozenClock) -> Grants:
    return Grants(database, clock)


def test_a_rule_holds_for_its_own_case_alone_and_in_every_process(grants: Grants, database: Path, clock: FrozenClock):
    grants.add([RULE], outside=False)

    again = Grants(database, clock)
    assert again.holds([RULE, "folder:/srv"], outside=False) == {RULE}
    assert again.holds([RULE], outside=True) == frozenset()


def test_a_rule_ends_after_thirty_days_or_when_it_is_forgotten(grants: Grants, clock: FrozenClock):
    for outside in (True, False):
        grants.add([RULE], outside=outside)
    counts = [len(grants.all()), grants.forget(RULE), grants.forget(RULE), len(grants.all())]
    grants.add([RULE], outside=True)
    clock.advance(VALID / timedelta(seconds=1) + 1)

    assert counts == [2, 2, 0, 0]
    assert grants.holds([RULE], outside=True) == frozenset()
    assert grants.all() == []


def test_a_database_that_cannot_be_read_grants_nothing_and_is_kept(grants: Grants, database: Path):
    database.parent.mkdir()
    database.write_text("no database at all" * 100, encoding="utf-8")

    assert grants.holds([RULE], outside=False) == frozenset()
    with pytest.raises(StorageError):
        grants.add([RULE], outside=False)
    assert database.read_text(encoding="utf-8").startswith("no database")


def test_a_rule_from_the_future_does_not_hold(grants: Grants, database: Path, clock: FrozenClock):
    ahead = FrozenClock(clock.now() + timedelta(days=3650))
    Grants(database, ahead).add([RULE], outside=False)

    assert grants.holds([RULE], outside=False) == frozenset()
