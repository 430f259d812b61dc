"""What is read while somebody watches."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.security.file_reads import ReadWatcher

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells it on Linux alone")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name in ("a", "b", "inside/c"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("words", encoding="utf-8")
    yield tmp_path


@pytest.mark.parametrize(
    ("command", "read"),
    [
        ("cat a", ["a"]),
        ("cat inside/*", ["inside/c"]),
        ("sh a 2>/dev/null; true", ["a"]),
        ("ln b d && cat d", ["b"]),
        ("ls -lR; stat a; echo x >> b; echo y > inside/new; mv a z; rm b", []),
        ("cat nothing 2>/dev/null", []),
    ],
)
def test_what_is_opened_to_be_read_is_told_and_what_is_looked_at_or_written_is_not(
    folder: Path, command: str, read: list[str]
):
    watch = ReadWatcher([str(folder / "a"), str(folder / "b"), str(folder / "gone")], [str(folder / "inside")])

    subprocess.run(["sh", "-c", command], cwd=folder, check=False, capture_output=True)
    told = watch.paths()
    watch.close()

    assert told == {str(folder / name) for name in read}
