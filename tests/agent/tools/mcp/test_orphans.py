"""Whatever becomes of us, no server and nothing a server started is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.agent.tools.mcp.conftest import CHILD, OpenBench, child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for survivors in /proc")

OURSELVES = """
import asyncio, sys
from pathlib import Path
from nanobot.agent.tools.mcp.server import McpServer
from nanobot.agent.tools.mcp.settings import ServerSettings
from nanobot.utils.clock import SystemClock

async def main():
    folder, child, mark = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    servers = [
        McpServer(
            ServerSettings(f"s{number}", command=sys.executable, args=("-I", "-S", child, "daemon", "stays", mark)),
            memory=folder, clock=SystemClock(),
        )
        for number in range(3)
    ]
    await asyncio.gather(*(server.connect() for server in servers))
    print("up", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def alive(mark: str) -> list[str]:
    """Who carries this word in its environment or among its arguments, and lives."""
    found = []
    for place in Path("/proc").iterdir():
        if place.name.isdigit() and int(place.name) != os.getpid():
            try:
                words = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            except OSError:
                continue
            if mark.encode() in words:
                found.append(words.replace(b"\0", b" ")[:80].decode(errors="replace"))
    return found


def wait_until_gone(mark: str, patience_s: float) -> list[str]:
    deadline = time.monotonic() + patience_s
    while (left := alive(mark)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def test_a_kill_that_nobody_can_hear_leaves_no_survivors(tmp_path: Path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    environment = {**os.environ, "HOME": f"/nowhere/{mark}"}
    with subprocess.Popen(
        [sys.executable, "-c", OURSELVES, str(tmp_path), CHILD, mark], stdout=subprocess.PIPE, env=environment
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"up\n"
        while len(alive(mark)) < 10:  # ourselves, and of each server the keeper, the server and its daemon
            time.sleep(0.01)

        ours.send_signal(signal.SIGKILL)
        ours.wait()

    assert wait_until_gone(mark, 10) == []


async def test_closing_ends_a_server_and_the_daemon_it_left(bench: OpenBench, tmp_path: Path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    lamp = await bench(child("lamp", "daemon", mark))
    before = len(alive(mark))
    begun = time.monotonic()

    await lamp.registry.close()
    waited = time.monotonic() - begun

    assert before >= 2
    assert waited < 5
    assert wait_until_gone(mark, 10) == []
