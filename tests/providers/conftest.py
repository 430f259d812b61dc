"""A model server for each test that asks for one."""

from collections.abc import Iterator

import pytest

from nanobot.testing.model_server import FakeModels


@pytest.fixture
def server() -> Iterator[FakeModels]:
    with FakeModels() as server:
        yield server
