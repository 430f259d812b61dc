"""The source of each setting: file, environment, secret file, command or default. Secrets are masked."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel

from nanobot.config.environment import is_pointer, variables_in
from nanobot.config.keys import dotted
from nanobot.config.loaded_from import MISSING, KeyPath, LoadedFrom, entry_of
from nanobot.config.masking import mask_value
from nanobot.config.schema import Config
from nanobot.security.references import references_in

Source = Literal["file", "environment", "secret file", "command", "default"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. `value` is masked; `where` names the file, variable or program."""

    key: str
    value: Any
    source: Source
    where: str = ""


def sources(config: Config) -> list[Setting]:
    """All settings by dotted camelCase key, in the order of the schema."""
    loaded = config.loaded_from
    return [
        Setting(dotted(path), mask_value(path, value), *_source(path, loaded)) for path, value in _leaves(config, ())
    ]


def _source(path: KeyPath, loaded: LoadedFrom) -> tuple[Source, str]:
    for filled, variable in loaded.variables.items():
        if path[: len(filled)] == filled:
            return "environment", variable
    node: Any = loaded.written
    for name in path:
        if (node := entry_of(node, name)) is MISSING:
            return "default", ""
    return _referenced_source(path, node) or ("file", str(loaded.file))


def _referenced_source(path: KeyPath, written: object) -> tuple[Source, str] | None:
    """The source that a string in the file refers to; None if it is the value itself."""
    if not isinstance(written, str):
        return None
    for reference in references_in(written, whole=is_pointer(path, written)):
        kind, _, target = reference.partition(":")
        return ("secret file", target) if kind == "file" else ("command", target.strip().partition(" ")[0])
    variables = variables_in(written)
    return ("environment", ", ".join(variables)) if variables else None


def _leaves(value: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """All values; sections and maps or lists of sections are descended into."""
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
