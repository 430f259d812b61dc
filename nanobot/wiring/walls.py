"""What tools may touch, and what stands around commands, as the config says."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.config.paths import Places
from nanobot.config.saver import BACKUPS
from nanobot.config.schema import Config
from nanobot.security.paths import PathPolicy
from nanobot.security.places import key_places
from nanobot.utils.resources import skills_dir

if TYPE_CHECKING:
    from nanobot.security.sandbox.walls import Walls


def path_policy(config: Config, data_dir: Path, workspace: Path) -> PathPolicy:
    """Where tools may read and write."""
    places = Places(data_dir)
    file = config.loaded_from.file or places.config
    with_keys = [file, *(file.with_name(file.name + ending) for ending in BACKUPS)]
    return PathPolicy(
        workspace,
        restrict=config.tools.restrict_to_workspace,
        allowed=named_places(config.tools.allowed_paths),
        protected=named_places(config.tools.protected_paths),
        unreadable=(*with_keys, places.pairing, places.state, *key_places(Path.home())),
        sealed=tuple(with_keys),
        data_folder=data_dir,
        library=(skills_dir(),),
    )


def command_walls(config: Config, data_dir: Path, workspace: Path) -> "Walls":
    """The walls that commands run behind; nothing is found out about them yet."""
    from nanobot.security.sandbox.walls import Walls  # 10 ms that only the first command waits for

    settings, places = config.tools.exec, Places(data_dir)
    paths = path_policy(config, data_dir, workspace)
    return Walls(paths, settings.sandbox, network=settings.network, cache=places.sandbox, tmp=places.tmp)


def named_places(names: Sequence[str]) -> tuple[Path, ...]:
    """Folders and files as the config names them."""
    return tuple(Path(name).expanduser() for name in names)
