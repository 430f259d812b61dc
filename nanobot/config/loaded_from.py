"""Where a config came from: what its file said, what the environment filled in, what was odd about it.

A config carries it privately, so that saving can put back what was written and `sources` can say where a value is from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KeyPath = tuple[str | int, ...]
MISSING = object()


def entry_of(tree: Any, name: str | int) -> Any:
    """What stands under a name of an object or a list, MISSING if nothing does."""
    if isinstance(tree, dict):
        return tree.get(name, MISSING)
    if isinstance(tree, list) and isinstance(name, int) and name < len(tree):
        return tree[name]
    return MISSING


@dataclass(frozen=True, slots=True)
class Reference:
    """A text that points elsewhere (`${VAR}`, `file:`, `cmd:`): as it is written, and what it stood for when loaded."""

    written: str
    loaded: Any


@dataclass(frozen=True, slots=True, eq=False)
class LoadedFrom:
    """How a config came to be; one without a file was made. Paths are camelCase.

    All are equal: two configs with the same settings are the same, wherever they came from.
    """

    file: Path | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    """The file, migrated, its known keys in camelCase, `${VAR}` as it stands there."""
    references: Mapping[KeyPath, Reference] = field(default_factory=dict)
    variables: Mapping[KeyPath, str] = field(default_factory=dict)
    """For each key that the environment filled, the variable."""
    filled: Mapping[KeyPath, Any] = field(default_factory=dict)
    """For each of these keys, the value it had when it was loaded."""
    warnings: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoadedFrom)

    def __hash__(self) -> int:
        return hash(LoadedFrom)
