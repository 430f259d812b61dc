"""File locations. They follow from the config in use: its folder is the data folder.

Only the command line calls `use_config`. The home folder is looked up at each call. Nothing is created.
"""

from dataclasses import dataclass
from pathlib import Path

from nanobot.errors import ConfigError

_selected: Path | None = None


def use_config(path: Path | str | None) -> None:
    """Select the config of this process (`--config`); None goes back to the default."""
    global _selected
    _selected = absolute(path) if path is not None else None


def get_config_path() -> Path:
    """The selected config, else `~/.nanobot/config.json`."""
    return _selected or expand("~/.nanobot/config.json")


def get_data_dir() -> Path:
    """The data folder, which is the folder of the config."""
    return get_config_path().parent


def expand(path: Path | str) -> Path:
    """The path with `~` expanded. Raises ConfigError if the home folder is unknown."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{path}: the home folder is unknown. Write the path in full, or set HOME.") from error


def absolute(path: Path | str) -> Path:
    """The absolute path with `~` expanded. Raises ConfigError if it is relative and the current folder was deleted."""
    try:
        return expand(path).absolute()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: the current folder was deleted. Change to another one, or write the path in full."
        ) from error


@dataclass(frozen=True, slots=True)
class DataPaths:
    """The paths in a data folder."""

    data: Path

    @property
    def config(self) -> Path:
        """The default location of the configuration."""
        return self.data / "config.json"

    @property
    def state(self) -> Path:
        """nanobot's own state."""
        return self.data / "state"

    @property
    def turns(self) -> Path:
        """Checkpoints of interrupted turns."""
        return self.state / "turns"

    @property
    def leases(self) -> Path:
        """Locks of the processes that work on tasks and goals."""
        return self.state / "leases"

    @property
    def undo(self) -> Path:
        """What `/undo` restores."""
        return self.state / "undo"

    @property
    def prices(self) -> Path:
        """Known model prices."""
        return self.state / "prices.json"

    @property
    def search(self) -> Path:
        """The full-text index of sessions."""
        return self.state / "search.db"

    @property
    def sandbox(self) -> Path:
        """Result of the sandbox probe on this machine."""
        return self.state / "sandbox.json"

    @property
    def tmp(self) -> Path:
        """Mounted as /tmp in the sandbox."""
        return self.data / "tmp"

    @property
    def traces(self) -> Path:
        """Turn traces."""
        return self.state / "traces"

    @property
    def mcp(self) -> Path:
        """Cached tool lists of MCP servers."""
        return self.state / "mcp"

    @property
    def logs(self) -> Path:
        return self.data / "logs"

    @property
    def database(self) -> Path:
        """The journal of messages, the ledger of model usage, tasks and goals."""
        return self.state / "nanobot.db"

    @property
    def media(self) -> Path:
        """Received attachments, one folder for each channel."""
        return self.data / "media"

    @property
    def gateway_log(self) -> Path:
        """The gateway's log."""
        return self.logs / "gateway.log"

    @property
    def cli_history(self) -> Path:
        """Input history of the terminal chat."""
        return self.data / "history" / "cli_history"

    @property
    def pairing(self) -> Path:
        """Paired users."""
        return self.data / "pairing.json"

    @property
    def grants(self) -> Path:
        """Standing approvals."""
        return self.state / "grants.json"

    @property
    def skills(self) -> Path:
        """State of skills: installations and usage."""
        return self.state / "skills"

    @property
    def file_provenance(self) -> Path:
        """Files with untrusted content."""
        return self.state / "provenance.json"

    @property
    def legacy_jobs(self) -> Path:
        """Cron jobs of earlier releases."""
        return self.data / "cron" / "jobs.json"

    def jobs_file(self, workspace: Path) -> Path:
        """The current file of cron jobs, for reading only: writers first move it into the workspace."""
        jobs_file = workspace / "cron" / "jobs.json"
        return self.legacy_jobs if self.legacy_jobs.is_file() and not jobs_file.exists() else jobs_file

    @property
    def legacy_sessions(self) -> Path:
        """Sessions of earlier releases."""
        return self.data / "sessions"
