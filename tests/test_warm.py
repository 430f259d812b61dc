"""A command from the warm process is what a real start is: else tests would show what no person sees."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if sys.platform != "linux":
    pytest.skip("there is no warm process here", allow_module_level=True)

import pexpect

from tests.support.forkserver import Warm, started
from tests.support.terminal import on_screen

COMMAND = [sys.executable, "-m", "tests.support.forkserver_probe", "some", "words"]


@pytest.fixture(params=[{}, {"LANG": "C.UTF-8"}, {"PYTHONIOENCODING": "utf-8"}], ids=["plain", "language", "encoding"])
def env(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path), "HOME": str(tmp_path), **request.param}


def test_it_sees_what_a_fresh_process_sees(env: dict[str, str], tmp_path: Path):
    told = []
    for start in (started, subprocess.Popen):
        with start(COMMAND, env=env, cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
            told.append(json.loads(child.communicate(timeout=20)[0]))

    assert told[0] == told[1]


def test_it_sees_the_same_terminal(tmp_path: Path):
    env = {"PATH": os.environ["PATH"], "TERM": "xterm"}
    fresh = pexpect.spawn(COMMAND[0], COMMAND[1:], env=env, cwd=str(tmp_path), dimensions=(33, 77))
    warm = on_screen(COMMAND, env=env, cwd=str(tmp_path), dimensions=(33, 77))
    told = [json.loads(child.read()) for child in (warm, fresh)]
    for child in (warm, fresh):
        child.close()

    assert told[0] == told[1]
    assert (warm.exitstatus, warm.signalstatus) == (fresh.exitstatus, fresh.signalstatus) == (0, None)


def test_it_is_killed_and_waited_for_as_others_are(tmp_path: Path):
    command = [sys.executable, "-m", "nanobot", "agent"]
    with started(command, env={"HOME": str(tmp_path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        still = child.poll()
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.01)
        child.kill()

        code = child.wait(10)

    assert isinstance(child, Warm)
    assert (still, code, child.poll()) == (None, -signal.SIGKILL, -signal.SIGKILL)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.parametrize(
    ("command", "env"),
    [
        (["sh", "-c", "exit 7"], {}),
        ([sys.executable, "-c", "raise SystemExit(7)"], {}),
        ([sys.executable, "-m", "nanobot", "--version"], {"FORCE_COLOR": "1"}),
    ],
)
def test_what_it_could_not_show_is_a_real_start(command: list[str], env: dict[str, str]):
    with started(command, env=env, stdout=subprocess.DEVNULL) as child:
        assert not isinstance(child, Warm)
