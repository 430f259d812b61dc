"""Where each setting comes from: file, environment or default. Secrets are masked here, not by who shows them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from nanobot.config.keys import dotted
from nanobot.config.loaded_from import MISSING, KeyPath, LoadedFrom, entry_of
from nanobot.config.masking import shown
from nanobot.config.schema import Config

Source = Literal["file", "environment", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `value` is fit to be shown; `where` names the file or the variable."""

    key: str
    value: Any
    source: Source
    where: str = ""


def sources(config: Config) -> list[Setting]:
    """Every setting in force, by dotted camelCase key, in the order of the schema."""
    loaded = config.loaded_from
    return [Setting(dotted(path), shown(path, value), *_source(path, loaded)) for path, value in _leaves(config, ())]


def _source(path: KeyPath, loaded: LoadedFrom) -> tuple[Source, str]:
    for filled, variable in loaded.variables.items():
        if path[: len(filled)] == filled:
            return "environment", variable
    node: Any = loaded.written
    for name in path:
        if (node := entry_of(node, name)) is MISSING:
            return "default", ""
    return "file", str(loaded.file)


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """A leaf is a value of its own: a section is walked into, and so is a map of sections."""
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _leaves(getattr(value, name), (*path, str(field.alias or name)))
        for name, entry in (value.__pydantic_extra__ or {}).items():
            yield from _leaves(entry, (*path, name))
    elif isinstance(value, dict) and any(isinstance(entry, BaseModel) for entry in value.values()):
        for name, entry in value.items():
            yield from _leaves(entry, (*path, name))
    elif isinstance(value, list) and any(isinstance(entry, BaseModel) for entry in value):
        for index, entry in enumerate(value):
            yield from _leaves(entry, (*path, index))
    else:
        yield path, value
