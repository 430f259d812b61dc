"""The source of each setting: file, environment, secret file, command or default. Secrets are masked."""

from dataclasses import dataclass
from typing import Any, Literal

from nanobot.config.environment import is_pointer, variables_in
from nanobot.config.keypath import MISSING, KeyPath, dotted, get, leaves, mask_value
from nanobot.config.schema import Config, LoadedFrom
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
