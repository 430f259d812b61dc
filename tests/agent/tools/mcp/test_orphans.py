"""Whatever becomes of us, no server and nothing a server started is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanobot.agent.tools.mcp.server import McpTimeouts
from tests.support.eventually import wait_until
from tests.support.mcp import OpenBench, child

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for survivors in /proc")


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


def test_a_kill_that_nobody_can_hear_leaves_no_survivors(tmp_path: Path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    environment = {**os.environ, "HOME": f"/nowhere/{mark}"}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.programs.mcp_client", str(tmp_path), mark],
        stdout=subprocess.PIPE,
        env=environment,
    ) as ours:
        assert ours.stdout is not None
        assert ours.stdout.readline() == b"up\n"
        wait_until(lambda: len(alive(mark)) >= 10)

        ours.send_signal(signal.SIGKILL)
        ours.wait()

    wait_until(lambda: alive(mark) == [])


async def test_closing_ends_a_server_and_the_daemon_it_left(bench: OpenBench, tmp_path: Path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    lamp = await bench(child("lamp", "daemon", env={"MARK": mark}))
    wait_until(lambda: len(alive(mark)) >= 3)
    begun = time.monotonic()

    await lamp.registry.close()
    waited = time.monotonic() - begun

    assert waited < 20  # the daemon would stay for a minute
    wait_until(lambda: alive(mark) == [])


async def test_closing_ends_a_server_that_has_just_failed_to_answer(bench: OpenBench, tmp_path: Path):
    mark = f"mark-{tmp_path.name}-{os.getpid()}"
    noisy = await bench(child("noisy", "babbles", mark), timeouts=McpTimeouts(to_connect_s=0.3, first_listing_s=20))

    await noisy.registry.close()  # while the program is being ended

    assert alive(mark) == []
