"""With `restrictToWorkspace`, nothing of the home but the workspace is there, in whatever way one asks."""

from pathlib import Path

import pytest

from tests.support.sandbox_home import SandboxHome

ESCAPES = Path(__file__).with_name("escapes.txt").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in (1, 2, 3))])
def test_nothing_outside_a_restricted_workspace_can_be_read(home: SandboxHome, share: int):
    home = home.restricted()

    read = [command for command in ESCAPES[share::4] if "plain notes" in (ran := home.sh(command)).stdout + ran.stderr]

    assert read == []
    assert (home.path / "notes.txt").exists()
