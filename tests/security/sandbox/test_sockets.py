"""Which services a command could call at all."""

import os
import sys
from pathlib import Path

import pytest

from nanobot.security.sandbox.sockets import in_reach

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="who is not root may not even look into such folders"
)
NOBODY = 65534


@pytest.mark.parametrize(
    ("owner", "mode", "reached"), [(0, 0o700, True), (NOBODY, 0o755, True), (NOBODY, 0o700, False)]
)
def test_a_closed_folder_of_somebody_else_is_out_of_reach_for_a_command_of_root(
    tmp_path: Path, owner: int, mode: int, reached: bool
):
    folder = tmp_path / "home"
    (folder / "state").mkdir(parents=True)
    folder.chmod(mode)
    os.chown(folder, owner, owner)

    socket = folder / "state" / "gateway.sock"

    assert in_reach([socket]) == ([socket] if reached else [])
