"""Where things lie. The config in use decides: its folder is the data folder.

`use_config` is said once, by the command line; everything else asks. Home is looked up at each call. Nothing is made.
"""

from dataclasses import dataclass
from pathlib import Path

from nanobot.errors import ConfigError

_chosen: Path | None = None


def use_config(path: Path | str | None) -> None:
    """Make this the config of the process (`--config`); None goes back to the one at home."""
    global _chosen
    _chosen = absolute(path) if path is not None else None


def get_config_path() -> Path:
    """The config in use: the chosen one, else `~/.nanobot/config.json`."""
    return _chosen or expand("~/.nanobot/config.json")


def get_data_dir(config_path: Path | None = None) -> Path:
    """The folder of the config, which is where all that is ours lies."""
    return (config_path or get_config_path()).parent


def expand(path: Path | str) -> Path:
    """The path with `~` written out. Raises ConfigError where there is no such home."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{path}: this host knows no such home folder. Write the path in full, or set HOME."
        ) from error


def absolute(path: Path | str) -> Path:
    """The path in full, `~` written out. Raises ConfigError where it is relative to a folder that is gone."""
    try:
        return expand(path).absolute()
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path}: the current folder is gone. Change to another one, or write the path in full."
        ) from error


@dataclass(frozen=True, slots=True)
class Places:
    """What lies where in a data folder."""

    data: Path

    @property
    def config(self) -> Path:
        """The configuration, unless another file was named."""
        return self.data / "config.json"

    @property
    def state(self) -> Path:
        """What is nanobot's own."""
        return self.data / "state"

    @property
    def turns(self) -> Path:
        """The half-done turns."""
        return self.state / "turns"

    @property
    def tasks(self) -> Path:
        """What subagents were asked to do."""
        return self.state / "tasks"

    @property
    def goals(self) -> Path:
        """What sessions work at by themselves."""
        return self.state / "goals"

    @property
    def usage(self) -> Path:
        """The ledger: what models used, a file a month."""
        return self.state / "usage"

    @property
    def prices(self) -> Path:
        """What models cost, as far as it is known."""
        return self.state / "prices.json"

    @property
    def search(self) -> Path:
        """Which words were said where."""
        return self.state / "search.db"

    @property
    def sandbox(self) -> Path:
        """Which walls around commands hold on this machine."""
        return self.state / "sandbox.json"

    @property
    def tmp(self) -> Path:
        """What commands know as /tmp."""
        return self.data / "tmp"

    @property
    def traces(self) -> Path:
        """What happened in each turn."""
        return self.state / "traces"

    @property
    def mcp(self) -> Path:
        """What MCP servers offer, as far as it is remembered."""
        return self.state / "mcp"

    @property
    def plugin_book(self) -> Path:
        """What went wrong with hooks of plugins."""
        return self.state / "plugins.json"

    @property
    def lessons(self) -> Path:
        """How often each mistake came back."""
        return self.state / "lessons.json"

    @property
    def logs(self) -> Path:
        """The logs."""
        return self.data / "logs"

    @property
    def journal(self) -> Path:
        """Messages accepted and messages sent."""
        return self.state / "journal.db"

    @property
    def media(self) -> Path:
        """Attachments that were received, a folder a channel."""
        return self.data / "media"

    @property
    def gateway_log(self) -> Path:
        """What the gateway says."""
        return self.logs / "gateway.log"

    @property
    def cli_history(self) -> Path:
        """What was typed in the terminal chat."""
        return self.data / "history" / "cli_history"

    @property
    def pairing(self) -> Path:
        """Who may speak."""
        return self.data / "pairing.json"

    @property
    def grants(self) -> Path:
        """What the owner said "always" to."""
        return self.state / "grants.json"

    @property
    def skills(self) -> Path:
        """What is kept of skills: what was installed, what was used."""
        return self.state / "skills"

    @property
    def file_book(self) -> Path:
        """Which files hold somebody else's words."""
        return self.state / "provenance.json"

    @property
    def to_consolidate(self) -> Path:
        """Which archived sessions are not in memory yet."""
        return self.state / "to-consolidate.json"

    @property
    def old_jobs(self) -> Path:
        """Where earlier releases kept jobs."""
        return self.data / "cron" / "jobs.json"

    def jobs_of(self, workspace: Path) -> Path:
        """Where the jobs lie now, for who only looks: what writes them moves them into the workspace first."""
        ours = workspace / "cron" / "jobs.json"
        return self.old_jobs if self.old_jobs.is_file() and not ours.exists() else ours

    @property
    def old_sessions(self) -> Path:
        """Where earlier releases kept sessions."""
        return self.data / "sessions"
