"""`deadly_gateway POINT MODE`: `nanobot gateway`, killed at its call number POINT that writes, as in `turn_sweep`: to
the disk, to the journal, or to a socket, from its start on.
"""

import inspect
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from nanobot.__main__ import main
from nanobot.bus.journal import Journal
from tests.crash.stepped_gateway import point_discord
from tests.crash.turn_sweep import arm, deadly

KILLS = ("before", "half", "after", "term")


def counted(real: Callable[..., Awaitable[Any]], point: Callable[[], None]) -> Callable[..., Awaitable[Any]]:
    """A word to the journal, of which both its beginning and its end are a point."""

    async def word(*args: Any) -> Any:
        point()
        result = await real(*args)
        point()
        return result

    return word


if __name__ == "__main__":
    point_discord()
    wrapped = deadly(int(sys.argv[1]), sys.argv[2])
    for name, real in [*vars(Journal).items()]:
        if inspect.iscoroutinefunction(real):
            setattr(Journal, name, counted(real, wrapped("journal", lambda: None)))
    for name in ("send", "sendall"):
        setattr(socket.socket, name, wrapped(name, getattr(socket.socket, name)))
    arm()
    sys.argv = ["nanobot", "gateway"]
    main()
