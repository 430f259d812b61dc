"""Writes config.json: only differences from the defaults, preserving what others wrote.

Unknown keys, key order and `${VAR}` stay as in the file; values from the environment are not written.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from nanobot.config import environment
from nanobot.config.keys import value_at
from nanobot.config.loaded_from import MISSING, KeyPath, Reference, entry_of
from nanobot.config.paths import expand, get_config_path
from nanobot.config.problems import problems_in
from nanobot.config.schema import Config
from nanobot.errors import ConfigError, StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, remove_stale_temps, write_atomic
from nanobot.utils.locks import file_lock

BACKUPS = (".bak", ".bak.1", ".bak.2")  # newest first
_STALE_TEMP_S = 3600.0
"""No save takes this long: an older temp file was left by a kill, and may contain keys."""


def save_config(config: Config, path: Path | str | None = None) -> None:
    """Write the differences from the defaults, mode 0600, atomically; the previous content becomes `.bak`.

    Without a path, to the file the config came from. Values from the environment are not written. Raises StorageError
    and leaves the old file intact. Use `change_config` to change a file that others may change, too.
    """
    path = expand(path) if path is not None else config.loaded_from.file or get_config_path()
    with lock_config(path):
        _save(config, path)


def change_config(load: Callable[[], Config], change: Callable[[Config], Config], path: Path | str) -> None:
    """Load, change and save this file while holding its lock.

    Raises NanobotError, and leaves the file as it is, if it cannot be written or the result could not be loaded.
    """
    path = expand(path)
    with lock_config(path):
        config = change(load())
        require_valid(config)
        _save(config, path)


def require_valid(config: Config) -> None:
    """Raise ConfigError if this config, once saved, could not be loaded: values are not checked when they are set."""
    tree = config.model_dump(by_alias=True)
    try:
        type(config).model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{problem}." for problem in problems_in(error, tree))) from error


@contextmanager
def lock_config(path: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(file_lock(path.with_name(f".{path.stem}.lock")))
        except OSError as error:
            raise _storage_error(path, error) from error
        yield


def _save(config: Config, path: Path) -> None:
    write_document(json.dumps(to_document(config), indent=2, ensure_ascii=False) + "\n", path)


def write_document(text: str, path: Path) -> None:
    """Write the file as `save_config` does."""
    try:
        make_private_folder(path.parent)
        old = path.read_bytes() if path.exists() else None
        if old is not None and old != text.encode():
            _back_up(path, old)
        write_atomic(path, text, mode=PRIVATE_FILE)
        remove_stale_temps(path, older_than_s=_STALE_TEMP_S)
    except OSError as error:
        raise _storage_error(path, error) from error


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(f"{path} cannot be written: {error.strerror or error}. The old file is unchanged.")


def _back_up(path: Path, old: bytes) -> None:
    names = [path.with_name(path.name + ending) for ending in BACKUPS]
    for newer, older in reversed(list(itertools.pairwise(names))):
        if newer.exists():
            os.replace(newer, older)
    write_atomic(names[0], old, mode=PRIVATE_FILE)


def to_document(config: Config) -> dict[str, Any]:
    """The config as its file would contain it: camelCase, without defaults, `${VAR}` as written."""
    result = _changes(config)
    loaded = config.loaded_from
    result |= {key: value for key, value in loaded.written.items() if key.startswith("_")}
    from_environment = {path for path, value in loaded.filled.items() if value_at(config, path) == value}
    for path in from_environment:
        delete_key(result, path)
    for path in environment.fill(result, Config, os.environ).variables.keys() - from_environment:
        # a default, but if left out, a variable would override it
        set_value(result, path, _to_json(value_at(config, path)))
    for path, reference in loaded.references.items():
        if reference.loaded is not MISSING and value_at(config, path) == reference.loaded:
            set_value(result, path, reference.written)
        else:
            _restore_in_list(result, path, reference)
    ordered = _sort_like(result, loaded.written)
    assert isinstance(ordered, dict)  # noqa: S101 for mypy: the root is an object
    return ordered


def _changes(section: BaseModel) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            if inner := _changes(value):
                result[str(field.alias or name)] = inner
        elif value != field.get_default(call_default_factory=True):
            result[str(field.alias or name)] = _to_json(value)
    return result | {key: _to_json(value) for key, value in (section.__pydantic_extra__ or {}).items()}


def _to_json(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return _changes(value)
    if isinstance(value, dict):
        return {key: _to_json(entry) for key, entry in value.items()}
    return [_to_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def delete_key(tree: dict[str, Any], key_path: KeyPath) -> None:
    """Delete a key, and parents that become empty."""
    key = str(key_path[0])
    if key not in tree:
        return
    if len(key_path) > 1 and isinstance(tree[key], dict):
        delete_key(tree[key], key_path[1:])
        if tree[key]:
            return
    del tree[key]


def set_value(tree: Any, key_path: KeyPath, written: Any) -> None:
    """Set a value, creating parents that were left out as defaults."""
    *above, last = key_path
    for name in above:
        tree = tree.setdefault(name, {}) if isinstance(tree, dict) else entry_of(tree, name)
    if isinstance(tree, dict) or entry_of(tree, last) is not MISSING:
        tree[last] = written


def _restore_in_list(tree: Any, key_path: KeyPath, reference: Reference) -> None:
    """In a list that changed, the same value at another index is still the same reference."""
    holder: Any = tree
    for name in key_path[:-1]:
        holder = holder.get(name) if isinstance(holder, dict) else None
    if isinstance(holder, list):
        holder[:] = [reference.written if entry == reference.loaded else entry for entry in holder]


def _sort_like(value: Any, written: Any) -> Any:
    """Sort keys as in the file, new ones last."""
    if not isinstance(value, dict) or not isinstance(written, dict):
        return value
    first = [key for key in written if key in value]
    return {
        key: _sort_like(value[key], written.get(key)) for key in [*first, *(key for key in value if key not in written)]
    }
