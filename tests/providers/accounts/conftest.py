"""An authority and connections for each test that asks for them."""

from collections.abc import AsyncIterator, Iterator

import pytest

from nanobot.net.pools import HttpPools
from tests.fakes.oauth_server import FakeAuthority


@pytest.fixture
def server() -> Iterator[FakeAuthority]:
    with FakeAuthority() as server:
        yield server


@pytest.fixture
async def pools() -> AsyncIterator[HttpPools]:
    pools = HttpPools()
    yield pools
    await pools.close()
