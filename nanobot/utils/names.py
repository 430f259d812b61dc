"""Names of hosts looked up off the event loop, each within a time limit.

The system's own look-up cannot be cancelled. So each has a thread of its own that nobody waits for, neither who gave
up nor the end of the process; a server of names that hangs takes no thread from those that write to the disk.
"""

import asyncio
import socket
import threading
from contextlib import suppress

_MOST_AT_ONCE = 128
"""Threads that wait; only a network that is down has ever so many."""
_going_on = threading.BoundedSemaphore(_MOST_AT_ONCE)


async def addresses_of(host: str, port: int, limit_s: float) -> list[str]:
    """Its addresses, IPv4 first: a host that has both answers there too, and many homes only speak that one.

    Raises OSError where it has none, TimeoutError. Cancelling is safe.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[str]] = loop.create_future()

    def tell(answer: list[str] | OSError) -> None:
        if found.done():
            return
        if isinstance(answer, OSError):
            found.set_exception(answer)
        else:
            found.set_result(answer)

    def look_up() -> None:
        try:
            answer = _looked_up(host, port)
        finally:
            _going_on.release()
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(tell, answer)

    if not _going_on.acquire(blocking=False):
        raise OSError("too many names are being looked up, and none is found: is the network down?")
    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await found


def own_address_towards(address: str) -> str | None:
    """The address from which this machine would speak to that one; None where there is no way. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return None


def _looked_up(host: str, port: int) -> list[str] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:
        return OSError(f"{host} is no name that can be looked up")
    addresses = dict.fromkeys((family, str(there[0])) for family, _, _, _, there in found)
    return [address for _, address in sorted(addresses, key=lambda one: one[0] != socket.AF_INET)]
