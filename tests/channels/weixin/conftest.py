"""A WeChat of one's own for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fakes.platform_weixin import WeixinPlatform


@pytest.fixture
async def weixin(tmp_path: Path) -> AsyncIterator[WeixinPlatform]:
    (folder := tmp_path / "platform").mkdir()
    async with WeixinPlatform(folder).open() as platform:
        yield platform
