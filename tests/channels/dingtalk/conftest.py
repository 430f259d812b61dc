"""A DingTalk of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_dingtalk import DingTalkPlatform


@pytest.fixture
async def dingtalk(tmp_path: Path) -> AsyncIterator[DingTalkPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with DingTalkPlatform(folder).open() as platform:
        yield platform
