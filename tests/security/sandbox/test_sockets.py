"""Which services a command could call at all."""

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from nanobot.security.sandbox.view import listening_sockets

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="who is not root may not even look into such folders"
)
NOBODY = 65534


@pytest.mark.parametrize(
    ("owner", "mode", "reached"), [(0, 0o700, True), (NOBODY, 0o755, True), (NOBODY, 0o700, False)]
)
def test_a_closed_folder_of_somebody_else_is_out_of_reach_for_a_command_of_root(owner: int, mode: int, reached: bool):
    with tempfile.TemporaryDirectory() as name, socket.socket(socket.AF_UNIX) as service:
        folder = Path(name) / "home"
        folder.mkdir()
        place = folder / "s"
        service.bind(str(place))
        service.listen()
        folder.chmod(mode)
        os.chown(folder, owner, owner)

        assert (place in listening_sockets()) is reached
