"""Where requests of the agent may go. The one place where a URL becomes addresses that we connect to.

The name is looked up once; every address it has is judged; the connection goes to one of these very addresses. So a
name that says something else a moment later changes nothing. Whoever sends asks here for each request, redirects too.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from ipaddress import ip_address

from nanobot.errors import NanobotError
from nanobot.security.addresses import Address, Network, is_neighbour, is_within, networks, why_closed
from nanobot.security.urls import UrlError, WebUrl, parse_url
from nanobot.utils.http import is_loopback
from nanobot.utils.names import addresses_of, own_address_towards

LOOK_UP_S = 10.0
_LOCAL_ENDINGS = (".localhost", ".local", ".internal", ".intranet", ".lan", ".home", ".corp", ".home.arpa")

LookUp = Callable[[str, int, float], Awaitable[list[str]]]
"""The addresses of a host, for a port, within so many seconds. Raises OSError, TimeoutError."""


class NetworkDeniedError(NanobotError):
    """A request would leave the public internet. The text is for the model: what was refused, and who may open it."""


class NoSuchHostError(NanobotError):
    """The name leads to no address."""


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """What is open beside the public internet. `whitelist`: networks the owner listed (`tools.ssrfWhitelist`).

    `owned`: URLs the owner wrote into the config for this very purpose: scheme, host and port of each pass. `proxy`:
    who is asked to connect instead of us; nothing in the environment names one.
    """

    whitelist: tuple[str, ...] = ()
    owned: tuple[str, ...] = ()
    proxy: str | None = None


@dataclass(frozen=True, slots=True)
class Ways:
    """How to connect: to one of these addresses, the first that answers; with none, by way of the proxy."""

    url: WebUrl
    addresses: tuple[str, ...] = ()


class Gate:
    """Tells each request its ways, or why there is none."""

    def __init__(
        self,
        policy: NetworkPolicy,
        *,
        look_up: LookUp = addresses_of,
        own_address: Callable[[str], str | None] = own_address_towards,
    ) -> None:
        self.policy = policy
        self._look_up = look_up
        self._own_address = own_address

    async def ways(self, text: str) -> Ways:
        """How to connect to the host of this URL. Raises UrlError, NetworkDeniedError, NoSuchHostError."""
        url = parse_url(text)
        if url.origin in self._owned:
            far = self.policy.proxy is not None and not self._is_near(url)
            return Ways(url) if far else Ways(url, await self._found(url))
        if url.address is not None:
            self._check(url, url.address)
        if self.policy.proxy is not None and not self._is_near(url):
            return Ways(url)
        found = await self._found(url)
        for one in found:
            self._check(url, ip_address(one))
        return Ways(url, found)

    async def _found(self, url: WebUrl) -> tuple[str, ...]:
        if url.address is not None:
            return (str(url.address),)
        try:
            found = await self._look_up(url.host, url.port, LOOK_UP_S)
        except TimeoutError:
            raise NoSuchHostError(
                f"The address of {url.host} was not found within {LOOK_UP_S:g} s. Try later."
            ) from None
        except OSError as error:
            why = error.strerror or str(error)
            raise NoSuchHostError(f"There is no address for {url.host} ({why}). Check the spelling.") from None
        if not found:
            raise NoSuchHostError(f"There is no address for {url.host}. Check the spelling.")
        return tuple(found)

    def _check(self, url: WebUrl, address: Address) -> None:
        if self._is_open(address):
            return
        if (why := why_closed(address)) is None:
            own = self._own_address(str(address))
            why = "is in this machine's own network" if own and is_neighbour(address, own) else None
        if why is not None:
            raise NetworkDeniedError(_refusal(url.host, why, str(address)))

    def _is_open(self, address: Address | None) -> bool:
        return address is not None and is_within(address, self._whitelist)

    @staticmethod
    def _is_near(url: WebUrl) -> bool:
        """Whether a proxy is of no use for it, by its spelling: this machine, an address that is not public, `nas`."""
        if url.address is not None:
            return why_closed(url.address) is not None
        return "." not in url.host or is_loopback(url.host) or url.host.endswith(_LOCAL_ENDINGS)

    @cached_property
    def _whitelist(self) -> tuple[Network, ...]:
        return networks(self.policy.whitelist)

    @cached_property
    def _owned(self) -> frozenset[str]:
        return frozenset(_origins(self.policy.owned))


def _origins(urls: Iterable[str]) -> Iterator[str]:
    for url in urls:
        with suppress(UrlError):  # one that cannot be read is asked by nobody either, and opens nothing
            yield parse_url(url).origin


def _refusal(host: str, why: str, address: str = "") -> str:
    there = f"{host} leads to {address}, which" if address and address != host else host
    entry = f"{address}/{128 if ':' in address else 32}" if address else "its network"
    return (
        f"Refused: {there} {why}. Requests of the agent go to the public internet only. If the owner wants this one, "
        f"they add {entry} to tools.ssrfWhitelist in the config."
    )
