"""A Teams of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_msteams import TeamsPlatform


@pytest.fixture
async def teams(tmp_path: Path) -> AsyncIterator[TeamsPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with TeamsPlatform(folder).open() as platform:
        yield platform
