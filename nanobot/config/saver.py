"""Writing config.json: little, and faithful to what somebody else wrote there.

Only what differs from the defaults is written. Unknown keys, the order of keys and `${VAR}` stay as they stand in the
file; what the environment filled in stays out of it.
"""

import itertools
import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nanobot.config import environment
from nanobot.config.keys import value_at
from nanobot.config.loaded_from import MISSING, KeyPath, Reference, entry_of
from nanobot.config.paths import expand, get_config_path
from nanobot.config.schema import Config
from nanobot.errors import StorageError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, sweep_temps, write_atomic

BACKUPS = (".bak", ".bak.1", ".bak.2")  # the newest first
_FORGOTTEN_S = 3600.0
"""Nobody writes a config for so long: a temp file of that age is what a kill left, and it may hold keys."""


def save_config(config: Config, path: Path | str | None = None) -> None:
    """Write what differs from the defaults, 0600, in one step; what was there before becomes `.bak`.

    Without a path, to where the config came from. What the environment filled in stays out of the file. Raises
    StorageError, and then the old file is whole.
    """
    place = expand(path) if path is not None else config.loaded_from.file or get_config_path()
    text = json.dumps(to_document(config), indent=2, ensure_ascii=False) + "\n"
    try:
        make_private_folder(place.parent)
        old = place.read_bytes() if place.exists() else None
        if old is not None and old != text.encode():
            _back_up(place, old)
        write_atomic(place, text, mode=PRIVATE_FILE)
        sweep_temps(place, older_than_s=_FORGOTTEN_S)
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
    loaded = config.loaded_from
    result |= {key: value for key, value in loaded.written.items() if key.startswith("_")}
    lent = {path for path, value in loaded.filled.items() if value_at(config, path) == value}
    for path in lent:
        _drop(result, path)
    for path in environment.fill(result, Config, os.environ).variables.keys() - lent:
        _restore(result, path, _plain(value_at(config, path)))  # a default, but left out a variable would win over it
    for path, reference in loaded.references.items():
        if reference.loaded is not MISSING and value_at(config, path) == reference.loaded:
            _restore(result, path, reference.written)
        else:
            _restore_elsewhere(result, path, reference)
    ordered = _in_order(result, loaded.written)
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
