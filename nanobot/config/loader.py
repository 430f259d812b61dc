"""Reading config.json and writing it.

A file that cannot be used stops the command: ConfigError with file, line and key. It is never replaced by defaults
and never rewritten. Writing keeps what somebody else wrote: unknown keys, the order, and `${VAR}` as it stands.
"""

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nanobot.config import document, environment, keys
from nanobot.config.migrate import MOVED, migrate
from nanobot.config.origin import MISSING, KeyPath, Origin, Reference, entry_of
from nanobot.config.paths import expand, get_config_path, get_data_dir
from nanobot.config.problems import Problem, problems_in
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic

__all__ = ["closed_channels", "get_config_path", "get_data_dir", "load_config", "load_warnings", "save_config"]

BACKUPS = (".bak", ".bak.1", ".bak.2")  # the newest first
SHOWN_PROBLEMS = 5


def load_config(path: Path | str | None = None, *, must_exist: bool = False) -> Config:
    """The config in a file, the one in use if none is given. Raises ConfigError, and nothing else.

    A missing file means the defaults, unless it must exist: what a person named should be there.
    """
    place = expand(path) if path is not None else get_config_path()
    data = _read(place, must_exist)
    try:
        text, tree = document.parse(data) if data is not None else ("{}", {})
        return _build(place, text, tree)
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
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{place} cannot be read: {reason}. Correct its permissions or the path.") from error


def _build(place: Path, text: str, tree: dict[str, Any]) -> Config:
    """Check and fill a parsed file; every complaint is made here, where its place is known."""
    try:
        written = keys.in_camel_case(migrate(tree), Config)
        resolved = environment.resolve(written, os.environ)
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
    origin = Origin(
        file=place,
        written=written,
        references={path: Reference(said, _value_at(config, path)) for path, said in resolved.references.items()},
        variables=filled.variables,
        filled={path: _value_at(config, path) for path in filled.variables},
        warnings=tuple(_warnings(place, text, resolved.tree, filled.strays)),
    )
    return config.came_from(origin)


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
    return config.origin.warnings


def closed_channels(config: Config) -> list[str]:
    """A line for each enabled channel whose allowFrom is empty; the original took that for everybody."""
    found: dict[str, Any] = {name: getattr(config.channels, name) for name in type(config.channels).model_fields}
    return [
        f"channels.{name}.allowFrom is empty: only who paired may speak. They write to the bot and get a code; "
        "let them in with `nanobot pairing approve CODE`."
        for name, channel in (found | (config.channels.__pydantic_extra__ or {})).items()
        if _is_closed(channel)
    ]


def _is_closed(channel: Any) -> bool:
    if isinstance(channel, BaseModel):
        channel = {"enabled": getattr(channel, "enabled", False), "allowFrom": getattr(channel, "allow_from", [])}
    if not isinstance(channel, dict) or channel.get("enabled") is not True:
        return False
    return not (channel.get("allowFrom") or channel.get("allow_from"))


def save_config(config: Config, path: Path | str | None = None) -> None:
    """Write what differs from the defaults, 0600, in one step; what was there before becomes `.bak`.

    Without a path, to where the config came from. What the environment filled in stays out of the file. Raises
    StorageError, and then the old file is whole.
    """
    place = expand(path) if path is not None else config.origin.file or get_config_path()
    text = json.dumps(to_document(config), indent=2, ensure_ascii=False) + "\n"
    try:
        make_private_folder(place.parent)
        old = place.read_bytes() if place.exists() else None
        if old is not None and old != text.encode():
            _back_up(place, old)
        write_atomic(place, text, mode=PRIVATE_FILE)
    except OSError as error:
        raise StorageError(f"{place} cannot be written: {error.strerror or error}. Nothing was changed.") from error


def _back_up(place: Path, old: bytes) -> None:
    names = [place.with_name(place.name + ending) for ending in BACKUPS]
    for newer, older in reversed(list(itertools.pairwise(names))):
        if newer.exists():
            os.replace(newer, older)
    write_atomic(names[0], old, mode=PRIVATE_FILE)


def to_document(config: Config) -> dict[str, Any]:
    """The config as its file would hold it: camelCase, without defaults, `${VAR}` as it was written."""
    result = _differences(config)
    origin = config.origin
    result |= {key: value for key, value in origin.written.items() if key.startswith("_")}
    lent = {path for path, value in origin.filled.items() if _value_at(config, path) == value}
    for path in lent:
        _drop(result, path)
    for path in environment.fill(result, Config, os.environ).variables.keys() - lent:
        _restore(result, path, _plain(_value_at(config, path)))  # a default, but left out a variable would win over it
    for path, reference in origin.references.items():
        if reference.loaded is not MISSING and _value_at(config, path) == reference.loaded:
            _restore(result, path, reference.written)
        else:
            _restore_elsewhere(result, path, reference)
    ordered = _in_order(result, origin.written)
    assert isinstance(ordered, dict)  # noqa: S101 for the type alone: the root is an object
    return ordered


def _differences(section: BaseModel) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            if inner := _differences(value):
                result[str(field.alias or name)] = inner
        elif value != field.get_default(call_default_factory=True):
            result[str(field.alias or name)] = _plain(value)
    return result | {key: _plain(value) for key, value in (section.__pydantic_extra__ or {}).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _differences(value)
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value] if isinstance(value, list | tuple) else value


def _value_at(config: Config, path: KeyPath) -> Any:
    value: Any = config
    for name in path:
        if isinstance(value, BaseModel):
            shape = keys.shapes(type(value)).get(str(name))
            value = getattr(value, shape.name) if shape else (value.__pydantic_extra__ or {}).get(str(name), MISSING)
        else:
            value = entry_of(value, name)
    return value


def _drop(tree: dict[str, Any], path: KeyPath) -> None:
    """Take a key out, and what is empty without it."""
    key = str(path[0])
    if key not in tree:
        return
    if len(path) > 1 and isinstance(tree[key], dict):
        _drop(tree[key], path[1:])
        if tree[key]:
            return
    del tree[key]


def _restore(tree: Any, path: KeyPath, written: Any) -> None:
    """Put a value where the file is to hold it; where that was a default, and so left out, too."""
    *above, last = path
    for name in above:
        tree = tree.setdefault(name, {}) if isinstance(tree, dict) else entry_of(tree, name)
    if isinstance(tree, dict) or entry_of(tree, last) is not MISSING:
        tree[last] = written


def _restore_elsewhere(tree: Any, path: KeyPath, reference: Reference) -> None:
    """In a list that changed, the same value at another place is still the same reference."""
    holder: Any = tree
    for name in path[:-1]:
        holder = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(holder, list):
        holder[:] = [reference.written if entry == reference.loaded else entry for entry in holder]


def _in_order(value: Any, written: Any) -> Any:
    """The keys in the order of the file, new ones behind."""
    if not isinstance(value, dict) or not isinstance(written, dict):
        return value
    first = [key for key in written if key in value]
    return {
        key: _in_order(value[key], written.get(key)) for key in [*first, *(key for key in value if key not in written)]
    }
