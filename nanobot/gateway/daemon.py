"""The gateway as a service of the person who owns it: a systemd user unit on Linux, a launchd agent on macOS.

What is written is made by `systemd_unit` and `launchd_agent`, pure; the rest asks systemctl or launchctl. Pages:
systemd.service(5), systemd.exec(5), sd_notify(3), launchd.plist(5).
"""

import os
import plistlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
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
"""How long the service manager waits; the gateway itself takes five."""
MEMORY_MB = 2048
_NO_USE = f"{InstanceLockedError.exit_code} {ConfigError.exit_code}"
"""Exit codes after which starting again would not help."""


class ServiceError(NanobotError):
    """The host's service manager did not do it. Says what it said."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """What the service runs."""

    command: tuple[str, ...]
    """nanobot itself, by its full path."""
    config: Path | None
    """The config to name; None for the one at home."""
    data_dir: Path

    @property
    def arguments(self) -> list[str]:
        """The whole command line."""
        named = ["--config", str(self.config)] if self.config is not None else []
        return [*self.command, "gateway", *named]


def our_command() -> tuple[str, ...]:
    """How this very nanobot is started, whatever PATH the service has."""
    beside = Path(sys.executable).with_name("nanobot.exe" if os.name == "nt" else "nanobot")
    return (str(beside),) if beside.exists() else (sys.executable, "-m", "nanobot")


def systemd_unit(spec: ServiceSpec) -> str:
    """The unit file."""
    return f"""[Unit]
Description=nanobot, a personal AI agent
Documentation=file://{_in_unit(str(spec.data_dir))}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=300
StartLimitBurst=10

[Service]
Type=notify
NotifyAccess=main
ExecStart={" ".join(_quoted(word) for word in spec.arguments)}
WorkingDirectory={_in_unit(str(spec.data_dir))}
EnvironmentFile=-{_in_unit(str(spec.data_dir / "gateway.env"))}
Environment=PYTHONUNBUFFERED=1
Restart=always
RestartSec=5
RestartPreventExitStatus={_NO_USE}
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


def _in_unit(text: str) -> str:
    """A text in a unit, where % begins a specifier."""
    return text.replace("%", "%%")


def _quoted(word: str) -> str:
    """One word of ExecStart: quoted where it must be, nothing in it expanded."""
    plain = _in_unit(word).replace("$", "$$")
    if not any(sign in plain for sign in " \t\"'\\;"):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def launchd_agent(spec: ServiceSpec) -> bytes:
    """The property list of the agent."""
    told = {
        "Label": LABEL,
        "ProgramArguments": spec.arguments,
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
    return plistlib.dumps(told)


Run = Callable[[Sequence[str]], "subprocess.CompletedProcess[str]"]
"""Runs a program of the host to its end."""


def run_program(words: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Run it, its output kept. Raises ServiceError where there is no such program."""
    try:
        return subprocess.run([*words], capture_output=True, text=True, encoding="utf-8", errors="replace", check=False)
    except OSError as error:
        raise ServiceError(f"{words[0]} cannot be run: {error.strerror}.") from error


class Daemon(Protocol):
    """The service manager of a host. What is returned are lines for a person. Raises ServiceError."""

    def install(self, spec: ServiceSpec) -> list[str]:
        """Write the service, and start it now and with the host."""
        ...

    def uninstall(self) -> list[str]:
        """Stop it and take it away."""
        ...

    def start(self) -> list[str]:
        """Start it."""
        ...

    def stop(self) -> list[str]:
        """Stop it."""
        ...

    def restart(self) -> list[str]:
        """Stop it and start it again."""
        ...

    def is_installed(self) -> bool:
        """Whether it was written."""
        ...

    def is_active(self) -> bool:
        """Whether the manager runs it now."""
        ...


class Systemd:
    """systemd, for one user."""

    def __init__(self, run: Run = run_program, folder: Path | None = None) -> None:
        self._run = run
        self._unit = (folder or expand("~/.config/systemd/user")) / UNIT

    def install(self, spec: ServiceSpec) -> list[str]:
        """Write the unit, enable it, start it anew."""
        self._unit.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._unit, systemd_unit(spec), mode=0o644)
        self._ask("daemon-reload")
        self._ask("enable", UNIT)
        self._ask("restart", UNIT)
        lines = [f"Written: {self._unit}", "The gateway runs, and starts again whenever it ends."]
        if self._run(["loginctl", "show-user", "--property=Linger", "--value", _user()]).stdout.strip() != "yes":
            lines.append("So that it also runs while you are logged out: loginctl enable-linger")
        return [*lines, f"Keys it needs from the environment: one NAME=value a line in {spec.data_dir / 'gateway.env'}"]

    def uninstall(self) -> list[str]:
        """Stop it, disable it, delete the unit."""
        if not self.is_installed():
            return ["There is no service to take away."]
        lines = [f"Deleted: {self._unit}"]
        try:
            self._ask("disable", "--now", UNIT)
        except ServiceError as error:  # then it does not run from there either, and the file goes all the same
            lines.append(str(error))
        self._unit.unlink(missing_ok=True)
        self._run(["systemctl", "--user", "daemon-reload"])
        return lines

    def start(self) -> list[str]:
        """Start it."""
        self._ask("start", UNIT)
        return ["Started."]

    def stop(self) -> list[str]:
        """Stop it."""
        self._ask("stop", UNIT)
        return ["Stopped."]

    def restart(self) -> list[str]:
        """Stop it and start it again."""
        self._ask("restart", UNIT)
        return ["Restarted."]

    def is_installed(self) -> bool:
        """Whether there is a unit."""
        return self._unit.exists()

    def is_active(self) -> bool:
        """Whether systemd runs it."""
        return self.is_installed() and self._run(["systemctl", "--user", "is-active", UNIT]).returncode == 0

    def _ask(self, *words: str) -> None:
        done = self._run(["systemctl", "--user", *words])
        if done.returncode:
            raise ServiceError(
                f"systemctl --user {' '.join(words)} failed: {done.stderr.strip() or done.returncode}. "
                "After sudo or su there is no session bus: log in as the user itself, or run `nanobot gateway`."
            )


class Launchd:
    """launchd, for one user of a Mac."""

    def __init__(self, run: Run = run_program, folder: Path | None = None) -> None:
        self._run = run
        self._plist = (folder or expand("~/Library/LaunchAgents")) / f"{LABEL}.plist"
        self._domain = f"gui/{os.getuid() if hasattr(os, 'getuid') else 0}"

    def install(self, spec: ServiceSpec) -> list[str]:
        """Write the agent and load it."""
        self._plist.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(self._plist, launchd_agent(spec), mode=0o644)
        if self.is_active():
            self._ask("bootout", f"{self._domain}/{LABEL}")
        self._ask("bootstrap", self._domain, str(self._plist))
        return [f"Written: {self._plist}", "The gateway runs, and starts again whenever it ends."]

    def uninstall(self) -> list[str]:
        """Unload it and delete the agent."""
        if not self.is_installed():
            return ["There is no service to take away."]
        if self.is_active():
            self._ask("bootout", f"{self._domain}/{LABEL}")
        self._plist.unlink(missing_ok=True)
        return [f"Deleted: {self._plist}"]

    def start(self) -> list[str]:
        """Load it, or kick it awake."""
        if self.is_active():
            self._ask("kickstart", f"{self._domain}/{LABEL}")
        else:
            self._ask("bootstrap", self._domain, str(self._plist))
        return ["Started."]

    def stop(self) -> list[str]:
        """Unload it; launchd would start it again otherwise."""
        self._ask("bootout", f"{self._domain}/{LABEL}")
        return ["Stopped."]

    def restart(self) -> list[str]:
        """Stop it and start it again."""
        self._ask("kickstart", "-k", f"{self._domain}/{LABEL}")
        return ["Restarted."]

    def is_installed(self) -> bool:
        """Whether there is an agent."""
        return self._plist.exists()

    def is_active(self) -> bool:
        """Whether launchd knows it."""
        return self.is_installed() and self._run(["launchctl", "print", f"{self._domain}/{LABEL}"]).returncode == 0

    def _ask(self, *words: str) -> None:
        done = self._run(["launchctl", *words])
        if done.returncode:
            raise ServiceError(f"launchctl {' '.join(words)} failed: {done.stderr.strip() or done.returncode}.")


def find_daemon(platform: str = sys.platform, which: Callable[[str], str | None] = shutil.which) -> Daemon | None:
    """The service manager of this host; None where there is none that we know."""
    if platform == "darwin":
        return Launchd()
    return Systemd() if which("systemctl") else None


def daemon_of() -> Daemon:
    """The same. Raises ServiceError, which says how to live without."""
    found = find_daemon()
    if found is None:
        raise ServiceError(
            "This host has neither systemd nor launchd. Run `nanobot gateway` under whatever keeps programs alive here "
            "(a container's restart policy, supervisor, Task Scheduler); it wants nothing but to be started again."
        )
    return found


def _user() -> str:
    return os.environ.get("USER") or os.environ.get("LOGNAME") or ""
