"""Less frequent garbage collection while a bot runs.

By default, a full collection runs whenever the number of objects has grown by a quarter. Five hundred turns that wait
for a model are 300,000 objects, hardly any of them garbage: each collection blocked the event loop for 0.15 s.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_STARTUP_THRESHOLDS = (200_000, 20, 100)
_THRESHOLDS = (3_000, 5, 30)
"""A young collection after this many new objects; every fifth includes the middle generation, and at most every 150th
is full: garbage stays below 0.5 million objects.
"""

_saved_thresholds: list[tuple[int, int, int]] = []
"""The thresholds before each running bot; the first ones are restored when the last bot ends."""
_freeze_pending = False


def freeze_imports() -> None:
    """For a process of our own: exempt imported objects from collection, for good once the first bot runs."""
    global _freeze_pending
    _freeze_pending = True
    gc.set_threshold(*_STARTUP_THRESHOLDS)


@contextmanager
def infrequent_collection() -> Iterator[None]:
    """For the lifetime of a bot. Affects the whole process; undone when the last bot ends."""
    global _freeze_pending
    if _freeze_pending:
        gc.freeze()
        _freeze_pending = False
    _saved_thresholds.append(gc.get_threshold())
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        original = _saved_thresholds[0]
        _saved_thresholds.pop()
        if not _saved_thresholds:
            gc.set_threshold(*original)
