"""A Mochat of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_mochat import MochatPlatform


@pytest.fixture
async def mochat(tmp_path: Path) -> AsyncIterator[MochatPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with MochatPlatform(folder).open() as platform:
        yield platform
