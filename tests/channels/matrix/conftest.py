"""A homeserver of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_matrix import MatrixPlatform


@pytest.fixture
async def matrix(tmp_path: Path) -> AsyncIterator[MatrixPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with MatrixPlatform(folder).open() as platform:
        yield platform
