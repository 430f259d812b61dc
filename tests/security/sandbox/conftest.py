"""Sandboxes hide /dev, where the folders of other tests may be."""

from pathlib import Path

import pytest


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path
