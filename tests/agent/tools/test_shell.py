"""exec: what a command is told, what it may take, and that none of it is left behind."""

import asyncio
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nanobot.agent.tools.base import ToolContext, ToolResult
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecTool
from nanobot.security.files.paths import PathPolicy
from tests.support.eventually import eventually, longest_pause_until
from tests.support.processes import running, unlikely_number

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="commands of a POSIX shell")
linux_only = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")

PYTHON = os.path.realpath(sys.executable)
"""Not the one of our own environment: that may lie in /tmp, and a command has a /tmp of its own."""


def runner(workspace: Path, ctx: ToolContext, *, sandboxed: bool):
    async def run_it(command: str, *, policy: ExecPolicy | None = None, **params) -> ToolResult:
        policy = replace(policy or ExecPolicy(), sandbox="bwrap" if sandboxed else "none")
        registry = ToolRegistry()
        registry.register(ExecTool(PathPolicy(workspace), policy))
        return await registry.call("exec", {"command": command, **params}, ctx)

    return run_it


@pytest.fixture
def run(workspace: Path, ctx: ToolContext):
    """In a sandbox if there is one: what is promised does not depend on it."""
    return runner(workspace, ctx, sandboxed=shutil.which("bwrap") is not None)


@pytest.fixture(params=["sandboxed", "not sandboxed"])
def run_both(request: pytest.FixtureRequest, workspace: Path, ctx: ToolContext):
    sandboxed = request.param == "sandboxed"
    if sandboxed and shutil.which("bwrap") is None:
        pytest.skip("bwrap is not installed")
    return runner(workspace, ctx, sandboxed=sandboxed)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo out; echo err >&2; exit 3", "out\nSTDERR:\nerr\n\nExit code: 3"),
        ("true", "(no output)\n\nExit code: 0"),
        ("cat; read x; echo done", "done\n\nExit code: 0"),
        ("no-such-program-here 2>/dev/null", "(no output)\n\nExit code: 127 (no such command)"),
        (
            r"printf 'ol\351 \360\237\230\200 \033[1;31mred\033[0m \033]0;title\007plain\033[2J\n'",
            "ol\ufffd \U0001f600 red plain\n\nExit code: 0",
        ),
        ("", "Error: The command is empty or contains a NUL character. Give a shell command."),
        ("echo a\0b", "Error: The command is empty or contains a NUL character. Give a shell command."),
    ],
)
async def test_output_errors_and_exit_code_are_told_apart(run, command: str, said: str):
    result = await run(command)

    assert (result.content, result.error) == (said, not said.endswith("Exit code: 0"))


async def test_it_runs_in_the_workspace_or_where_it_is_told(run_both, workspace: Path):
    (workspace / "süb").mkdir()

    here, below, nowhere = [str((await run_both("pwd", working_dir=at)).content) for at in (None, "süb", "nowhere")]

    assert here.startswith(str(workspace))
    assert below.startswith(str(workspace / "süb"))
    assert "not a folder that exists" in nowhere


async def test_keys_of_ours_are_not_in_its_environment(run_both, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_TOKEN", "allowed")
    policy = ExecPolicy(allowed_env_keys=("MY_TOKEN",), path_prepend="/opt/first", path_append="/opt/last")

    shown = str((await run_both("/usr/bin/env", policy=policy)).content)

    assert "sk-secret" not in shown
    assert "MY_TOKEN=allowed" in shown
    assert re.search(r"^PATH=/opt/first:.*:/opt/last$", shown, re.MULTILINE)


@linux_only
async def test_a_command_that_never_ends_is_stopped_with_all_its_family(run_both):
    began, number = time.monotonic(), unlikely_number()
    hides = f"(setsid sh -c 'setsid sleep {number} & wait' &)"

    policy = ExecPolicy(max_timeout_s=0.5)
    result = await run_both(f"sleep {number} & {hides}; sleep {number}", policy=policy, timeout="9999")

    assert "Timed out after 0.5 s" in str(result.content)
    assert result.error
    assert time.monotonic() - began < 10
    assert not running("sleep", number)


@linux_only
async def test_a_cancel_ends_the_family_within_two_seconds(run_both):
    number = unlikely_number()
    task = asyncio.create_task(run_both(f"trap '' TERM HUP INT; (setsid sleep {number} &); while :; do sleep 1; done"))
    await eventually(lambda: running("sleep", number))
    began = time.monotonic()

    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert time.monotonic() - began < 2
    assert not running("sleep", number)


async def test_output_without_end_is_bounded_and_others_go_on(run, workspace: Path):
    task = asyncio.create_task(run("yes", policy=ExecPolicy(spill_cap=1024 * 1024), timeout=0.5))

    longest = await longest_pause_until(task)

    assert len(str(task.result().content)) < 16_000
    assert "The first 1.0 MB of" in str(task.result().content)
    assert longest < 1.0
    (spilled,) = (workspace / ".nanobot/spill").iterdir()
    assert spilled.stat().st_size == 1024 * 1024


async def test_long_output_shows_head_and_tail_and_where_the_whole_is(run, workspace: Path):
    result = str((await run("seq 1 200000")).content)

    assert result.startswith("1\n2\n3\n")
    assert "199999\n200000\n\nExit code: 0" in result
    assert len(result) < 16_000
    (spilled,) = (workspace / ".nanobot/spill").iterdir()
    assert str(spilled) in result
    assert spilled.read_text(encoding="utf-8") == "".join(f"{number}\n" for number in range(1, 200_001))
    assert stat.S_IMODE(spilled.stat().st_mode) == 0o600


async def test_a_disk_that_refuses_the_rest_costs_the_middle_not_the_answer(run, workspace: Path):
    (workspace / ".nanobot").write_text("in the way", encoding="utf-8")

    result = str((await run("seq 1 200000")).content)

    assert "The rest could not be saved" in result
    assert "200000\n\nExit code: 0" in result


@pytest.mark.parametrize(
    "command",
    [
        f"{PYTHON} -c 'input()'",
        f"{PYTHON} -c 'open(\"/dev/tty\")'",
        f"{PYTHON} -c 'import termios; termios.tcgetattr(0)'",
        "test -t 0 || { echo 'a terminal is required to read the password' >&2; exit 1; }",
    ],
)
async def test_what_asks_for_a_terminal_ends_with_advice(run, command: str):
    result = await run(command, timeout=20)

    assert result.error
    assert "nobody to answer questions here" in str(result.content)
    assert "Timed out" not in str(result.content)


async def test_a_child_in_the_background_does_not_hold_the_answer(run_both):
    number = unlikely_number()

    result = await run_both(f"sleep {number} & echo started")

    assert result.content == "started\n\nExit code: 0"
    assert not running("sleep", number)


@linux_only
async def test_what_was_detached_on_purpose_goes_on_and_is_named(run_both):
    number = unlikely_number()

    result = await run_both(f"nohup sleep {number} >log 2>&1 &")

    (pid,) = running("sleep", number)
    assert f"Still running in the background: sleep (pid {pid})" in str(result.content)
    os.kill(pid, 9)


@linux_only
async def test_a_command_that_only_makes_more_of_itself_is_stopped(run_both):
    number = unlikely_number()
    command = f"for i in $(seq 1 120); do sleep {number} & done; wait"

    result = await run_both(command, policy=ExecPolicy(max_processes=40), timeout=20)

    assert "more than 40 processes" in str(result.content)
    assert not running("sleep", number)


@linux_only
async def test_it_is_seen_as_well_while_others_of_the_host_end(run):
    others = subprocess.Popen(["/bin/sh", "-c", "for i in $(seq 60); do sleep 30 & done; wait"], start_new_session=True)
    command = f"sleep 0.4; for i in $(seq 50); do sleep {unlikely_number()} & done; wait"

    running_it = asyncio.create_task(run(command, policy=ExecPolicy(max_processes=40), timeout=20))
    await asyncio.sleep(0.3)
    os.killpg(others.pid, 9)
    others.wait()

    assert "more than 40 processes" in str((await running_it).content)


@linux_only
async def test_memory_counts_for_all_of_them_together(run_both):
    code = f"x = bytearray(60_000_000); import time; time.sleep({unlikely_number()})"
    command = f"for i in 1 2 3; do {PYTHON} -S -c '{code}' & done; wait"

    result = await run_both(command, policy=ExecPolicy(max_memory=100_000_000), timeout=20)

    assert "took more than 0.1 GB of memory together" in str(result.content)
    assert not running(PYTHON, "-S", "-c", code)


@linux_only
async def test_a_command_that_fills_the_disk_is_stopped(workspace: Path):
    free = shutil.disk_usage(workspace).free
    if free < 2 << 30:
        pytest.skip("there is no room to play with")
    tool = ExecTool(PathPolicy(workspace), ExecPolicy(disk_left=free - (256 << 20), sandbox="none"))
    fill = 'import os, time; os.posix_fallocate(os.open("big", os.O_CREAT | os.O_WRONLY), 0, 768 << 20); time.sleep(30)'

    result = await tool.execute(f"{PYTHON} -S -c '{fill}'", timeout=20)
    (workspace / "big").unlink()

    assert "MB on the disk. Delete what it wrote. All its processes were ended." in str(result.content)


@linux_only
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="without a space of its own nobody holds it")
async def test_who_is_never_there_long_enough_to_be_named_is_told_of(run):
    hand_on = "os.fork() and os._exit(0)"
    chain = f"import os, time\n{hand_on}\nos.setsid()\nwhile time.time() < {time.time() + 10}:\n    {hand_on}"

    result = str((await run(f"{PYTHON} -S -c '{chain}'")).content)

    assert "Still running in the background: " in result
    os.kill(int(re.findall(r"pid (\d+)", result)[-1]), 9)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("kill -9 $$", r"Exit code: 137 \(ended by signal SIGKILL\)"),
        ("sh -c 'kill -SEGV $$'; exit 139", "ended by signal SIGSEGV"),
        ("trap '' TERM; kill 0; kill -9 $$", "ended by signal"),
        # Behind a wall the parent is the head of its own space, whom nobody in there can end.
        ("kill -9 $PPID; sleep 0.1; echo still here", "ended by signal|^still here\n\nExit code: 0$"),
        ("kill $PPID; sleep 0.1; echo still here", "ended by signal|^still here\n\nExit code: 0$"),
    ],
)
async def test_a_command_that_kills_around_it_kills_only_itself(run_both, command: str, said: str):
    assert re.search(said, str((await run_both(command)).content))
    assert (await run_both("echo still here")).content == "still here\n\nExit code: 0"


@pytest.mark.parametrize("length", [3_000_000, 150_000], ids=["for the guard", "for the kernel"])
async def test_a_command_too_long_to_start_says_what_to_do(run_both, length: int):
    assert "write_file" in str((await run_both("true " + "x" * length)).content)


async def test_progress_is_told_now_and_then(workspace: Path, ctx: ToolContext, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("nanobot.agent.tools.execution._PROGRESS_S", 0.5)
    said: list[str] = []
    tool = ExecTool(PathPolicy(workspace), ExecPolicy(sandbox="none"))

    await tool.execute("for i in 1 2 3; do echo step $i; sleep 0.3; done", ctx=replace(ctx, emit=said.append))

    assert said == ["step 3"]
