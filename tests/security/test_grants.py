"""What "always" means: a rule, for thirty days, apart for words from outside."""

import json
import stat
import sys
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
def grants(tmp_path: Path, clock: FrozenClock) -> Grants:
    return Grants(tmp_path / "state" / "grants.json", clock)


def test_a_rule_holds_for_its_own_case_alone_and_in_every_process(grants: Grants, clock: FrozenClock):
    grants.add([RULE], outside=False)

    again = Grants(grants.path, clock)
    assert again.holds([RULE, "folder:/srv"], outside=False) == {RULE}
    assert again.holds([RULE], outside=True) == frozenset()


def test_a_rule_ends_after_thirty_days(grants: Grants, clock: FrozenClock):
    grants.add([RULE], outside=True)
    clock.advance(VALID / timedelta(seconds=1) + 1)

    assert grants.holds([RULE], outside=True) == frozenset()
    assert grants.all() == []


def test_a_rule_that_is_forgotten_holds_no_more(grants: Grants):
    grants.add([RULE], outside=False)
    grants.add([RULE], outside=True)

    assert grants.forget(RULE) == 2
    assert grants.forget(RULE) == 0
    assert grants.all() == []


@pytest.mark.parametrize("text", ["", "[]", '{"grants": [{"rule": 1}]}', "\xff", '{"grants": "all"}'])
def test_a_file_that_is_not_understood_grants_nothing_and_is_kept(grants: Grants, text: str):
    grants.path.parent.mkdir()
    grants.path.write_text(text, encoding="latin-1")

    assert grants.holds([RULE], outside=False) == frozenset()
    with pytest.raises(StorageError, match="Move it away") as caught:
        grants.add([RULE], outside=False)
    assert "Grant()" not in str(caught.value)
    assert grants.path.read_text(encoding="latin-1") == text


def test_a_rule_that_claims_to_hold_for_years_holds_not_at_all(grants: Grants):
    grants.add([RULE], outside=False)
    told = json.loads(grants.path.read_text(encoding="utf-8"))
    told["grants"][0]["expires"] = "2036-01-01T00:00:00+00:00"
    grants.path.write_text(json.dumps(told), encoding="utf-8")

    assert grants.holds([RULE], outside=False) == frozenset()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no modes")
def test_the_file_is_its_owners_alone(grants: Grants):
    grants.add([RULE], outside=False)

    assert stat.S_IMODE(grants.path.stat().st_mode) == 0o600


def test_there_are_no_more_rules_than_anybody_reads(grants: Grants):
    grants.add([f"folder:/srv/{number}" for number in range(1200)], outside=False)

    assert len(grants.all()) == 1000
