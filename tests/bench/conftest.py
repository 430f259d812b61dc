"""A benchmark is about the disk that people have, not about memory."""

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path
