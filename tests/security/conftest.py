from pathlib import Path

import pytest

from tests.support.sandbox_home import SandboxHome, make_home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SandboxHome:
    """A home with keys in it, and a bot that lives there."""
    return make_home(tmp_path, monkeypatch)
