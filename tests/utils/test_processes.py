import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from nanobot.utils.processes import child_process, count_processes

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
ENV = {"PATH": os.environ.get("PATH", os.defpath)}


def sh(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


async def test_a_child_has_two_streams_and_a_code(tmp_path: Path):
    async with child_process(sh("echo out; echo err >&2; exit 7"), cwd=tmp_path, env=ENV) as child:
        out, err = await asyncio.gather(child.stdout.read(), child.stderr.read())
        code = await child.wait()

    assert (out, err, code) == (b"out\n", b"err\n", 7)


async def test_waiting_ends_with_the_process_not_with_its_streams(tmp_path: Path):
    began = time.monotonic()

    async with child_process(sh("sleep 320 & exit 0"), cwd=tmp_path, env=ENV) as child:
        await child.wait()
        family = await child.family()
        await child.kill()
        left = await child.family()

    assert time.monotonic() - began < 3
    assert [process.command for process in family] in (["sleep"], ["sh"])
    assert left == []


async def test_a_child_is_alone_in_its_session_and_has_no_terminal(tmp_path: Path):
    script = "import os; print(os.getsid(0) == os.getpid(), os.isatty(0), os.read(0, 1))"

    async with child_process([sys.executable, "-c", script], cwd=tmp_path, env=ENV) as child:
        out = await child.stdout.read()

    assert out == b"True False b''\n"


async def test_an_error_in_the_block_ends_the_family(tmp_path: Path):
    with pytest.raises(ZeroDivisionError):
        async with child_process(sh("sleep 321 & sleep 322"), cwd=tmp_path, env=ENV) as child:
            raise ZeroDivisionError

    assert await child.family() == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only /proc shows the mark")
async def test_who_left_session_and_parents_is_found_by_the_mark(tmp_path: Path):
    script = "(setsid sh -c 'setsid sleep 323 >/dev/null 2>&1 & exit 0' &); sleep 0.2"
    async with child_process(sh(script), cwd=tmp_path, env=ENV) as child:
        await child.wait()

        family = await child.family()
        await child.kill()

        assert [process.command for process in family] == ["sleep"]
        assert await child.family() == []


@pytest.mark.parametrize("argv", [["/no/such/program"], ["/etc/passwd"]])
async def test_what_cannot_be_started_raises_oserror(tmp_path: Path, argv: list[str]):
    with pytest.raises(OSError):
        async with child_process(argv, cwd=tmp_path, env=ENV):
            pass


async def test_a_folder_that_is_gone_raises_oserror(tmp_path: Path):
    with pytest.raises(OSError):
        async with child_process(sh("true"), cwd=tmp_path / "gone", env=ENV):
            pass


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counted in /proc")
def test_processes_are_counted():
    assert count_processes() > 0
