"""Kill -9 anywhere between telling and reading: what was said to be sent is read once, or stands behind the result."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stories.processes import POSIX

pytestmark = [POSIX, pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("seed", range(2))
def test_what_teammates_tell_each_other_outlives_every_kill(tmp_path: Path, seed: int):
    words = [sys.executable, "-m", "tests.stories.killed_team", str(tmp_path), "40", str(seed)]

    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-2_000:]
    assert json.loads(done.stdout)["problems"] == []
