"""Landlock where bwrap is missing, through the exec tool; and beside bwrap."""

import os
import platform
import shutil
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from nanobot.agent.scope import Scope
from nanobot.agent.tools.base import ToolContext
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.shell import ExecTool
from nanobot.bus.events import Address
from nanobot.security.sandbox.landlock import can_scope
from nanobot.security.sandbox.sandbox import Sandbox
from nanobot.utils.clock import FrozenClock
from tests.support.sandbox_home import CANARY, SandboxHome, make_home

pytestmark = pytest.mark.skipif(not can_scope(), reason="this kernel's Landlock knows no scopes")


@pytest.fixture
def fenced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs a command where no bwrap is found."""
    if shutil.which("bwrap") is None:
        pytest.skip("the home is made for bwrap")
    home = make_home(tmp_path, monkeypatch)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "sh", "cat", "touch", "kill", "ls", "python3", "id", "true", "sleep", "setsid"):
        if found := shutil.which(name, path="/usr/bin:/bin"):
            (tools / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tools))
    (home.data / "tmp").mkdir()
    tool = ExecTool(home.paths, ExecPolicy(tmp=home.data / "tmp"))
    context = ToolContext("a:b", Address("a", "b"), "t", home.workspace, FrozenClock(datetime(2026, 1, 2)))

    async def run(command: str, by: ExecTool = tool) -> str:
        return str((await by.execute(command, ctx=context)).content)

    return home, run, tool


async def test_it_writes_in_the_workspace_and_nowhere_else(fenced):
    home, run, _ = fenced

    inside = await run("echo x > new && cat new; touch $TMPDIR/t && echo tmp")
    no_tmp = await run("echo x > /tmp/handed")
    outside = await run("touch ~/bad /etc/bad /var/tmp/bad; echo bad >> ~/notes.txt")

    assert inside.startswith("x\ntmp\n")
    assert "in $TMPDIR (" in no_tmp
    assert outside.count("Permission denied") == 4
    assert f"in $TMPDIR ({home.data / 'tmp'}), not in /tmp" in outside
    assert not (home.path / "bad").exists()
    assert Sandbox(home.paths).report().summary.startswith("Landlock alone")


async def test_keys_are_not_read_and_the_rest_is(fenced):
    _, run, _ = fenced

    said = await run("cat ~/notes.txt ~/.ssh/id_ed25519 ~/.netrc ~/.nanobot/config.json ~/.nanobot/state/journal.db")

    assert said.startswith("plain notes")
    assert CANARY not in said


async def test_nobody_outside_is_touched_and_no_power_is_left(fenced):
    _, run, _ = fenced
    with subprocess.Popen(["/bin/sleep", "60"]) as other:
        said = await run(f"kill -9 {other.pid}; cat /proc/{os.getpid()}/environ; cat /proc/self/status")
        alive = other.poll() is None
        other.kill()

    assert alive
    assert "Operation not permitted" in said
    assert "CapEff:\t0000000000000000" in said
    assert "NoNewPrivs:\t1" in said


async def test_a_stopped_command_ends_with_its_family(fenced):
    from tests.support.processes import running, unlikely_number

    _, _, tool = fenced
    number = unlikely_number()

    result = await tool.execute(f"setsid sleep {number} & sleep {number}", timeout=0.3)

    assert "Timed out" in str(result.content)
    assert not running("sleep", number)


async def test_beside_bwrap_it_closes_sockets_without_a_file(home: SandboxHome):
    name = f"nanobot-test-{os.getpid()}"
    tool = ExecTool(replace(home.paths), ExecPolicy(sandbox="bwrap"))
    code = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('in')"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(f"\0{name}")
        service.listen()

        said = await tool.execute(f'/usr/bin/python3 -c "{code}"')

    assert "Operation not permitted" in str(said.content)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers of x86-64")
async def test_calls_that_reach_past_every_view_are_refused(home: SandboxHome):
    tool = ExecTool(home.paths, ExecPolicy(sandbox="bwrap"))
    calls = [(250, 0, -3, 1, 0, 0), (321, 0, 0, 0), (169, 0, 0, 0), (0x40000000 + 39,)]
    code = f"""
import ctypes
c = ctypes.CDLL(None, use_errno=True)
print([c.syscall(*call) and ctypes.get_errno() for call in {calls}])
"""

    said = await tool.execute(f"/usr/bin/python3 -c '{code}'")

    assert str(said.content).startswith("[1, 1, 1, 1]\n")


@pytest.mark.parametrize("fence", [False, True])
async def test_no_file_is_left_that_lends_its_owners_rights(fenced, *, fence: bool, monkeypatch: pytest.MonkeyPatch):
    home, run, _ = fenced
    if not fence:
        monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code = """
import os
for name, make in {
    "chmod": lambda: os.chmod("file", 0o4755),
    "fchmod": lambda: os.fchmod(os.open("file", os.O_RDONLY), 0o4755),
    "open": lambda: os.open("new", os.O_CREAT | os.O_WRONLY, 0o4755),
    "mknod": lambda: os.mknod("new", 0o104755),
    "plain": lambda: os.chmod("file", 0o1755),
    "read": lambda: os.open("file", os.O_RDONLY, 0o4755),
}.items():
    try:
        make()
        print(name)
    except PermissionError:
        pass
"""
    (home.workspace / "file").touch()
    (home.workspace / "make.py").write_text(code)

    said = await run("python3 make.py")

    assert said.startswith("plain\nread\n\nExit code: 0")
    assert (home.workspace / "file").stat().st_mode & 0o7777 == 0o1755


def test_it_stands_also_where_our_own_output_is_a_pipe(home: SandboxHome):
    code = """
import sys
from pathlib import Path
from nanobot.security.files.paths import PathPolicy
from nanobot.security.sandbox.landlock import confine_thread
from nanobot.security.sandbox.view import view_of
confine_thread(view_of(PathPolicy(Path(sys.argv[1]))))
print("behind it")
"""

    ran = subprocess.run(
        [sys.executable, "-c", code, str(home.workspace)], capture_output=True, text=True, check=False, timeout=20
    )

    assert (ran.stdout, ran.stderr) == ("behind it\n", "")


async def test_without_network_no_socket_leaves_by_any_road(fenced):
    home, run, _ = fenced
    shut = ExecTool(home.paths, ExecPolicy(network=False))
    ask = """python3 - <<'END'
import socket
for family in (1, 2, 10, 16, 40, 38):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        print(family, "given")
    except OSError as error:
        print(family, error.strerror)
END"""

    open_to_all = await run(ask)
    closed = await run(ask, shut)

    assert [line.split()[0] for line in open_to_all.splitlines() if "given" in line] == ["2", "10", "16"]
    assert [line.split()[0] for line in closed.splitlines() if "given" in line] == ["16"]


async def test_a_service_that_listens_on_a_file_is_called_only_with_a_yes(fenced):
    home, _, tool = fenced
    place = home.path / "service.sock"
    code = f"import socket; socket.socketpair(); socket.socket(socket.AF_UNIX).connect('{place}'); print('in')"
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(place))
        service.listen()
        context = ToolContext("a:b", Address("a", "b"), "t", home.workspace, FrozenClock(datetime(2026, 1, 2)))
        reaches = await tool.required_access({"command": "x", "needs": [str(place)]}, context)
        granted = replace(context, granted=frozenset(reach.rule for reach in reaches))

        refused = await tool.execute(f'python3 -c "{code}"', ctx=context)
        called = await tool.execute(f'python3 -c "{code}"', needs=[str(place)], ctx=granted)

    assert "Operation not permitted" in str(refused.content)
    assert str(called.content).startswith("in\n")


async def test_where_others_read_along_what_was_told_in_private_stays_closed(fenced):
    home, _, tool = fenced
    own = home.workspace / "memory" / Scope("a:b").folder
    own.mkdir(parents=True)
    for place in (own / "MEMORY.md", home.workspace / "memory/MEMORY.md", home.workspace / "USER.md"):
        place.write_text(CANARY if place.parent != own else "our own", encoding="utf-8")
    (home.workspace / "sessions" / "x.jsonl").write_text(CANARY, encoding="utf-8")
    (home.workspace / "goals" / "g").mkdir(parents=True)
    (home.workspace / "goals" / "g" / "found.md").write_text(CANARY, encoding="utf-8")
    context = ToolContext(
        "a:b", Address("a", "b"), "t", home.workspace, FrozenClock(datetime(2026, 1, 2)), scope=Scope("a:b")
    )

    command = (
        "cat memory/MEMORY.md USER.md sessions/x.jsonl memory/HISTORY.md memory/chats/*/MEMORY.md goals/g/found.md"
    )
    shown = str((await tool.execute(command, ctx=context)).content)

    assert CANARY not in shown
    assert "history" not in shown.replace("HISTORY", "")
