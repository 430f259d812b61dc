"""Which addresses a request of the agent may go to: those of the public internet, and nothing else.

What is not known to be public is not. `ipaddress.is_global` is no help: it takes thirteen of the twenty-two addresses
that lead home another way (mapped, translated, tunnelled, shared) for public ones.
https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry are the lists.
"""

from collections.abc import Iterable
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_CLOSED_V4 = {
    "0.0.0.0/8": "means this machine",
    "10.0.0.0/8": "is private",
    "100.64.0.0/10": "is shared by a provider's customers",
    "127.0.0.0/8": "is this machine",
    "168.63.129.16/32": "is the host of a virtual machine",  # Azure's
    "169.254.0.0/16": "is link-local, where clouds keep their metadata",
    "172.16.0.0/12": "is private",
    "192.0.0.0/24": "is reserved for protocols",
    "192.0.2.0/24": "is for documentation",
    "192.31.196.0/24": "is reserved for protocols",
    "192.52.193.0/24": "is reserved for protocols",
    "192.88.99.0/24": "leads into IPv6 tunnels",
    "192.168.0.0/16": "is private",
    "192.175.48.0/24": "is reserved for protocols",
    "198.18.0.0/15": "is for benchmarks",
    "198.51.100.0/24": "is for documentation",
    "203.0.113.0/24": "is for documentation",
    "224.0.0.0/4": "is multicast",
    "240.0.0.0/4": "is reserved",
}
_PUBLIC_V6 = "2000::/3"
"""All of IPv6 that was ever given out. Below it and above it: loopback, mapped, translated, private, multicast."""
_CLOSED_V6 = {
    "2001::/23": "is reserved for protocols, tunnels among them",  # Teredo, ORCHID, benchmarks, AMT
    "2001:db8::/32": "is for documentation",
    "2002::/16": "leads to an IPv4 address by a tunnel",
    "2620:4f:8000::/48": "is reserved for protocols",
    "3ffe::/16": "was given back",
    "3fff::/20": "is for documentation",
}
_NAMES_V6 = {
    "::/128": "means this machine",
    "::1/128": "is this machine",
    "::ffff:0:0/96": "is an IPv4 address in disguise",
    "::/96": "is an IPv4 address in disguise",
    "64:ff9b::/96": "is an IPv4 address behind a translator",
    "64:ff9b:1::/48": "is an IPv4 address behind a translator",
    "100::/64": "leads nowhere",
    "fc00::/7": "is private",
    "fe80::/10": "is link-local",
    "fec0::/10": "is private",
    "ff00::/8": "is multicast",
}
"""What people call the rest of IPv6. All of it is closed; these have a name."""


def networks(named: Iterable[str]) -> tuple[Network, ...]:
    """The networks of a list such as `tools.ssrfWhitelist`."""
    return tuple(ip_network(name, strict=False) for name in named)


def why_closed(address: Address) -> str | None:
    """What is against a request to this address, as a part of a sentence; None for a public one."""
    if address.version == 4:
        return next((why for network, why in _table(4) if address in network), None)
    public = address in ip_network(_PUBLIC_V6)
    why = next((why for network, why in _table(6) if address in network), None)
    return why if public else why or "is not public"


def is_within(address: Address, opened: Iterable[Network]) -> bool:
    """Whether one of these networks holds it, as it is written: a mapped address is not what it maps to."""
    return any(address in network for network in opened)


def is_neighbour(address: Address, our_own: str) -> bool:
    """Whether it is our own address, or on the same IPv6 network: homes have public ones behind their router's wall.

    `our_own`: the address from which we would speak to it.
    """
    ours = ip_address(our_own.partition("%")[0])
    if address.version == 6 and ours.version == 6:
        return address in ip_network((ours, 64), strict=False)
    return address == ours


@cache
def _table(version: int) -> list[tuple[Network, str]]:
    closed = _CLOSED_V4 if version == 4 else {**_CLOSED_V6, **_NAMES_V6}
    return [(ip_network(network), why) for network, why in closed.items()]
