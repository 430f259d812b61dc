"""A WeCom of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_wecom import WeComPlatform


@pytest.fixture
async def wecom(tmp_path: Path) -> AsyncIterator[WeComPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with WeComPlatform(folder).open() as platform:
        yield platform
