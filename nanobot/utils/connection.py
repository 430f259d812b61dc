"""What a connection to a server is: a place, a request there, its answer as it comes, and how it fails.

There are two kinds: `direct_connection`, and `proxied_connection` where a proxy is on the way. `http` lends them.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

KEEP_ALIVE_S = 55.0
"""How long an idle one is worth keeping: shorter than the minute after which most servers hang up."""
_PORTS = {"http": 80, "https": 443}
_IN_A_TARGET = "/%?:@!$&'()*+,;=~"


class HttpError(Exception):
    """There is no answer, or no more of it; the words of the system on why."""


class BodyError(HttpError):
    """The body is not what the head of the answer says."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where requests go: what a URL says, read once."""

    url: str = field(repr=False)
    secure: bool
    host: str
    port: int
    authority: str
    """Host and port as a request names them."""
    target: str
    """What is asked for there."""
    authorization: str | None = field(default=None, repr=False)
    """Where a name and a password stand in the URL."""


@lru_cache(maxsize=64)
def place_of(url: str) -> Place:
    """The place of a URL. Raises ValueError where it is none."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("the address of a server begins with http:// or https:// and names a host")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    port = parts.port or _PORTS[parts.scheme]
    named = f"[{host}]" if ":" in host else host
    return Place(
        url,
        secure=parts.scheme == "https",
        host=host,
        port=port,
        authority=named if port == _PORTS[parts.scheme] else f"{named}:{port}",
        target=quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_IN_A_TARGET),
        authorization=_basic(parts.username or "", parts.password or "") if "@" in parts.netloc else None,
    )


def is_address(host: str) -> bool:
    """Whether it is an address already, and no name to look up."""
    return ":" in host or host.replace(".", "").isdigit()


def _basic(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{unquote(name)}:{unquote(password)}'.encode()).decode()}"


class Connection(Protocol):
    """A way to a server and back, for one request at a time. Cancelling is safe; what is left can only be closed."""

    place: Place
    status: int
    headers: Mapping[str, str]
    """Of the answer; names in lower case."""

    @property
    def usable(self) -> bool:
        """Whether a request may go out: the last answer is read to its end, and nobody has hung up."""
        ...

    async def post(self, headers: Mapping[str, str], body: bytes) -> None:
        """Send a request; returns when the head of its answer is there. Raises HttpError."""
        ...

    async def read(self) -> bytes:
        """What has come of the body, as soon as there is any; b"" at its end. Raises HttpError."""
        ...

    async def aclose(self) -> None:
        """Hang up, whatever is under way. Never raises."""
        ...
