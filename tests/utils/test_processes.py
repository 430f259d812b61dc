import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from nanobot.utils.processes import child_process
from tests.support.eventually import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="spaces of process numbers")
ENV = {"PATH": os.environ.get("PATH", os.defpath)}


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only /proc shows the mark")
async def test_who_left_session_and_parents_is_found_by_the_mark(tmp_path: Path):
    script = "(setsid sh -c 'setsid sleep 323 >/dev/null 2>&1 & exit 0' &); sleep 0.2"
    async with child_process(sh(script), cwd=tmp_path, env=ENV) as child:
        await child.wait()

        family = await child.family()
        await child.kill()

        assert [process.command for process in family] == ["sleep"]
        assert await child.family() == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only /proc shows the mark")
async def test_who_is_never_there_for_long_ends_too(tmp_path: Path):
    lives = tmp_path / "lives"
    script = f"""
import os, time
while time.time() < {time.time() + 10}:
    if os.fork():
        os._exit(0)
    os.setsid()
    open({str(lives)!r}, "w").close()
"""
    async with child_process([sys.executable, "-S", "-c", script], cwd=tmp_path, env=ENV) as child:
        await child.wait()
        await eventually(lives.exists)

        await child.kill()
        lives.unlink()
        await asyncio.sleep(0.1)

    assert not lives.exists()


@linux_only
async def test_a_sandbox_that_fails_before_it_makes_a_space_is_heard(tmp_path: Path):
    async with child_process(lambda tells: sh("echo broken >&2; exit 1"), cwd=tmp_path, env=ENV) as child:
        said = await child.stderr.read()

        assert (await child.wait(), said) == (1, b"broken\n")
