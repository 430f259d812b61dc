"""What a server sends that is no text is kept as a file, and only where it belongs."""

import os
from pathlib import Path

import pytest

from nanobot.agent.tools.mcp.results import ReceivedFiles


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
async def test_what_a_server_sends_does_not_follow_a_link_out(tmp_path: Path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "workspace/.nanobot").mkdir(parents=True)
    (tmp_path / "workspace/.nanobot/received").symlink_to(tmp_path / "elsewhere")

    kept = await ReceivedFiles(tmp_path / "workspace").save("AAAA", "image/png")

    assert kept is None
    assert not list((tmp_path / "elsewhere").iterdir())
