"""What the wall around a command costs: `true` behind it against `true` without, by the exec tool and by itself."""

import asyncio
import shutil
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.shell import ExecTool
from nanobot.security.files.paths import PathPolicy, key_places
from nanobot.security.shell.guard import Guard
from tests.bench.measure import Table

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed"),
]
TIMES = 100
LINE = "cd project && git pull && pip install -r requirements.txt | tail -3"


def milliseconds(times: list[float]) -> float:
    return statistics.median(times) * 1000


def test_a_command_behind_the_wall(tmp_path: Path):
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    paths = PathPolicy(workspace, unreadable=key_places(Path.home()), data_folder=tmp_path)

    async def timed(tool: ExecTool) -> float:
        times = []
        for _ in range(TIMES):
            began = time.perf_counter()
            result = await tool.execute("true")
            times.append(time.perf_counter() - began)
            assert not result.error, result.content
        return milliseconds(times)

    plain = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run(["true"], check=True)
        plain.append(time.perf_counter() - began)
    without = asyncio.run(timed(ExecTool(paths, ExecPolicy(sandbox="none"))))
    sandboxed = asyncio.run(timed(ExecTool(paths, ExecPolicy(sandbox="bwrap", tmp=tmp_path / "tmp"))))
    guard = Guard(paths)
    began = time.perf_counter()
    for _ in range(TIMES):
        guard.check(LINE, workspace, sandboxed=True)
    judged = (time.perf_counter() - began) / TIMES

    table = Table("The wall around a command")
    unit = milliseconds(plain)
    table.row("exec `true` without a wall", without, "ms", unit, "subprocess `true`")
    table.row("exec `true` behind bwrap and Landlock", sandboxed, "ms", unit, "subprocess `true`")
    table.row("what the wall adds", sandboxed - without, "ms", unit, "subprocess `true`", "10 ms")
    table.row("the guard reads a line of four commands", judged * 1000, "ms", unit, "subprocess `true`")
    table.show()
