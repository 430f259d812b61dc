from pathlib import Path

import pytest

from tests.support.running_gateway import OpenGateway, gateway_opener


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenGateway:
    return gateway_opener(tmp_path, monkeypatch)
