"""A dict that holds what was put in last: bounded memory for what may be forgotten."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


def put_newest(table: dict[K, V], key: K, value: V, most: int) -> None:
    """Put it in, behind all others; of more than `most` the oldest go."""
    table.pop(key, None)
    table[key] = value
    while len(table) > most:
        del table[next(iter(table))]
