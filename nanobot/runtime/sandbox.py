"""Path policy and command sandbox, from the config."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.paths import DataPaths
from nanobot.config.saver import BACKUPS
from nanobot.config.schema import Config
from nanobot.security.files.paths import PathPolicy, key_places
from nanobot.utils.installation import skills_dir

if TYPE_CHECKING:
    from nanobot.security.sandbox.sandbox import Sandbox


def path_policy(config: Config, data_dir: Path, workspace: Path) -> PathPolicy:
    """Return where tools may read and write."""
    places = DataPaths(data_dir)
    file = config.loaded_from.file or places.config
    key_files = [file, *(file.with_name(file.name + ending) for ending in BACKUPS)]
    return PathPolicy(
        workspace,
        restrict=config.tools.restrict_to_workspace,
        allowed=named_places(config.tools.allowed_paths),
        protected=named_places(config.tools.protected_paths),
        unreadable=(*key_files, places.pairing, places.state, *key_places(Path.home())),
        sealed=tuple(key_files),
        data_folder=data_dir,
        library=(skills_dir(),),
    )


def command_sandbox(config: Config, data_dir: Path, workspace: Path) -> "Sandbox":
    """Return the sandbox for commands. It is not probed yet."""
    from nanobot.security.sandbox.sandbox import Sandbox  # imported on first use: 10 ms

    settings, paths = config.tools.exec, path_policy(config, data_dir, workspace)
    return Sandbox(paths, settings.sandbox, network=settings.network, tmp=DataPaths(data_dir).tmp)


def named_places(names: Sequence[str]) -> tuple[Path, ...]:
    """Expand the folders and files named in the config."""
    return tuple(Path(name).expanduser() for name in names)
