"""Installs the gateway as a user service: a systemd user unit on Linux, a launchd agent on macOS.

References: systemd.service(5), systemd.exec(5), sd_notify(3), launchd.plist(5).
"""

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

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


class Daemon(Protocol):
    """A service manager. Methods return lines to show to the user, and raise ServiceError."""

    def install(self, spec: ServiceSpec) -> list[str]:
        """Write the service, start it, and enable it at login."""
        ...

    def uninstall(self) -> list[str]: ...

    def start(self) -> list[str]: ...

    def stop(self) -> list[str]: ...

    def restart(self) -> list[str]: ...

    def is_installed(self) -> bool: ...

    def is_active(self) -> bool:
        """Whether the service manager runs it now."""
        ...


class Systemd:
    """A systemd user unit."""

    def __init__(self, run: Run = run_program, folder: Path | None = None) -> None:
        self._run = run
        self._unit = (folder or expand("~/.config/systemd/user")) / UNIT

    def install(self, spec: ServiceSpec) -> list[str]:
        with _restore_on_failure(self._unit, lambda: self._run(["systemctl", "--user", "disable", UNIT])):
            write_atomic(self._unit, systemd_unit(spec), mode=0o644)
            self._ask("daemon-reload")
            self._ask("enable", UNIT)
            self._ask("restart", UNIT)
        lines = _describe_install(self._unit, spec)
        if self._run(["loginctl", "show-user", "--property=Linger", "--value", _user()]).stdout.strip() != "yes":
            lines.append("To keep it running while you are logged out: loginctl enable-linger")
        return lines

    def uninstall(self) -> list[str]:
        if not self.is_installed():
            return ["The service is not installed."]
        lines = [f"Deleted: {self._unit}"]
        try:
            self._ask("disable", "--now", UNIT)
        except ServiceError as error:  # delete the file all the same
            lines.append(str(error))
        self._unit.unlink(missing_ok=True)
        self._run(["systemctl", "--user", "daemon-reload"])
        return lines

    def start(self) -> list[str]:
        self._ask("start", UNIT)
        return ["Started."]

    def stop(self) -> list[str]:
        self._ask("stop", UNIT)
        return ["Stopped."]

    def restart(self) -> list[str]:
        self._ask("restart", UNIT)
        return ["Restarted."]

    def is_installed(self) -> bool:
        return self._unit.exists()

    def is_active(self) -> bool:
        return self.is_installed() and self._run(["systemctl", "--user", "is-active", UNIT]).returncode == 0

    def _ask(self, *arguments: str) -> None:
        result = self._run(["systemctl", "--user", *arguments])
        if result.returncode:
            raise ServiceError(
                f"systemctl --user {' '.join(arguments)} failed: {result.stderr.strip() or result.returncode}. "
                "After sudo or su there is no session bus: log in as the user itself, or run `nanobot gateway`."
            )


class Launchd:
    """A launchd agent."""

    def __init__(self, run: Run = run_program, folder: Path | None = None) -> None:
        self._run = run
        self._plist = (folder or expand("~/Library/LaunchAgents")) / f"{LABEL}.plist"
        self._domain = f"gui/{os.getuid() if hasattr(os, 'getuid') else 0}"

    def install(self, spec: ServiceSpec) -> list[str]:
        with _restore_on_failure(self._plist):
            write_atomic(self._plist, launchd_agent(spec), mode=0o644)
            if self.is_active():
                self._ask("bootout", f"{self._domain}/{LABEL}")
            self._ask("bootstrap", self._domain, str(self._plist))
        return _describe_install(self._plist, spec)

    def uninstall(self) -> list[str]:
        if not self.is_installed():
            return ["The service is not installed."]
        if self.is_active():
            self._ask("bootout", f"{self._domain}/{LABEL}")
        self._plist.unlink(missing_ok=True)
        return [f"Deleted: {self._plist}"]

    def start(self) -> list[str]:
        if self.is_active():
            self._ask("kickstart", f"{self._domain}/{LABEL}")
        else:
            self._ask("bootstrap", self._domain, str(self._plist))
        return ["Started."]

    def stop(self) -> list[str]:
        # unload it, since launchd would restart it
        self._ask("bootout", f"{self._domain}/{LABEL}")
        return ["Stopped."]

    def restart(self) -> list[str]:
        if not self.is_active():
            return self.start()
        self._ask("kickstart", "-k", f"{self._domain}/{LABEL}")
        return ["Restarted."]

    def is_installed(self) -> bool:
        return self._plist.exists()

    def is_active(self) -> bool:
        return self.is_installed() and self._run(["launchctl", "print", f"{self._domain}/{LABEL}"]).returncode == 0

    def _ask(self, *arguments: str) -> None:
        result = self._run(["launchctl", *arguments])
        if result.returncode:
            raise ServiceError(f"launchctl {' '.join(arguments)} failed: {result.stderr.strip() or result.returncode}.")


def find_daemon(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> Daemon | None:
    """Return the service manager of this host, or None if it has neither systemd nor launchd."""
    if platform == "darwin":
        return Launchd()
    return Systemd() if which("systemctl") else None


def require_daemon() -> Daemon:
    """Like `find_daemon`, but raises ServiceError, which names alternatives."""
    daemon = find_daemon()
    if daemon is None:
        raise ServiceError(
            "This host has neither systemd nor launchd. Run `nanobot gateway` under another process manager (a "
            "container's restart policy, supervisor, Task Scheduler) that restarts it."
        )
    return daemon


@contextmanager
def _restore_on_failure(file: Path, disable: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Restore the file if the service manager fails; delete and disable it after a failed first install."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    except ServiceError:
        if before is None:
            disable()
            file.unlink(missing_ok=True)
        else:
            write_atomic(file, before, mode=0o644)
        raise


def _describe_install(file: Path, spec: ServiceSpec) -> list[str]:
    return [
        f"Written: {file}",
        "The gateway is running and restarts automatically.",
        f"Environment variables it needs: one NAME=value per line in {spec.env_file}",
    ]


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or ""
