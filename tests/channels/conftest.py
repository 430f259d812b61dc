"""A platform of one's own for each test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from nanobot.testing.platform import Platform
from tests.fakes.platforms import platform_class


def platform_fixture(name: str) -> Callable[..., Any]:
    """A fixture: the fake of this platform, running."""

    async def open_platform(tmp_path: Path) -> AsyncIterator[Platform]:
        (folder := tmp_path / "platform").mkdir()
        async with platform_class(name)(folder).open() as platform:
            yield platform

    return pytest.fixture(open_platform)


dingtalk, feishu, matrix, mochat, qq, slack, teams, telegram, wecom, weixin, whatsapp = map(
    platform_fixture,
    ["dingtalk", "feishu", "matrix", "mochat", "qq", "slack", "msteams", "telegram", "wecom", "weixin", "whatsapp"],
)
