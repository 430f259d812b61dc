"""Garbage: what a process imports stays, and while a bot is alive the collector of cycles looks for some less often.

By default it walks through everything there is whenever there is a quarter more of it. Five hundred turns that wait for
a model are 300,000 objects, and nearly none of them garbage: each such walk stopped the event loop for 0.15 s.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_WHILE_IT_STARTS = (200_000, 20, 100)
_THRESHOLDS = (3_000, 5, 30)
"""New objects after which the young are walked; of those walks, each fifth takes the middle-aged along, and each 150th
may take all: a moment's garbage is 0.5 million objects at most."""

_found: list[tuple[int, int, int]] = []
"""What was set before each bot that is alive; the first is what the last one to leave puts back."""
_imports_stay = False


def a_process_starts() -> None:
    """For a process of our own: what it imports is not walked, and once its first bot is there it never will be."""
    global _imports_stay
    _imports_stay = True
    gc.set_threshold(*_WHILE_IT_STARTS)


@contextmanager
def seldom_collected() -> Iterator[None]:
    """For the time of a bot. It holds for the whole process, and is put back when the last bot has left."""
    global _imports_stay
    if _imports_stay:
        gc.freeze()
        _imports_stay = False
    _found.append(gc.get_threshold())
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        before = _found[0]
        _found.pop()
        if not _found:
            gc.set_threshold(*before)
