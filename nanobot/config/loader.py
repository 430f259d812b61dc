"""Reads config.json, with errors that give line and column, and tells where each value came from.

An unusable file stops the command with a ConfigError that names file, line and key. It is never replaced by defaults
and never rewritten. Writing is in `saver`, and exported here as well.
"""

import json
import math
import os
import re
from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import ValidationError

from nanobot.config.environment import fill, is_pointer, resolve, variables_in
from nanobot.config.keypath import (
    MISSING,
    InvalidKeyError,
    KeyPath,
    camel,
    dotted,
    drop,
    get,
    leaves,
    mask_value,
    nest,
    put,
    walk,
)
from nanobot.config.paths import expand, get_config_path, get_data_dir
from nanobot.config.problems import MOVED, UnknownKey, migrate, problems_in, unknown_keys
from nanobot.config.saver import change_config, lock_config, save_config, to_document, write_document
from nanobot.config.schema import Config, LoadedFrom
from nanobot.config.section import Shape, in_camel_case
from nanobot.errors import ConfigError
from nanobot.security.references import References, references_in
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

_MAX_PROBLEMS = 5
_ROOT = Shape(Config)
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


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
        text, tree = _parse(data, path) if data is not None else ("{}", {})
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
        text, tree = _parse(data, path)
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
        return f"{variable} in the environment" if variable else f"{path}:{_line_of(text, key)}"

    def error_of(problems: Sequence[InvalidKeyError]) -> InvalidKeysError:
        lines = [f"{place(problem.path)}: {problem}." for problem in problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            lines.append(f"... and {len(problems) - _MAX_PROBLEMS} more.")
        return InvalidKeysError("\n".join(lines), [problem.path for problem in problems])

    try:
        written = _normalize(tree)
        resolved = resolve(written, os.environ, secrets)
        filled = fill(resolved, _ROOT, os.environ)
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


Source = Literal["file", "environment", "secret file", "command", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `value` is masked; `where` names the file, variable or program."""

    key: str
    value: Any
    source: Source
    where: str = ""


def sources(config: Config) -> list[Setting]:
    """All settings by dotted camelCase key, in the order of the schema, each with its source."""
    return [
        Setting(dotted(path), mask_value(path, value), *_source(path, config.loaded_from))
        for path, value in leaves(config.model_dump(by_alias=True))
    ]


def _source(path: KeyPath, loaded: LoadedFrom) -> tuple[Source, str]:
    for filled, variable in loaded.variables.items():
        if path[: len(filled)] == filled:
            return "environment", variable
    written = get(loaded.written, path)
    if written is MISSING:
        return "default", ""
    if isinstance(written, str):
        for reference in references_in(written, whole=is_pointer(path, written)):
            kind, _, target = reference.partition(":")
            return ("secret file", target) if kind == "file" else ("command", target.strip().partition(" ")[0])
        if variables := variables_in(written):
            return "environment", ", ".join(variables)
    return "file", str(loaded.file)


# -- strict JSON: positions are computed only for errors, so valid files pay nothing -----------------------------------


def _parse(data: bytes, path: Path) -> tuple[str, dict[str, Any]]:
    """The text of a file and its object. Raises ConfigError, with the place, unless it is a single JSON object."""

    def fail(problem: str, at: int = 0) -> NoReturn:
        line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
        raise ConfigError(f"{path}:{line}:{column}: {problem}.")

    def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            seen: set[KeyPath] = set()
            for key, at in _key_positions(text):  # lazily: there may be a syntax error further down, too
                if key in seen:
                    name = str(key[-1]).encode("utf-8", "replace").decode()
                    fail(f'the key "{name}" occurs twice in one object. Keep one', at)
                seen.add(key)
        return result

    def parse_finite(digits: str) -> float:
        number = float(digits)
        if not math.isfinite(number):
            fail(f"{digits[:20]} is too large a number", text.find(digits))
        return number

    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data[: error.start].decode("utf-8-sig", "replace")
        fail("a byte here is not UTF-8. Save the file as UTF-8", len(text))
    if not text.strip():
        fail("the file is empty. Write {} into it, or delete it to use the defaults")
    try:
        tree = json.loads(
            text,
            object_pairs_hook=reject_duplicates,
            parse_constant=lambda name: fail(f"{name} is not a JSON value", text.find(name)),
            parse_float=parse_finite,
        )
    except json.JSONDecodeError as error:
        fail(_explain(text, error), error.pos)
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply.") from error
    except ValueError as error:  # a number with thousands of digits
        raise ConfigError(f"{path} a number is too long ({error}).") from error
    if not isinstance(tree, dict):
        fail("the file must contain one object, from { to }")
    return text, tree


def _line_of(text: str, path: KeyPath) -> int:
    """The line of a key in any spelling and place, or of its nearest existing parent. The text must be valid."""

    def current(path: KeyPath) -> KeyPath:
        path = tuple(camel(key) if isinstance(key, str) else key for key in path)
        return MOVED.get(path, path)

    positions = {current(found): at for found, at in _key_positions(text)}
    parents = (current(path[:length]) for length in range(len(path), 0, -1))
    return text.count("\n", 0, next((positions[parent] for parent in parents if parent in positions), 0)) + 1


def _key_positions(text: str, at: int = 0, path: KeyPath = ()) -> Generator[tuple[KeyPath, int], None, int]:
    """Path and position of all keys and list entries of the value at a position; returns its end."""
    at = _skip_space(text, at)
    if text[at] not in "{[":
        return _DECODER.raw_decode(text, at)[1]
    is_object = text[at] == "{"
    at = _skip_space(text, at + 1)
    index = 0
    while text[at] not in "}]":
        key: str | int = index
        begin = at
        if is_object:
            key, at = _DECODER.raw_decode(text, at)
            at = _skip_space(text, at) + 1  # the colon
        yield (*path, key), begin
        at = _skip_space(text, (yield from _key_positions(text, at, (*path, key))))
        if text[at] == ",":
            at = _skip_space(text, at + 1)
        index += 1
    return at + 1


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _explain(text: str, error: json.JSONDecodeError) -> str:
    """The problem in words for a reader who does not know the JSON standard."""
    rest = text[error.pos :].lstrip()
    before = text[: error.pos].rstrip()
    if not rest and error.msg != "Extra data":
        return "the file ends too early; a } or ] is missing"
    if rest[:1] in "/#" and "string" not in error.msg:
        return "JSON has no comments. Remove it"
    if (rest[:1] in "}]" and before.endswith(",")) or "trailing comma" in error.msg:
        return "trailing comma before the closing bracket"
    if rest[:1] == "'":
        return 'keys and strings need double quotes: "..."'
    return _EXPLANATIONS.get(error.msg, error.msg)


_EXPLANATIONS = {
    "Expecting property name enclosed in double quotes": 'expected a key in double quotes: "..."',
    "Expecting ',' delimiter": "a comma is missing before this",
    "Expecting ':' delimiter": "a colon is missing between a key and its value",
    "Expecting value": 'expected a value: a "string", a number, true, false, null, {...} or [...]',
    "Extra data": "something follows after the last }",
    "Unterminated string starting at": "a string has no closing quote",
}
