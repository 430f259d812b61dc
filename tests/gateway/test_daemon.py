"""The gateway as a service: what is written is what systemd and launchd take, and what is asked of them."""

import asyncio
import os
import plistlib
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from nanobot.gateway.daemon import (
    ServiceError,
    ServiceSpec,
    find_daemon,
    launchd,
    launchd_agent,
    systemd,
    systemd_unit,
)
from tests.support.home import POSIX
from tests.support.running_gateway import OpenGateway


def spec(place: Path) -> ServiceSpec:
    return ServiceSpec(("/bin/true", "100% $HOME"), place / "a b" / "config.json", place)


class Host:
    """Programs of the host, as far as they are asked; `fails` are words whose command fails."""

    def __init__(self, *fails: str) -> None:
        self.asked: list[str] = []
        self._fails = fails

    def __call__(self, words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        self.asked.append(" ".join(words))
        code = int(any(word in words for word in self._fails))
        return subprocess.CompletedProcess([*words], code, "", "no bus" if code else "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path):
    unit = tmp_path / "nanobot.service"
    unit.write_text(systemd_unit(spec(tmp_path)))
    environ = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}

    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(unit)], capture_output=True, text=True, env=environ
    )

    assert (done.returncode, [line for line in done.stderr.splitlines() if "nanobot" in line]) == (0, [])


def test_the_unit_is_watched_limited_and_quoted(tmp_path: Path):
    unit = systemd_unit(spec(tmp_path))

    assert f'ExecStart=/bin/true "100%% $$HOME" gateway --config "{tmp_path}/a b/config.json"\n' in unit
    for line in ("Type=notify", "Restart=always", "RestartPreventExitStatus=75 78", "MemoryMax=2048M"):
        assert f"\n{line}\n" in unit


def test_install_writes_enables_and_starts_and_uninstall_leaves_nothing(tmp_path: Path):
    host = Host()
    manager = systemd(host, tmp_path / "units")

    manager.install(spec(tmp_path))
    written = (tmp_path / "units" / "nanobot.service").read_text()
    active = manager.is_active()
    manager.uninstall()

    assert written == systemd_unit(spec(tmp_path))
    assert active
    assert [line.removeprefix("systemctl --user ") for line in host.asked if line.startswith("systemctl")] == [
        "daemon-reload",
        "enable nanobot.service",
        "restart nanobot.service",
        "is-active nanobot.service",
        "disable --now nanobot.service",
        "daemon-reload",
    ]
    assert not manager.is_installed()


def test_what_the_manager_refuses_is_said_with_what_to_do_and_everything_is_as_before(tmp_path: Path):
    unit = tmp_path / "nanobot.service"
    for before in (None, "[Unit] of before"):
        if before is not None:
            unit.write_text(before)
        with pytest.raises(ServiceError, match=r"no bus.*nanobot gateway"):
            systemd(Host("restart"), tmp_path).install(spec(tmp_path))
        assert [path.read_text() for path in tmp_path.iterdir()] == ([] if before is None else [before])

    lines = systemd(Host("disable"), tmp_path).uninstall()

    assert "no bus" in lines[1]
    assert not unit.exists()


@POSIX
def test_launchd_gets_a_list_it_can_read_and_is_asked_to_load_it(tmp_path: Path):
    host = Host("print")
    manager = launchd(host, tmp_path / "agents")

    manager.install(spec(tmp_path))

    told = plistlib.loads(launchd_agent(spec(tmp_path)))
    assert told["ProgramArguments"][:3] == ["/bin/true", "100% $HOME", "gateway"]
    assert told["KeepAlive"] is True
    assert host.asked[-1].startswith("launchctl bootstrap gui/")
    assert not any("bootout" in line for line in host.asked)  # it was not loaded
    assert manager.is_installed()

    manager.restart()

    assert host.asked[-1].startswith("launchctl bootstrap gui/")


def test_a_host_without_either_is_told_how_to_live_without():
    assert find_daemon("linux", lambda name: None) is None
    for platform, program in (("darwin", "launchctl"), ("linux", "systemctl")):
        manager = find_daemon(platform, lambda name: "/bin/systemctl")
        assert manager is not None
        assert manager.manager[0] == program


@POSIX
async def test_the_service_manager_hears_that_it_is_ready_lives_and_stops(
    running: OpenGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        async with running():
            told = {await asyncio.to_thread(manager.recv, 100) for _ in range(2)}

        assert told == {b"READY=1", b"WATCHDOG=1"}
        assert manager.recv(100) == b"STOPPING=1"
