"""A day with many deaths: whatever moment a kill -9 comes at, what was answered is there and the next turn is legal."""

import json
import os
from pathlib import Path

import pytest

from tests.crash.turn_sweep import KINDS
from tests.support.home import told

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9 and fork are POSIX")


def die_often(home: Path, lives: int, seed: int) -> dict[str, dict[str, int]]:
    seen: dict[str, dict[str, int]] = json.loads(told("tests.crash.restarts", str(home), str(lives), str(seed)))
    assert not seen["problems"]
    return seen


@pytest.mark.parametrize("seed", range(1))
def test_kill_9_in_the_middle_of_turns_loses_nothing(tmp_path: Path, seed: int):
    seen = die_often(tmp_path, 12, seed)

    assert seen["counts"]["kills"] == 12
    assert seen["counts"]["killed in a turn"] > 3
    assert seen["counts"]["replies"] > 3


def every_write(each: int, seed: int, kind: str, modes: str) -> dict[str, int]:
    seen = json.loads(told("tests.crash.turn_sweep", str(each), str(seed), kind, modes))
    assert not seen["problems"]
    counts: dict[str, int] = seen["counts"]
    print(kind, modes, counts)
    return counts


@pytest.mark.timeout(180)  # 20 s alone; a busy machine takes three times as long
@pytest.mark.parametrize("kind", [pytest.param("joins", marks=pytest.mark.slow), "window"])
def test_a_turn_that_is_killed_at_a_write_goes_on_and_no_call_runs_twice(kind: str):
    weighs = kind == "window"  # each of these lives counts its tokens, with a table that takes time to read
    counts = every_write(each=47, seed=3, kind=kind, modes="kill")

    assert counts["kills"] > 5
    assert counts["accepted"] > 2
    assert counts["window moved"] > 2 or not weighs


@pytest.mark.parametrize("kind", ["joins"])
def test_a_disk_that_refuses_a_write_is_told_and_the_next_turn_works(kind: str):
    counts = every_write(each=11, seed=3, kind=kind, modes="full")

    assert counts["full: failed"] > 2
    assert counts["refused: answered"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_a_turn_that_is_killed_at_each_write_and_each_step(kind: str, seed: int):
    counts = every_write(each=1, seed=seed, kind=kind, modes="kill")

    assert counts["kills"] > 200
    assert counts["killed again"] > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_refuses_any_write(kind: str):
    counts = every_write(each=1, seed=1, kind=kind, modes="full")

    assert counts["full: failed"] > 20


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(7, 17))
def test_kill_9_ten_thousand_times(tmp_path: Path, seed: int):
    seen = die_often(tmp_path, 1_000, seed)

    print(seen["counts"])
    assert seen["counts"]["kills"] == 1_000
