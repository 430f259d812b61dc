"""A Telegram of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_telegram import TelegramPlatform


@pytest.fixture
async def telegram(tmp_path: Path) -> AsyncIterator[TelegramPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with TelegramPlatform(folder).open() as platform:
        yield platform
