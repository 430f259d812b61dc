"""A day with many deaths: whatever moment a kill -9 comes at, what was answered is there and the next turn is legal."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="kill -9 and fork are POSIX")


def die_often(home: Path, lives: int, seed: int) -> dict[str, dict[str, int]]:
    command = [sys.executable, "-m", "tests.stories.many_lives", str(home), str(lives), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, dict[str, int]] = json.loads(done.stdout)
    assert not seen["problems"]
    return seen


@pytest.mark.parametrize("seed", range(2))
def test_kill_9_in_the_middle_of_turns_loses_nothing(tmp_path: Path, seed: int):
    seen = die_often(tmp_path, 50, seed)

    assert seen["counts"]["kills"] == 50
    assert seen["counts"]["killed in a turn"] > 20
    assert seen["counts"]["replies"] > 20


def die_at_every_write(each: int, seed: int) -> dict[str, int]:
    command = [sys.executable, "-m", "tests.stories.every_write", str(each), str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout)
    assert not seen["problems"]
    counts: dict[str, int] = seen["counts"]
    print(counts)
    return counts


@pytest.mark.timeout(180)  # 20 s alone; a busy machine takes three times as long
def test_a_turn_that_is_killed_at_a_write_goes_on_and_no_call_runs_twice():
    counts = die_at_every_write(each=9, seed=3)

    assert counts["kills"] > 50
    assert counts["accepted"] > 50
    assert counts["taken up by itself"] > 10
    assert counts["unknown"] > 10


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(6))
def test_a_turn_that_is_killed_at_each_write_and_each_step(seed: int):
    counts = die_at_every_write(each=1, seed=seed)

    assert counts["kills"] > 500
    assert counts["killed again"] > 50


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_kill_9_ten_thousand_times(tmp_path: Path):
    seen = die_often(tmp_path, 10_000, 7)

    print(seen["counts"])
    assert seen["counts"]["kills"] == 10_000
