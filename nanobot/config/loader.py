"""Reads config.json.

An unusable file stops the command with a ConfigError that names file, line and key. It is never replaced by defaults
and never rewritten. Writing is in `saver`, and exported here as well.
"""

import json
import os
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nanobot.config import document, environment
from nanobot.config.keypath import InvalidKeyError, KeyPath, dotted, drop, nest, put, walk
from nanobot.config.legacy import migrate
from nanobot.config.paths import expand, get_config_path, get_data_dir
from nanobot.config.problems import UnknownKey, problems_in, unknown_keys
from nanobot.config.saver import change_config, lock_config, save_config, to_document, write_document
from nanobot.config.schema import Config, LoadedFrom
from nanobot.config.section import Shape, in_camel_case
from nanobot.errors import ConfigError
from nanobot.security.references import References
from nanobot.utils.text import repair_json

__all__ = [
    "change_config",
    "closed_channels",
    "get_config_path",
    "get_data_dir",
    "load_config",
    "load_warnings",
    "save_config",
]

MAX_PROBLEMS = 5
_ROOT = Shape(Config)


def load_config(path: Path | str | None = None, *, must_exist: bool = False, secrets: bool = True) -> Config:
    """Load a config file, by default the one in use. Raises only ConfigError.

    A missing file means the defaults, unless `must_exist`. With `secrets` false, `cmd:` and `file:` references stay
    unresolved: no command runs and no file is read.
    """
    path = expand(path) if path is not None else get_config_path()
    data = _read(path, must_exist)
    return _parse_and_build(data, path, References(path.parent) if secrets else None)


def _parse_and_build(data: bytes | None, path: Path, secrets: References | None) -> Config:
    try:
        text, tree = document.parse(data, path) if data is not None else ("{}", {})
        return _build(path, text, tree, secrets)
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply.") from error


def repair_config(path: Path) -> tuple[Config, list[str]]:
    """Load a config file without what makes it unusable; also return what was left out, a line each.

    The file itself is not changed. Raises ConfigError if it is no config at all, or cannot be read.
    """
    data = _read(path, must_exist=True) or b""
    left_out: list[str] = []
    try:
        text, tree = document.parse(data, path)
    except ConfigError as error:
        text, tree, repaired = "{}", {}, None
        with suppress(ValueError):
            repaired = repair_json(data.decode("utf-8", "replace"))
        if isinstance(repaired, dict):
            tree = repaired
        left_out.append(str(error))
    tree = _normalize(tree)
    while True:
        try:
            return _build(path, text, tree, References(path.parent)), left_out
        except InvalidKeysError as error:
            before = deepcopy(tree)
            for key in filter(None, error.paths):
                drop(tree, key)
            if tree == before:  # it is not in the file
                raise
            left_out += str(error).splitlines()


def find_key(key: str) -> KeyPath:
    """The path of a key such as `agents.defaults.model`, in either spelling. Raises ConfigError if it is unknown."""
    tree = _normalize(nest(tuple(key.split(".")), None))
    for unknown in unknown_keys(tree, _ROOT):
        hint = unknown.hint or " See docs/configuration.md for all keys."
        raise ConfigError(f"{dotted(unknown.path)} is not a known key.{hint}")
    *_, (path, _) = walk(tree)
    return path


def set_key(path: Path, key: KeyPath, candidates: Sequence[Any]) -> None:
    """Set a key of a config file to the first of these values that its type allows.

    Raises NanobotError, and leaves the file as it is, if none is allowed, or the file cannot be used or written.
    """
    with lock_config(path):
        tree, errors = to_document(load_config(path, secrets=False)), []
        for value in candidates:
            put(tree, key, value)
            try:
                _check_and_write(tree, path)
            except ConfigError as error:
                errors.append(error)
            else:
                return
    raise errors[0]


def unset_key(path: Path, key: KeyPath) -> None:
    """Remove a key from a config file. Raises like `set_key`."""
    with lock_config(path):
        tree = to_document(load_config(path, secrets=False))
        drop(tree, key)
        _check_and_write(tree, path)


def _check_and_write(tree: Mapping[str, Any], path: Path) -> None:
    text = json.dumps(tree, indent=2, ensure_ascii=False) + "\n"
    check_text(text, path)
    write_document(text, path)


def check_text(text: str, path: Path, *, secrets: bool = False) -> Config:
    """Return the config that this text would be as a file at this path. Raises ConfigError."""
    return _parse_and_build(text.encode(), path, References(path.parent) if secrets else None)


def _normalize(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with known keys in camelCase and moved keys in their new place. Raises InvalidKeyError."""
    return migrate(in_camel_case(tree, _ROOT))


class InvalidKeysError(ConfigError):
    """Keys whose values are not allowed."""

    def __init__(self, message: str, paths: Sequence[KeyPath]) -> None:
        super().__init__(message)
        self.paths = paths


def _read(path: Path, must_exist: bool) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError as error:
        if must_exist:
            raise ConfigError(
                f"{path} does not exist. Correct the path, or run `nanobot onboard` to create it."
            ) from error
        return None
    except IsADirectoryError as error:
        raise ConfigError(f"{path} is a folder. Name the file in it.") from error
    except NotADirectoryError as error:
        blocking_file = next((folder for folder in path.parents if folder.is_file()), path.parent)
        raise ConfigError(
            f"{blocking_file} is a file where a folder should be, so there is no config. Move it away, or "
            "use another config."
        ) from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read: {reason}. Correct its permissions or the path.") from error


def _build(path: Path, text: str, tree: dict[str, Any], secrets: References | None) -> Config:
    """Validate a parsed file and apply the environment. All errors are raised here, where the line is known."""
    variables: Mapping[KeyPath, str] = {}

    def place(key: KeyPath) -> str:
        variable = next((name for filled, name in variables.items() if key[: len(filled)] == filled), None)
        return f"{variable} in the environment" if variable else f"{path}:{document.line_of(text, key)}"

    def error_of(problems: Sequence[InvalidKeyError]) -> InvalidKeysError:
        lines = [f"{place(problem.path)}: {problem}." for problem in problems[:MAX_PROBLEMS]]
        if len(problems) > MAX_PROBLEMS:
            lines.append(f"... and {len(problems) - MAX_PROBLEMS} more.")
        return InvalidKeysError("\n".join(lines), [problem.path for problem in problems])

    try:
        written = _normalize(tree)
        resolved = environment.resolve(written, os.environ, secrets)
        filled = environment.fill(resolved, _ROOT, os.environ)
        variables = filled.variables | {key: variable for variable, key in filled.unknown_variables.items()}
        # Keys that begin with an underscore are preserved, not settings: pydantic-settings would use them.
        settings = {key: value for key, value in filled.tree.items() if not key.startswith("_")}
        config = Config(**settings)
        unknown, in_environment = [*unknown_keys(resolved, _ROOT)], list[UnknownKey]()
        for misspelt in filled.unknown_variables.values():
            in_environment += unknown_keys(nest(misspelt, ""), _ROOT)
        lost = dict(pair for key in (*unknown, *in_environment) for pair in key.lost_restrictions)
        if lost:  # a warning is easily missed
            raise error_of([InvalidKeyError(key, _LOST.format(dotted(meant))) for key, meant in lost.items()])
    except InvalidKeyError as error:
        raise error_of([error]) from error
    except ValidationError as error:
        raise error_of(problems_in(error, filled.tree)) from error
    warnings = [
        f"{place(key.path)}: {dotted(key.path)} {key.unused or 'is not a known key.' + key.hint}" for key in unknown
    ]
    warnings += [f"{name} in the environment matches no key of the config." for name in filled.unknown_variables]
    return config.with_origin(LoadedFrom(path, written, settings, filled.variables, tuple(warnings)))


_LOST = (
    "is not a known key. Did you mean {}? That key restricts what the agent may do or spend, so nanobot does not "
    "start without it. Correct the name, or delete the key"
)


def load_warnings(config: Config) -> tuple[str, ...]:
    """Warnings about the file that do not prevent its use, such as unknown keys; one line each."""
    return config.loaded_from.warnings


def closed_channels(config: Config, paired: Container[str] = ()) -> list[str]:
    """A line for each enabled channel with an empty allowFrom, which the original treated as open to all.

    Channels in `paired` are left out: once users have paired, an empty list is intended.
    """
    return [
        f"channels.{name}.allowFrom is empty: only paired users are allowed, and there are none. Write to the bot; it "
        "replies with a code to approve yourself: `nanobot pairing approve CODE --owner`."
        for name in config.channels.enabled
        if name not in paired and not config.channels.section(name).allow_from
    ]
