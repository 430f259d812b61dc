"""Writes config.json: only differences from the defaults, preserving what others wrote.

Unknown keys, key order and `${VAR}` stay as in the file; values from the environment are not written.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nanobot.config.environment import fill, refers_elsewhere, strings_in
from nanobot.config.keypath import MISSING, KeyPath, get, put
from nanobot.config.paths import expand, get_config_path
from nanobot.config.problems import problems_in
from nanobot.config.schema import Config
from nanobot.config.section import Shape
from nanobot.errors import ConfigError
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, remove_stale_temps, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_errors

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
        with storage_errors(f"{path} cannot be written"):
            stack.enter_context(file_lock(path.with_name(f".{path.stem}.lock")))
        yield


def _save(config: Config, path: Path) -> None:
    write_document(json.dumps(to_document(config), indent=2, ensure_ascii=False) + "\n", path)


def write_document(text: str, path: Path) -> None:
    """Write the file as `save_config` does."""
    with storage_errors(f"{path} cannot be written"):
        make_private_folder(path.parent)
        old = path.read_bytes() if path.exists() else None
        if old is not None and old != text.encode():
            names = [path.with_name(path.name + ending) for ending in BACKUPS]
            for newer, older in reversed(list(itertools.pairwise(names))):
                if newer.exists():
                    os.replace(newer, older)
            write_atomic(names[0], old, mode=PRIVATE_FILE)
        write_atomic(path, text, mode=PRIVATE_FILE)
        remove_stale_temps(path, older_than_s=_STALE_TEMP_S)


def to_document(config: Config) -> dict[str, Any]:
    """The config as its file would contain it: camelCase, without defaults.

    What has not changed since it was loaded stays as written; what the environment filled in is not written.
    """
    loaded = config.loaded_from
    explicit = [*fill({}, Shape(Config), os.environ).variables]
    explicit += [path for path, text in strings_in(loaded.written) if refers_elsewhere(path, text)]
    before, after = (_settings(each, explicit) for each in (Config(**loaded.tree), config))
    ignored = {key: value for key, value in loaded.written.items() if key.startswith("_")}
    return _apply_changes(loaded.written, before | ignored, after | ignored)


def _settings(config: Config, explicit: Iterable[KeyPath]) -> dict[str, Any]:
    """What differs from the defaults; and of some keys the default, since leaving it out would not mean the same."""
    everything = config.model_dump(by_alias=True, warnings=False)
    settings = config.model_dump(by_alias=True, warnings=False, exclude_defaults=True)
    if "enabled" in config.gateway.heartbeat.model_fields_set:  # `false` is more than the default: see HeartbeatConfig
        explicit = [*explicit, ("gateway", "heartbeat", "enabled")]
    for path in explicit:
        key = tuple(itertools.takewhile(lambda part: isinstance(part, str), path))
        if (value := get(everything, key)) is not MISSING:
            put(settings, key, value)
    return settings


def _apply_changes(written: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What was written, with the differences between the settings before and after."""
    result: dict[str, Any] = {}
    for name in {**written, **after}:
        text, old, new = (tree.get(name, MISSING) for tree in (written, before, after))
        if isinstance(new, dict) and new:
            inner = _apply_changes(text if isinstance(text, dict) else {}, old if isinstance(old, dict) else {}, new)
            if inner:
                result[name] = inner
        elif new is not MISSING and new != old:
            result[name] = _with_references(new, old, text)
        elif new is not MISSING and text is not MISSING:
            result[name] = text
    return result


def _with_references(value: Any, before: Any, written: Any) -> Any:
    """In a list that changed, entries that refer elsewhere are still written as references."""
    if not (isinstance(value, list) and isinstance(before, list) and isinstance(written, list)):
        return value
    references = [(loaded, text) for loaded, text in zip(before, written, strict=False) if isinstance(text, str)]
    return [next((text for loaded, text in references if loaded == entry), entry) for entry in value]
