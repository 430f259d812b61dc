"""DNS lookups in threads, each with a time limit.

The system's resolver cannot be cancelled. Each lookup has a daemon thread that nothing waits for, neither a caller that
gave up nor the end of the process; a hanging name server takes no thread from disk writers.
"""

import asyncio
import socket
import threading
from contextlib import suppress

_MAX_LOOKUPS = 128
"""Waiting threads; only reached if the network is down."""
_slots = threading.BoundedSemaphore(_MAX_LOOKUPS)


async def resolve_host(host: str, port: int, limit_s: float) -> list[str]:
    """The addresses of a host, IPv4 first, since many home networks only have that.

    Raises OSError if it has none, TimeoutError. Cancelling is safe.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[list[str]] = loop.create_future()

    def set_result(result: list[str] | OSError) -> None:
        if future.done():
            return
        if isinstance(result, OSError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def run() -> None:
        try:
            result = _getaddrinfo(host, port)
        finally:
            _slots.release()
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more
            loop.call_soon_threadsafe(set_result, result)

    if not _slots.acquire(blocking=False):
        raise OSError("too many lookups are pending; the network may be down")
    threading.Thread(target=run, name="look-up", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await future


def local_address_for(address: str) -> str | None:
    """The local address used to reach that address; None if unreachable. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return None


def _getaddrinfo(host: str, port: int) -> list[str] | OSError:
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError:
        return OSError(f"{host} is not a valid host name")
    addresses = dict.fromkeys((family, str(sockaddr[0])) for family, _, _, _, sockaddr in infos)
    return [address for _, address in sorted(addresses, key=lambda entry: entry[0] != socket.AF_INET)]
