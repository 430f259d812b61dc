"""Kill -9 anywhere between telling and reading: what was said to be sent is read once, or stands behind the result."""

from pathlib import Path

import pytest

from tests.crash.driver import killed
from tests.support.home import POSIX

pytestmark = [POSIX, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("seed", range(2))
def test_what_teammates_tell_each_other_outlives_every_kill(tmp_path: Path, seed: int):
    found = killed("team_sweep", tmp_path, 40, seed)

    assert found["problems"] == []
