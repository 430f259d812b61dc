"""Installs the gateway as a user service: a systemd user unit on Linux, a launchd agent on macOS.

References: systemd.service(5), systemd.exec(5), sd_notify(3), launchd.plist(5).
"""

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nanobot.config.paths import expand
from nanobot.errors import ConfigError, InstanceLockedError, NanobotError
from nanobot.utils.files import write_atomic

UNIT = "nanobot.service"
LABEL = "ai.nanobot.gateway"
WATCHDOG_S = 60
STOP_S = 15
"""Stop timeout of the service manager; the gateway takes at most five seconds."""
MEMORY_MB = 2048
_NO_RESTART = f"{InstanceLockedError.exit_code} {ConfigError.exit_code}"
"""Exit codes after which a restart would fail again."""


class ServiceError(NanobotError):
    """The service manager failed. The text has its error message."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """The command that the service runs."""

    command: tuple[str, ...]
    """nanobot by its full path."""
    config: Path | None
    """The config file; None for the default one."""
    data_dir: Path

    @property
    def env_file(self) -> Path:
        """The owner's environment variables for the service, one NAME=value per line; may be missing."""
        return self.data_dir / "gateway.env"

    @property
    def arguments(self) -> list[str]:
        """The command line."""
        options = ["--config", str(self.config)] if self.config is not None else []
        return [*self.command, "gateway", *options]


def nanobot_command() -> tuple[str, ...]:
    """Return the command that starts this installation of nanobot, independent of PATH."""
    script = Path(sys.executable).with_name("nanobot.exe" if os.name == "nt" else "nanobot")
    return (str(script),) if script.exists() else (sys.executable, "-m", "nanobot")


def systemd_unit(spec: ServiceSpec) -> str:
    return f"""[Unit]
Description=nanobot, a personal AI agent
Documentation=file://{_escape(str(spec.data_dir))}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(_quote(argument) for argument in spec.arguments)}
WorkingDirectory={_escape(str(spec.data_dir))}
EnvironmentFile=-{_escape(str(spec.env_file))}
Environment=PYTHONUNBUFFERED=1
Restart=always
RestartSec=5
RestartPreventExitStatus={_NO_RESTART}
WatchdogSec={WATCHDOG_S}
TimeoutStartSec=60
TimeoutStopSec={STOP_S}
KillMode=mixed
MemoryMax={MEMORY_MB}M
TasksMax=1024
LimitNOFILE=8192
NoNewPrivileges=true
LockPersonality=true
UMask=0077

[Install]
WantedBy=default.target
"""


def _escape(text: str) -> str:
    """Escape specifiers, which begin with %."""
    return text.replace("%", "%%")


def _quote(argument: str) -> str:
    """Quote an argument of ExecStart so that systemd expands nothing in it."""
    escaped = _escape(argument).replace("$", "$$")
    if not any(char in escaped for char in " \t\"'\\;"):
        return escaped
    return '"' + escaped.replace("\\", "\\\\").replace('"', '\\"') + '"'


def launchd_agent(spec: ServiceSpec) -> bytes:
    """The agent's property list."""
    properties = {
        "Label": LABEL,
        "ProgramArguments": [*spec.arguments, "--env-file", str(spec.env_file)],
        "WorkingDirectory": str(spec.data_dir),
        "EnvironmentVariables": {"PATH": os.environ.get("PATH", os.defpath), "PYTHONUNBUFFERED": "1"},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": 10,
        "ExitTimeOut": STOP_S,
        "ProcessType": "Background",
        "Umask": 0o077,
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "StandardOutPath": "/dev/null",
        "StandardErrorPath": "/dev/null",
    }
    return plistlib.dumps(properties)


Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a program and waits for it."""


def run_program(command: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run a program and capture its output. Raises ServiceError if it cannot be started."""
    try:
        return subprocess.run(
            [*command], capture_output=True, text=True, encoding="utf-8", errors="replace", check=False
        )
    except OSError as error:
        raise ServiceError(f"{command[0]} cannot be run: {error.strerror}.") from error


@dataclass(frozen=True, slots=True)
class Daemon:
    """A service manager. Methods raise ServiceError; `install` and `uninstall` return lines to show to the user."""

    manager: tuple[str, ...]
    """The program that is asked, and its first arguments."""
    file: Path
    describe: Callable[[ServiceSpec], str | bytes]
    """Returns the content of `file`."""
    commands: Mapping[str, Sequence[Sequence[str]]]
    """What the manager is asked for each action. The command of `check` succeeds while the service runs."""
    run: Run
    advice: str = ""
    """What to do where it fails."""

    def start(self) -> None:
        if not self.is_active():
            self._do("start")

    def stop(self) -> None:
        self._do("stop")

    def restart(self) -> None:
        self._do("restart" if self.is_active() else "start")

    def is_installed(self) -> bool:
        return self.file.exists()

    def is_active(self) -> bool:
        """Whether the service manager runs it now."""
        return self.is_installed() and self.run([*self.manager, *self.commands["check"][0]]).returncode == 0

    def install(self, spec: ServiceSpec) -> list[str]:
        """Write the file and start the service. If that fails, everything is as before."""
        if self.is_active():
            self._do("stop")
        before = self.file.read_bytes() if self.is_installed() else None
        self.file.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_atomic(self.file, self.describe(spec), mode=0o644)
            self._do("load")
        except ServiceError:
            if before is None:
                self.uninstall()
            else:
                write_atomic(self.file, before, mode=0o644)
            raise
        lines = [
            f"Written: {self.file}",
            "The gateway is running and restarts automatically.",
            f"Environment variables it needs: one NAME=value per line in {spec.env_file}",
        ]
        if (command := self.commands.get("lingers")) and self.run(command[0]).stdout.strip() != "yes":
            lines.append("To keep it running while you are logged out: loginctl enable-linger")
        return lines

    def uninstall(self) -> list[str]:
        """Stop the service and delete the file, also if the service manager fails."""
        if not self.is_installed():
            return ["The service is not installed."]
        lines = [f"Deleted: {self.file}"]
        try:
            self._do("unload")
        except ServiceError as error:
            if self.is_active():
                lines.append(str(error))
        self.file.unlink(missing_ok=True)
        with suppress(ServiceError):
            self._do("forget")
        return lines

    def _do(self, action: str) -> None:
        for arguments in self.commands[action]:
            command = [*self.manager, *arguments]
            result = self.run(command)
            if result.returncode:
                reason = result.stderr.strip() or result.returncode
                raise ServiceError(f"{' '.join(command)} failed: {reason}.{self.advice}")


def systemd(run: Run = run_program, folder: Path | None = None) -> Daemon:
    """A systemd user unit."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or ""
    commands = {
        "load": [["daemon-reload"], ["enable", UNIT], ["restart", UNIT]],
        "unload": [["disable", "--now", UNIT]],
        "forget": [["daemon-reload"]],
        "start": [["start", UNIT]],
        "stop": [["stop", UNIT]],
        "restart": [["restart", UNIT]],
        "check": [["is-active", UNIT]],
        "lingers": [["loginctl", "show-user", "--property=Linger", "--value", user]],
    }
    advice = " After sudo or su there is no session bus: log in as the user itself, or run `nanobot gateway`."
    file = (folder or expand("~/.config/systemd/user")) / UNIT
    return Daemon(("systemctl", "--user"), file, systemd_unit, commands, run, advice)


def launchd(run: Run = run_program, folder: Path | None = None) -> Daemon:
    """A launchd agent. It is loaded while it runs: launchd would restart it otherwise."""
    file = (folder or expand("~/Library/LaunchAgents")) / f"{LABEL}.plist"
    domain = f"gui/{os.getuid() if hasattr(os, 'getuid') else 0}"
    load, unload = ["bootstrap", domain, str(file)], ["bootout", f"{domain}/{LABEL}"]
    commands = {
        "load": [load],
        "unload": [unload],
        "forget": [],
        "start": [load],
        "stop": [unload],
        "restart": [["kickstart", "-k", f"{domain}/{LABEL}"]],
        "check": [["print", f"{domain}/{LABEL}"]],
    }
    return Daemon(("launchctl",), file, launchd_agent, commands, run)


def find_daemon(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> Daemon | None:
    """Return the service manager of this host, or None if it has neither systemd nor launchd."""
    if platform == "darwin":
        return launchd()
    return systemd() if which("systemctl") else None


def require_daemon() -> Daemon:
    """Like `find_daemon`, but raises ServiceError, which names alternatives."""
    daemon = find_daemon()
    if daemon is None:
        raise ServiceError(
            "This host has neither systemd nor launchd. Run `nanobot gateway` under another process manager (a "
            "container's restart policy, supervisor, Task Scheduler) that restarts it."
        )
    return daemon
