"""The egress policy: resolves the URL of each request to the addresses it may connect to.

The name is resolved once, every address is checked, and the connection goes to one of exactly these addresses. So a DNS
answer that changes afterwards has no effect. Every request asks here, redirects included.
"""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address

from nanobot.errors import NanobotError
from nanobot.net.addresses import Address, Network, blocked_reason, is_own_network, is_within, parse_networks
from nanobot.net.http import is_loopback
from nanobot.net.urls import UrlError, WebUrl, parse_url

LOOKUP_TIMEOUT_S = 10.0
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home", ".corp", ".home.arpa")

_MAX_LOOKUPS = 128
"""Waiting threads; only reached if the network is down."""
_slots = threading.BoundedSemaphore(_MAX_LOOKUPS)

Resolve = Callable[[str, int, float], Awaitable[list[str]]]
"""Resolve a host for a port within a number of seconds. Raises OSError, TimeoutError."""


async def resolve_host(host: str, port: int, limit_s: float) -> list[str]:
    """The addresses of a host, IPv4 first, since many home networks only have that.

    Raises OSError if it has none, TimeoutError. Cancelling is safe. The system's resolver cannot be cancelled, so each
    lookup has a daemon thread that nothing waits for, neither a caller that gave up nor the end of the process.
    """
    future: Future[list[str]] = Future()
    future.set_running_or_notify_cancel()

    def look_up() -> None:
        try:
            infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except UnicodeError:
            future.set_exception(OSError(f"{host} is not a valid host name"))
        except OSError as error:
            future.set_exception(error)
        else:
            infos.sort(key=lambda info: info[0] != socket.AF_INET)
            future.set_result([*dict.fromkeys(str(sockaddr[0]) for _, _, _, _, sockaddr in infos)])
        finally:
            _slots.release()

    if not _slots.acquire(blocking=False):
        raise OSError("too many lookups are pending; the network may be down")
    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    async with asyncio.timeout(limit_s):
        return await asyncio.wrap_future(future)


def local_address_for(address: str) -> str | None:
    """The local address used to reach that address; None if unreachable. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((address, 9))
            return str(sock.getsockname()[0])
    except OSError:
        return None


class NetworkDeniedError(NanobotError):
    """A request would leave the public internet. The text is for the model: what was denied, and who may allow it."""


class NoSuchHostError(NanobotError):
    """The name does not resolve."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What is allowed besides the public internet. `whitelist`: networks from `tools.ssrfWhitelist`.

    `owned`: URLs that the owner put into the config for this purpose; matched by scheme, host and port. `proxy`:
    connects on our behalf; the environment is not consulted.
    """

    whitelist: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """How to connect: to the first of these addresses that responds, or through the proxy if there are none."""

    url: WebUrl
    addresses: tuple[str, ...] = ()


class EgressGate:
    """Finds the route of a request, or denies it."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        resolve: Resolve = resolve_host,
        local_address_for: Callable[[str], str | None] = local_address_for,
    ) -> None:
        self.policy = policy
        self._resolve_host = resolve
        self._local_address_for = local_address_for

    async def route(self, text: str) -> Route:
        """The route to the host of this URL. Raises UrlError, NetworkDeniedError, NoSuchHostError."""
        url = parse_url(text)
        if url.origin in self._owned:
            uses_proxy = self.policy.proxy is not None and not self._bypasses_proxy(url)
            return Route(url) if uses_proxy else Route(url, await self._resolve(url))
        if url.address is not None:
            self._check(url, url.address)
        if self.policy.proxy is not None and not self._bypasses_proxy(url):
            return Route(url)
        addresses = await self._resolve(url)
        for address in addresses:
            self._check(url, ip_address(address))
        return Route(url, addresses)

    async def _resolve(self, url: WebUrl) -> tuple[str, ...]:
        if url.address is not None:
            return (str(url.address),)
        try:
            addresses = await self._resolve_host(url.host, url.port, LOOKUP_TIMEOUT_S)
        except TimeoutError:
            raise NoSuchHostError(
                f"The lookup of {url.host} took longer than {LOOKUP_TIMEOUT_S:g} s. Try again later."
            ) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise NoSuchHostError(
                f"{url.host} does not resolve ({reason}). Check the spelling, and the network."
            ) from None
        if not addresses:
            raise NoSuchHostError(f"{url.host} does not resolve. Check the spelling.")
        return tuple(addresses)

    def _check(self, url: WebUrl, address: Address) -> None:
        if is_within(address, self._whitelist):
            return
        if (reason := blocked_reason(address)) is None:
            local_address = self._local_address_for(str(address))
            if not local_address or not is_own_network(address, local_address):
                return
            reason = "is in this machine's own network"
        subject = url.host if str(address) == url.host else f"{url.host} resolves to {address}, which"
        raise NetworkDeniedError(
            f"Denied: {subject} {reason}. Requests of the agent go to the public internet only. To allow this one, the "
            f"owner adds {address}/{address.max_prefixlen} to tools.ssrfWhitelist in the config."
        )

    @staticmethod
    def _bypasses_proxy(url: WebUrl) -> bool:
        """Whether the proxy does not apply, by spelling: this machine, a private address, a name like `nas`."""
        if url.address is not None:
            return blocked_reason(url.address) is not None
        return "." not in url.host or is_loopback(url.host) or url.host.endswith(_LOCAL_ENDINGS)

    @cached_property
    def _whitelist(self) -> tuple[Network, ...]:
        return parse_networks(self.policy.whitelist)

    @cached_property
    def _owned(self) -> frozenset[str]:
        origins = set[str]()
        for url in self.policy.owned:
            with suppress(UrlError):  # an invalid URL is never requested and allows nothing
                origins.add(parse_url(url).origin)
        return frozenset(origins)
