"""The origin of a config: what its file contained, what the environment filled in, and warnings.

A config carries it privately, so that saving can restore what was written and `sources` can tell where a value is from.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KeyPath = tuple[str | int, ...]
MISSING = object()


def entry_of(tree: Any, name: str | int) -> Any:
    """The value under a name of an object or an index of a list, else MISSING."""
    if isinstance(tree, dict):
        return tree.get(name, MISSING)
    if isinstance(tree, list) and isinstance(name, int) and name < len(tree):
        return tree[name]
    return MISSING


@dataclass(frozen=True, slots=True)
class Reference:
    """A string that refers elsewhere (`${VAR}`, `file:`, `cmd:`): as written, and its value when loaded."""

    written: str
    loaded: Any


@dataclass(frozen=True, slots=True, eq=False)
class LoadedFrom:
    """How a config was created; `file` is None without one. Paths are camelCase.

    All instances are equal, so that configs with the same settings are.
    """

    file: Path | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    """The migrated file with known keys in camelCase and `${VAR}` as written."""
    references: Mapping[KeyPath, Reference] = field(default_factory=dict)
    variables: Mapping[KeyPath, str] = field(default_factory=dict)
    """The variable of each key that the environment filled."""
    filled: Mapping[KeyPath, Any] = field(default_factory=dict)
    """The value of each of these keys when it was loaded."""
    warnings: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoadedFrom)

    def __hash__(self) -> int:
        return hash(LoadedFrom)
