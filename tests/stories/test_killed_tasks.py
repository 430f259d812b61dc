"""Kill -9 anywhere between the asking and the report: the subagent's work is told once, to who asked."""

from pathlib import Path

import pytest

from tests.crash.driver import killed
from tests.support.home import POSIX

pytestmark = POSIX


def test_a_subagent_that_is_killed_is_reported_once(tmp_path: Path):
    found = killed("task_sweep", tmp_path, 4, 1)

    assert found["problems"] == []
    assert found["kills"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", range(10, 14))
def test_hundreds_of_killed_subagents_are_reported_once(tmp_path: Path, seed: int):
    found = killed("task_sweep", tmp_path, 100, seed)

    assert found["problems"] == []
