"""Bounded dicts for data that may be forgotten."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put_bounded(table: dict[K, V], key: K, value: V, most: int = 1000) -> None:
    """Insert as the newest entry; beyond `most` entries the oldest are removed."""
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        del table[next(iter(table))]
