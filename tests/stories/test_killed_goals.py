"""Kill -9 anywhere in the life of a goal: it ends once, is told once, and nothing that its person said is lost."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.processes import POSIX

pytestmark = POSIX


def killed(homes: Path, rounds: int, seed: int) -> dict[str, object]:
    words = [sys.executable, "-m", "tests.stories.killed_goals", str(homes), str(rounds), str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_a_goal_that_is_killed_is_reached_once(tmp_path: Path):
    found = killed(tmp_path, 2, 1)

    assert found["problems"] == []
    assert found["kills"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10, 14))
def test_hundreds_of_killed_goals_are_reached_once(tmp_path: Path, seed: int):
    found = killed(tmp_path, 100, seed)

    assert found["problems"] == []
