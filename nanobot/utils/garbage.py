"""Less frequent garbage collection in a process of our own.

By default, a full collection runs whenever the number of objects has grown by a quarter. Five hundred turns that wait
for a model are 300,000 objects, hardly any of them garbage: each collection blocked the event loop for 0.15 s.
"""

import gc

_WHILE_STARTING = (200_000, 20, 100)
_WHILE_RUNNING = (3_000, 5, 30)
"""A young collection after this many new objects; every fifth includes the middle generation, and at most every 150th
is full: garbage stays below 0.5 million objects.
"""


def delay_collection() -> None:
    """At the start of a process: hardly collect, since imports leave no garbage."""
    gc.set_threshold(*_WHILE_STARTING)


def freeze_imports() -> None:
    """When the first bot of such a process is built: exempt what was imported for good, and collect less than usual."""
    if gc.get_threshold() == _WHILE_STARTING:
        gc.freeze()
        gc.set_threshold(*_WHILE_RUNNING)
