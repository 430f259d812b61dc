"""Classifies IP addresses: only those of the public internet are open to requests of the agent.

Everything not known to be public is closed. `ipaddress.is_global` is not sufficient: it accepts thirteen of the
twenty-two addresses that reach private networks in other ways (mapped, translated, tunnelled, shared). The lists are
https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry.
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
"""All of IPv6 that has been allocated. The rest is loopback, mapped, translated, private or multicast."""
_CLOSED_V6 = {
    "2001::/23": "is reserved for protocols, tunnels among them",  # Teredo, ORCHID, benchmarks, AMT
    "2001:db8::/32": "is for documentation",
    "2002::/16": "leads to an IPv4 address by a tunnel",
    "2620:4f:8000::/48": "is reserved for protocols",
    "3ffe::/16": "was given back",
    "3fff::/20": "is for documentation",
}


def parse_networks(names: Iterable[str]) -> tuple[Network, ...]:
    """Parse a list of networks such as `tools.ssrfWhitelist`."""
    return tuple(ip_network(name, strict=False) for name in names)


def blocked_reason(address: Address) -> str | None:
    """Why a request to this address is not allowed, as part of a sentence; None for a public address."""
    if address.version == 6 and address not in ip_network(_PUBLIC_V6):
        return "is this machine" if address.is_loopback else "is not public"
    return next((reason for network, reason in _closed(address.version) if address in network), None)


def is_within(address: Address, allowed: Iterable[Network]) -> bool:
    """Whether one of these networks contains the address as written: a mapped address is not what it maps to."""
    return any(address in network for network in allowed)


def is_own_network(address: Address, local_address: str) -> bool:
    """Whether it is our own address or in our IPv6 network: home devices have public addresses behind their router.

    `local_address` is the local address used to reach it.
    """
    ours = ip_address(local_address.partition("%")[0])
    if address.version == 6 and ours.version == 6:
        return address in ip_network((ours, 64), strict=False)
    return address == ours


@cache
def _closed(version: int) -> list[tuple[Network, str]]:
    return [(ip_network(network), reason) for network, reason in (_CLOSED_V4 if version == 4 else _CLOSED_V6).items()]
