"""What was left running is remembered as long as it lives, and no longer."""

import subprocess
import sys

import pytest

from nanobot.agent.tools.background import BackgroundCommands
from nanobot.utils.process_tree import Process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a later command sees it by itself")


def test_who_has_ended_makes_room_for_who_comes_after():
    background = BackgroundCommands(max_held=1)
    first, second = (subprocess.Popen(["sleep", "60"]) for _ in range(2))
    try:
        background.remember([Process(first.pid, "sleep")])
        first.kill()
        first.wait()
        background.remember([Process(second.pid, "sleep")])

        assert background.handle_kill(["kill", str(second.pid)]) is not None
        assert second.wait(timeout=10) != 0
    finally:
        for process in (first, second):
            process.kill()
            process.wait()
