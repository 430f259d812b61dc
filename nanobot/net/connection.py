"""The interface of a connection to a server: address, request, streamed response, errors.

Two implementations: `direct_connection`, and `proxied_connection` for a proxy. `http` pools them.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol
from urllib.parse import quote, unquote, urlsplit

KEEP_ALIVE_S = 55.0
"""How long to keep an idle connection: most servers close theirs after a minute."""
_PORTS = {"http": 80, "https": 443}
_TARGET_SAFE = "/%?:@!$&'()*+,;=~"


class HttpError(Exception):
    """No response, or no more of it. The text is the system's reason."""


class BodyError(HttpError):
    """The body does not match the response's headers."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """The parts of a URL that a request needs."""

    url: str = field(repr=False)
    secure: bool
    host: str
    port: int
    authority: str
    """Host and port for the Host header."""
    target: str
    """Path and query."""
    authorization: str | None = field(default=None, repr=False)
    """Set if the URL contains user name and password."""


@lru_cache(maxsize=64)
def parse_server_address(url: str) -> ServerAddress:
    """Parse a URL. Raises ValueError if it is not the URL of a server."""
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ValueError("a server's address must begin with http:// or https:// and name a host")
    host = parts.hostname if parts.hostname.isascii() else parts.hostname.encode("idna").decode()
    port = parts.port or _PORTS[parts.scheme]
    bracketed_host = f"[{host}]" if ":" in host else host
    return ServerAddress(
        url,
        secure=parts.scheme == "https",
        host=host,
        port=port,
        authority=bracketed_host if port == _PORTS[parts.scheme] else f"{bracketed_host}:{port}",
        target=quote((parts.path or "/") + (f"?{parts.query}" if parts.query else ""), safe=_TARGET_SAFE),
        authorization=_basic_auth(parts.username or "", parts.password or "") if "@" in parts.netloc else None,
    )


def is_address(host: str) -> bool:
    """Whether it is an IP address, not a name to look up."""
    return ":" in host or host.replace(".", "").isdigit()


def _basic_auth(name: str, password: str) -> str:
    return f"Basic {b64encode(f'{unquote(name)}:{unquote(password)}'.encode()).decode()}"


class Connection(Protocol):
    """A connection for one request at a time. Cancelling is safe; a cancelled connection can only be closed."""

    address: ServerAddress
    status: int
    headers: Mapping[str, str]
    """Response headers; names in lower case."""

    @property
    def usable(self) -> bool:
        """Whether a request may be sent: the last response is read to its end and the server has not closed."""
        ...

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request and wait for the response head. Raises HttpError."""
        ...

    async def read(self) -> bytes:
        """The next bytes of the body as soon as there are any; b"" at its end. Raises HttpError."""
        ...

    async def aclose(self) -> None:
        """Close the connection, even with a request in flight. Never raises."""
        ...
