"""exec with the walls around it: what it asks for, what it is told, whose words its output is."""

import os
import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nanobot.agent.tools.base import Access, AccessKind, Tool, ToolContext, ToolResult
from nanobot.agent.tools.cron import CronTool
from nanobot.agent.tools.execution import ExecPolicy
from nanobot.agent.tools.registry import ToolRegistry
from nanobot.agent.tools.shell import ExecTool
from nanobot.messages.types import Provenance
from nanobot.security.files.paths import PathPolicy, key_places
from tests.support.eventually import eventually
from tests.support.processes import running, unlikely_number

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the wall stands on Linux")
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bwrap is not installed")


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    """Commands may not be given what is in /dev, where the folders of other tests may be."""
    return disk_path


class Shell:
    """An exec tool of a bot at home, and calls of it."""

    def __init__(self, home: Path, ctx: ToolContext) -> None:
        self.home, self.ctx = home, ctx
        self.workspace = ctx.workspace
        self.paths = PathPolicy(ctx.workspace, unreadable=key_places(home), data_folder=home / ".nanobot")
        self.policy = ExecPolicy(tmp=home / ".nanobot/tmp")
        self.registry = ToolRegistry()

    def set(self, **changes: Any) -> None:
        self.policy = replace(self.policy, **changes)

    def _build(self) -> ToolRegistry:
        if self.registry.get("exec") is None:
            self.registry.register(ExecTool(self.paths, self.policy, find_tool=self.registry.get))
        return self.registry

    async def run(self, command: str, *, granted: tuple[str, ...] = (), **params: Any) -> ToolResult:
        context = replace(self.ctx, granted=frozenset(granted))
        return await self._build().call("exec", {"command": command, **params}, context)

    async def told(self, command: str, **params: Any) -> str:
        return str((await self.run(command, **params)).content)

    async def required_access(self, command: str, **params: Any) -> list[Access]:
        return list(await self._build().required_access("exec", {"command": command, **params}, self.ctx))


@pytest.fixture
def shell(tmp_path: Path, ctx: ToolContext, monkeypatch: pytest.MonkeyPatch) -> Shell:
    home = tmp_path / "home"
    (home / ".nanobot").mkdir(parents=True)
    (home / "project").mkdir()
    monkeypatch.setenv("HOME", str(home))
    return Shell(home, ctx)


@needs_bwrap
async def test_what_it_needs_is_asked_for_and_given_only_with_a_yes(shell: Shell):
    folder = str(shell.home / "project")
    command = f"echo x > {folder}/file"

    reaches = await shell.required_access(command, needs=["~/project", str(shell.workspace), "network"])
    plain = await shell.told(command)
    unasked = await shell.told(command, needs=["~/project"])
    given = await shell.run(command, needs=["~/project"], granted=(f"folder:{folder}",))

    assert reaches == [
        Access(AccessKind.COMMAND, command),  # nobody need be asked about it
        Access(AccessKind.FOLDER, folder, needs_approval=True),
    ]
    assert 'needs: ["/that/folder"]' in plain
    assert "The owner has not granted" in unasked
    assert not given.error
    assert (shell.home / "project/file").exists()


@needs_bwrap
async def test_devices_services_and_keys_are_reaches_of_their_own(shell: Shell, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(shell.home)
    (shell.home / ".ssh").mkdir()
    (shell.home / ".ssh/known_hosts").write_text("host key", encoding="utf-8")
    with socket.socket(socket.AF_UNIX) as service:
        service.bind("daemon.sock")

        reaches = await shell.required_access("x", needs=["/dev/zero", "~/daemon.sock", "~/.ssh"])
    hidden = await shell.told("cat ~/.ssh/known_hosts")
    shown = await shell.told("cat ~/.ssh/known_hosts", needs=["~/.ssh"], granted=(f"secrets:{shell.home}/.ssh",))

    assert [(reach.kind, reach.needs_approval) for reach in reaches[1:]] == [
        (AccessKind.DEVICE, True), (AccessKind.SERVICE, True), (AccessKind.SECRETS, True),
    ]  # fmt: skip
    assert ("host key" in hidden, "host key" in shown) == (False, True)


@needs_bwrap
@pytest.mark.parametrize(
    ("need", "reason"),
    [
        ("/", "The whole disk cannot be asked for"),
        ("cron/jobs.json", "no command writes it"),
        ("/no/such/place/at/all", "does not exist"),
        ("/proc/sys", "is made by the kernel"),
        ("", "is empty"),
        ("a\0b", "has a NUL"),
        ("~no-such-user-at-all/deep/x", "does not exist"),
        ("n" * 300, "cannot be resolved"),
    ],
)
async def test_what_nobody_can_grant_is_refused_with_a_reason(shell: Shell, need: str, reason: str):
    assert len(await shell.required_access("true", needs=[need])) == 1  # the command: about the rest nobody is asked
    assert reason in await shell.told("true", needs=[need])


@needs_bwrap
async def test_what_meets_the_wall_is_told_what_else_to_do(shell: Shell):
    config = shell.home / ".nanobot/config.json"
    config.write_text("{}")
    shell.paths = replace(shell.paths, unreadable=(config,))

    root = await shell.told("""echo 'sudo: The "no new privileges" flag is set' >&2; exit 1""")
    own = await shell.told(f"true < {config} || echo 'Error: {config} cannot be read: Permission denied.'; exit 78")

    with tempfile.NamedTemporaryFile(dir="/tmp") as host:
        elsewhere = await shell.told(f"cat {host.name}")

    assert "tell the owner which command to run" in root
    assert f"Read {host.name} of the host with read_file" in elsewhere
    assert "nanobot does not run in its own sandbox" in own


@pytest.mark.needs_sandbox
async def test_without_network_the_network_is_asked_for(shell: Shell):
    shell.set(network=False)

    failed = await shell.told("exec 3<>/dev/tcp/127.0.0.1/9")
    reaches = await shell.required_access("curl x", needs=["network"])

    assert 'needs: ["network"]' in failed
    assert reaches[1:] == [Access(AccessKind.NETWORK, "curl x", needs_approval=True)]


@needs_bwrap
async def test_files_in_tmp_are_kept_and_their_place_is_told(shell: Shell):
    made = await shell.told("echo kept > /tmp/report.txt")

    assert f"New in /tmp, which is {shell.home}/.nanobot/tmp for the other tools: report.txt" in made
    assert await shell.told("cat /tmp/report.txt") == "kept\n\nExit code: 0"


@needs_bwrap
async def test_what_was_left_running_can_be_ended_by_its_number(shell: Shell):
    number = unlikely_number()
    await shell.run(f"nohup sleep {number} >log 2>&1 &")
    (pid,) = running("sleep", number)

    assert await shell.told(f"kill -9 {pid}") == "(no output)\n\nExit code: 0"
    await eventually(lambda: not running("sleep", number))


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where nothing can wall a command off."""
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("nanobot.security.sandbox.sandbox.can_scope", lambda: False)


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("sandbox", ["auto", "bwrap"])
async def test_no_wall_means_a_question_about_each_command_and_a_refusal_where_one_is_required(
    shell: Shell, sandbox: str
):
    shell.set(sandbox=sandbox)
    reach = Access(AccessKind.COMMAND, "echo hi", True, "It runs without a sandbox on this machine.")

    refused, granted = await shell.told("echo hi"), await shell.told("echo hi", granted=("command:echo hi",))

    assert await shell.required_access("echo hi") == [reach] * (sandbox == "auto")
    assert refused.count("apt install bubblewrap") == 1
    assert granted.startswith("hi\n") if sandbox == "auto" else granted == refused


@pytest.mark.needs_sandbox
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can have the workspace of another")
async def test_a_workspace_that_is_closed_to_root_without_powers_is_explained(shell: Shell):
    shell.workspace.chmod(0o700)
    os.chown(shell.workspace, 1000, 1000)

    result = await shell.told("true")
    os.chown(shell.workspace, 0, 0)

    assert "belongs to user 1000" in result


async def test_the_owner_may_do_without_a_wall_but_not_without_the_guard(shell: Shell):
    shell.set(sandbox="none")

    assert await shell.required_access("echo hi") == [Access(AccessKind.COMMAND, "echo hi")]
    assert (await shell.told("echo hi; cat /proc/1/comm")).startswith("hi\n")
    assert "whole disk, home" in await shell.told("touch before; rm -rf ~")
    assert not (shell.workspace / "before").exists()


async def test_the_owners_patterns_are_obeyed(shell: Shell):
    shell.set(sandbox="none", deny=(r"\bpush\b",), allow=("echo .*", "git .*"))

    said = [await shell.told(command) for command in ("git push", "echo a; ls", "echo a | echo b")]

    for text, part in zip(said, ("denyPatterns", "allowPatterns", "b\n"), strict=True):
        assert part in text


async def test_what_comes_from_outside_is_trusted_as_little(shell: Shell):
    shell.set(sandbox="none")

    own, fetched = await shell.run("echo hi"), await shell.run("curl -s --max-time 1 http://127.0.0.1:9")

    assert (own.provenance, fetched.provenance) == (Provenance.TOOL, Provenance.WEB)


class Cron(Tool):
    """Stands for the cron tool, and remembers what it was asked."""

    name = "cron"
    description = "jobs"
    parameters = CronTool.parameters

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def execute(self, *, ctx: ToolContext, **wanted: Any) -> str:
        self.asked.append({"session": ctx.session_key, **wanted})
        return "Job made."

    async def required_access(self, arguments: dict[str, Any], ctx: ToolContext) -> list[Access]:
        return [Access(AccessKind.JOB, arguments.get("message", ""))]


@pytest.mark.parametrize(
    ("command", "meant"),
    [
        ("nanobot cron add -n water -m 'Drink water' -e 3600 -d --channel telegram --to 1",
         {"action": "add", "name": "water", "message": "Drink water", "every_seconds": 3600.0, "deliver": True}),
        ('nanobot cron add --message="Wake up" --at 2026-12-24T18:00',
         {"action": "add", "message": "Wake up", "at": "2026-12-24T18:00"}),
        ("python -m nanobot cron add -m x --cron '0 9 * * *' --tz Europe/Berlin",
         {"action": "add", "message": "x", "cron_expr": "0 9 * * *", "tz": "Europe/Berlin"}),
        ("nanobot cron list -a", {"action": "list"}),
        ("nanobot cron remove j1", {"action": "remove", "job_id": "j1"}),
        ("nanobot cron enable j1 --disable", {"action": "disable", "job_id": "j1"}),
        ("/usr/local/bin/nanobot cron run j1 --force", {"action": "run", "job_id": "j1"}),
        # any other command is a command
        ("nanobot cron list | cat", None),
        ("nanobot cron list; ls", None),
        ("nanobot status", None),
        ("nanobot cron --help", None),
    ],
)  # fmt: skip
async def test_a_nanobot_cron_command_is_the_call_it_means(shell: Shell, command: str, meant: dict[str, Any] | None):
    shell.registry.register(cron := Cron())
    shell.set(sandbox="none")

    reaches = await shell.required_access(command)
    result = await shell.told(command)

    assert (result == "Job made.") is (meant is not None)
    assert cron.asked == ([{"session": "cli:direct", **meant}] if meant else [])
    assert reaches == [
        Access(AccessKind.JOB, meant.get("message", "")) if meant else Access(AccessKind.COMMAND, command)
    ]


async def test_arguments_the_cron_tool_does_not_take_are_said(shell: Shell):
    shell.registry.register(Cron())

    assert "every_seconds" in await shell.told("nanobot cron add -m x -e often")


@needs_bwrap
async def test_limits_hold_inside(shell: Shell):
    result = await shell.told("ulimit -c; ulimit -n; cat /proc/self/oom_score_adj; echo $HOME $TMPDIR")

    assert result.split() == ["0", "8192", "500", os.environ["HOME"], "/tmp", "Exit", "code:", "0"]


@pytest.mark.needs_sandbox
@pytest.mark.parametrize("impostor", ["mkdir sessions; touch sessions/forged", "ln -s /etc sessions", "true"])
async def test_a_link_of_the_owners_to_what_is_guarded_is_put_back(shell: Shell, impostor: str):
    kept = shell.home / "kept"
    kept.mkdir()
    sessions = shell.workspace / "sessions"
    sessions.symlink_to(kept)
    (shell.workspace / "swap.sh").write_text(f"rm sessions; {impostor}")

    await shell.run("bash swap.sh")

    assert sessions.readlink() == kept
    assert os.path.lexists(shell.workspace / "sessions.replaced-1") is (impostor != "true")
