"""What the stories share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nanobot.testing.model_server import FakeModels
from tests.support.home import Home


@pytest.fixture
def server() -> Iterator[FakeModels]:
    """A model of the test's own."""
    with FakeModels() as running:
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home without a file, a key or a model."""
    return Home(tmp_path)


@pytest.fixture
def served(tmp_path: Path, server: FakeModels) -> Home:
    """A home whose model is `server`."""
    return Home(tmp_path, server)
