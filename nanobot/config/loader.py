"""Reading config.json.

A file that cannot be used stops the command: ConfigError with file, line and key. It is never replaced by defaults
and never rewritten. Writing is in `saver`, and offered here, where people look for it.
"""

import os
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nanobot.config import document, environment, keys
from nanobot.config.loaded_from import KeyPath, LoadedFrom, Reference
from nanobot.config.migrate import MOVED, migrate
from nanobot.config.paths import expand, get_config_path, get_data_dir
from nanobot.config.problems import Problem, problems_in
from nanobot.config.saver import save_config
from nanobot.config.schema import Config
from nanobot.errors import ConfigError
from nanobot.security.references import References

__all__ = ["closed_channels", "get_config_path", "get_data_dir", "load_config", "load_warnings", "save_config"]

SHOWN_PROBLEMS = 5


def load_config(path: Path | str | None = None, *, must_exist: bool = False, secrets: bool = True) -> Config:
    """The config in a file, the one in use if none is given. Raises ConfigError, and nothing else.

    A missing file means the defaults, unless it must exist: what a person named should be there. Who needs no secret
    says so: then no `cmd:` of the file is run and no `file:` is read, and they stay as they are written.
    """
    place = expand(path) if path is not None else get_config_path()
    data = _read(place, must_exist)
    try:
        text, tree = document.parse(data) if data is not None else ("{}", {})
        return _build(place, text, tree, References(place.parent) if secrets else None)
    except document.DocumentError as error:
        spot = f"{place}:{error.line}:{error.column}: " if error.line else f"{place} "
        raise ConfigError(f"{spot}{error}.") from error
    except RecursionError as error:
        raise ConfigError(f"{place} is nested too deeply.") from error


def _read(place: Path, must_exist: bool) -> bytes | None:
    try:
        with open(place, "rb") as file:
            return file.read(document.LONGEST + 1)
    except FileNotFoundError as error:
        if must_exist:
            raise ConfigError(
                f"{place} does not exist. Correct the path, or run `nanobot onboard` to make it."
            ) from error
        return None
    except IsADirectoryError as error:
        raise ConfigError(f"{place} is a folder. Name the file in it.") from error
    except NotADirectoryError as error:
        taken = next((folder for folder in place.parents if folder.is_file()), place.parent)
        raise ConfigError(
            f"{taken} is a file where a folder should be, so there is no config. Move it away, or name a config."
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{place} cannot be read: {reason}. Correct its permissions or the path.") from error


def _build(place: Path, text: str, tree: dict[str, Any], secrets: References | None) -> Config:
    """Check and fill a parsed file; every complaint is made here, where its place is known."""
    try:
        written = keys.in_camel_case(migrate(tree), Config)
        resolved = environment.resolve(written, os.environ, secrets)
        filled = environment.fill(resolved.tree, Config, os.environ)
    except keys.TwiceError as error:
        raise ConfigError(f"{place}:{_line(text, error.path)}: {error}") from error
    except environment.BadTextError as error:
        raise ConfigError(f"{place}:{_line(text, error.path)}: {Problem(error.path, str(error))}.") from error
    # What begins with an underscore is ours to keep, not a setting: pydantic-settings would obey it.
    settings = {key: value for key, value in filled.tree.items() if not key.startswith("_")}
    try:
        config = Config(**settings)
    except ValidationError as error:
        raise _refusal(place, text, problems_in(error, filled.tree), filled.variables) from error
    loaded_from = LoadedFrom(
        file=place,
        written=written,
        references={path: Reference(said, keys.value_at(config, path)) for path, said in resolved.references.items()},
        variables=filled.variables,
        filled={path: keys.value_at(config, path) for path in filled.variables},
        warnings=tuple(_warnings(place, text, resolved.tree, filled.strays)),
    )
    return config.came_from(loaded_from)


def _refusal(place: Path, text: str, problems: list[Problem], variables: Mapping[KeyPath, str]) -> ConfigError:
    lines = []
    for problem in problems[:SHOWN_PROBLEMS]:
        variable = next((name for path, name in variables.items() if problem.path[: len(path)] == path), None)
        spot = f"{variable} in the environment" if variable else f"{place}:{_line(text, problem.path)}"
        lines.append(f"{spot}: {problem}.")
    if len(problems) > SHOWN_PROBLEMS:
        lines.append(f"... and {len(problems) - SHOWN_PROBLEMS} more.")
    return ConfigError("\n".join(lines))


def _line(text: str, path: KeyPath) -> int:
    """The line of a key; of one that moved, where it stands in the file."""
    old = next((old for old, new in MOVED.items() if new == path and document.has(text, old)), None)
    return document.line_of(text, old or path)


def _warnings(place: Path, text: str, tree: Mapping[str, Any], strays: tuple[str, ...]) -> list[str]:
    found = []
    for unknown in keys.unknown_keys(tree, Config):
        hint = f" Did you mean {unknown.nearest}?" if unknown.nearest else ""
        found.append(f"{place}:{_line(text, unknown.path)}: {keys.dotted(unknown.path)} is not a key we know.{hint}")
    return found + [f"{variable} in the environment fits no key of the config." for variable in strays]


def load_warnings(config: Config) -> tuple[str, ...]:
    """What was odd about the file but did no harm: unknown keys, each in one line."""
    return config.loaded_from.warnings


def closed_channels(config: Config, paired: Container[str] = ()) -> list[str]:
    """A line for each enabled channel whose allowFrom is empty; the original took that for everybody.

    None for the channels in `paired`: where somebody has paired, an empty list is what the owner wants.
    """
    found: dict[str, Any] = {name: getattr(config.channels, name) for name in type(config.channels).model_fields}
    return [
        f"channels.{name}.allowFrom is empty: only who paired may speak, and nobody has. Write to the bot; it gives "
        "you a code to let yourself in with: `nanobot pairing approve CODE --owner`."
        for name, channel in (found | (config.channels.__pydantic_extra__ or {})).items()
        if name not in paired and _is_closed(channel)
    ]


def _is_closed(channel: Any) -> bool:
    if isinstance(channel, BaseModel):
        channel = {"enabled": getattr(channel, "enabled", False), "allowFrom": getattr(channel, "allow_from", [])}
    if not isinstance(channel, dict) or channel.get("enabled") is not True:
        return False
    return not (channel.get("allowFrom") or channel.get("allow_from"))
