from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.browser import Tabs, launched
from tests.support.running_gateway import OpenGateway, gateway_opener


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenGateway:
    return gateway_opener(tmp_path, monkeypatch)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
    async with launched() as browser:
        yield browser


@pytest_asyncio.fixture(loop_scope="module")
async def tabs(chromium: Any) -> AsyncIterator[Tabs]:
    opened = Tabs(chromium)
    yield opened
    await opened.close()
    assert opened.problems == []
