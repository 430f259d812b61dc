"""The programs of a skill are known by what they hold, whatever their times say."""

import os
import time
from pathlib import Path

import pytest

from nanobot.agent.skills.programs import Digests


@pytest.mark.skipif(os.name == "nt", reason="it knows no time of the last change of a file's state")
def test_a_program_that_changes_behind_its_old_times_and_a_text_that_becomes_a_program_are_noticed(tmp_path: Path):
    (tmp_path / "a.py").write_text("print(1)")
    (tmp_path / "tool").write_text("echo hi")
    digests = Digests()
    before, times = digests.of(tmp_path), (tmp_path / "a.py").stat()
    time.sleep(0.02)  # the tick of a file system's clock

    (tmp_path / "a.py").write_text("print(2)")
    os.utime(tmp_path / "a.py", ns=(times.st_atime_ns, times.st_mtime_ns))
    (tmp_path / "tool").chmod(0o755)

    assert set(before) == {"a.py"}
    assert set(digests.of(tmp_path)) == {"a.py", "tool"}
    assert digests.of(tmp_path)["a.py"] != before["a.py"]
