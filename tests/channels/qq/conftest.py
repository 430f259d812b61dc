"""A QQ of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_qq import QQPlatform


@pytest.fixture
async def qq(tmp_path: Path) -> AsyncIterator[QQPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with QQPlatform(folder).open() as platform:
        yield platform
