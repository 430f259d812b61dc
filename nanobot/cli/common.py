"""Shared by the commands: the config in use, requests to the gateway, names that do not exist."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.output import print_warning, to_one_line
from nanobot.config.paths import DataPaths, absolute, get_config_path, get_data_dir, use_config
from nanobot.errors import NanobotError
from nanobot.utils.text import nearest

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from nanobot.config.schema import Config
    from nanobot.cron.service import CronService
    from nanobot.runtime.build import Runtime
    from nanobot.session.manager import SessionManager

EXIT_INTERRUPTED = 130
"""The exit code after Ctrl+C."""
MAX_WARNINGS = 5
NO_GATEWAY = (
    "No gateway is running for {data}. Start one with `nanobot gateway`, or install it as a service with "
    "`nanobot gateway install`."
)
NO_API_KEY = "Make a key for each program: nanobot api key add NAME"

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass
class Selection:
    """What `--config` and `--workspace` of this command line name."""

    config: Path | None = None
    workspace: Path | None = None

    @property
    def config_flag(self) -> str:
        """The option to repeat in a command that is suggested, with a space before it; empty for the default."""
        return f" -c {self.config}" if self.config else ""


selected = Selection()


def select_setup(config: Path | None, workspace: Path | None) -> None:
    """Select config and workspace of this process, before the command runs."""
    selected.config, selected.workspace = config, workspace
    use_config(config)


@dataclass(frozen=True)
class Setup:
    """The config and the folders a command works with."""

    config: "Config"
    config_path: Path
    data_dir: Path
    workspace: Path

    @property
    def paths(self) -> DataPaths:
        return DataPaths(self.data_dir)

    def sessions(self) -> "SessionManager":
        """The stored conversations."""
        from nanobot.session.manager import SessionManager  # slow to import, as are the others

        return SessionManager(self.workspace, old_folder=self.paths.legacy_sessions)

    def jobs(self) -> "CronService":
        """The jobs, for reading only."""
        from nanobot.cron.service import CronService

        file, zone = self.paths.jobs_file(self.workspace), self.config.agents.defaults.timezone
        return CronService(file, timezone=zone, data_dir=self.data_dir)

    def open_runtime(self, model: str | None = None) -> "AbstractAsyncContextManager[Runtime]":
        """A bot in this process."""
        from nanobot.runtime.build import build_runtime

        return build_runtime(self.config, data_dir=self.data_dir, workspace=self.workspace, model=model)

    @classmethod
    def of(cls, config: "Config") -> "Setup":
        """This config with the selected folders. Its secrets and those of the environment are redacted from now on."""
        from nanobot.security.secrets import hold_secrets, named_secrets

        hold_secrets(lambda: named_secrets(config.model_dump(), os.environ))
        return cls(config, get_config_path(), get_data_dir(), absolute(selected.workspace or config.workspace_path))


def read_setup(*, warns: bool = True, secrets: bool = True) -> Setup:
    """Load the selected config, else the defaults. Creates no file or folder.

    `warns` prints harmless problems of the file (an unknown key) on stderr. Without `secrets`, references to secrets
    are not resolved: that may run a command that asks the user for a fingerprint. Raises ConfigError.
    """
    from nanobot.config.loader import load_config, load_warnings  # brings pydantic, 150 ms

    config = load_config(must_exist=selected.config is not None, secrets=secrets)
    setup = Setup.of(config)
    if warns:
        print_warnings(load_warnings(config))
    return setup


def get_data_paths() -> DataPaths:
    return DataPaths(get_data_dir())


def ask_gateway(request: dict[str, Any]) -> dict[str, Any] | None:
    """Send a request and return the answer, or None where no gateway is running. Raises GatewayError if it refuses."""
    import asyncio  # slow; not needed for --help

    from nanobot.net.gateway_socket import GatewayGoneError, ask

    try:
        return asyncio.run(ask(get_data_paths().state, request))
    except GatewayGoneError:
        return None


def require_gateway(request: dict[str, Any]) -> dict[str, Any]:
    """Like `ask_gateway`, but raises NanobotError where no gateway is running."""
    answer = ask_gateway(request)
    if answer is None:
        raise NanobotError(NO_GATEWAY.format(data=get_data_dir()))
    return answer


def print_warnings(warnings: Sequence[str]) -> None:
    """Print the first MAX_WARNINGS warnings on stderr, and how many more there are."""
    for warning in warnings[:MAX_WARNINGS]:
        print_warning(to_one_line(warning))
    if len(warnings) > MAX_WARNINGS:
        print_warning(f"{len(warnings) - MAX_WARNINGS} more; `nanobot status --json` lists all.")


def unknown_name_error(kind: str, name: str, known: Iterable[str], see: str = "", *, hint: str = "") -> NanobotError:
    """Return the error for an unknown name, with the nearest known names. `see` is the command that lists all."""
    near = ", ".join(repr(to_one_line(other)) for other in nearest(name, known))
    guess = f"Did you mean {near}? " if near else ""
    return NanobotError(f"There is no {kind} {to_one_line(name)!r}. {guess}{hint or f'See `{see}`.'}")
