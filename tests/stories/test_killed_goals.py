"""Kill -9 anywhere in the life of a goal: it ends once, is told once, and nothing that its person said is lost."""

from pathlib import Path

import pytest

from tests.crash.driver import killed
from tests.support.home import POSIX

pytestmark = POSIX


def test_a_goal_that_is_killed_is_reached_once(tmp_path: Path):
    found = killed("goal_sweep", tmp_path, 2, 1)

    assert found["problems"] == []
    assert found["kills"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10, 14))
def test_hundreds_of_killed_goals_are_reached_once(tmp_path: Path, seed: int):
    found = killed("goal_sweep", tmp_path, 100, seed)

    assert found["problems"] == []
