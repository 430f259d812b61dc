"""File locations. They follow from the config in use: its folder is the data folder.

Only the command line calls `use_config`. The home folder is looked up at each call. Nothing is created.
"""

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


class DataPaths:
    """The paths in a data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.config = self.data / "config.json"
        self.state = self.data / "state"  # nanobot's own state
        self.turns = self.state / "turns"  # checkpoints of interrupted turns
        self.leases = self.state / "leases"  # locks of the processes that work on tasks, goals and jobs
        self.undo = self.state / "undo"  # what `/undo` restores
        self.search = self.state / "search.db"  # the full-text index of sessions
        self.tmp = self.data / "tmp"  # mounted as /tmp in the sandbox
        self.traces = self.state / "traces"
        self.mcp = self.state / "mcp"  # cached tool lists of MCP servers
        self.logs = self.data / "logs"
        self.database = self.state / "nanobot.db"  # journal, model usage, tasks, goals, runs of jobs
        self.media = self.data / "media"  # received attachments, one folder for each channel
        self.gateway_log = self.logs / "gateway.log"
        self.cli_history = self.data / "history" / "cli_history"  # input history of the terminal chat
        self.pairing = self.data / "pairing.json"  # paired users
        self.file_provenance = self.state / "provenance.json"  # files with untrusted content
        self.legacy_jobs = self.data / "cron" / "jobs.json"  # cron jobs of earlier releases
        self.legacy_sessions = self.data / "sessions"  # sessions of earlier releases

    def jobs_file(self, workspace: Path) -> Path:
        """The current file of cron jobs, for reading only: writers first move it into the workspace."""
        jobs_file = workspace / "cron" / "jobs.json"
        return self.legacy_jobs if self.legacy_jobs.is_file() and not jobs_file.exists() else jobs_file
