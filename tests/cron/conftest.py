from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from nanobot.cron.types import CronSchedule
from tests.support.cron import Crew


@pytest.fixture
async def crew(tmp_path: Path) -> AsyncIterator[Crew]:
    crew = Crew(tmp_path)
    yield crew
    for service in crew.services:
        await service.close(0)


@pytest.fixture
def every() -> Callable[[float], CronSchedule]:
    """An interval in seconds."""
    return lambda seconds: CronSchedule("every", every_ms=round(seconds * 1000))
