"""One web request and its response, with limits on addresses, redirects, size and time.

Endless redirects, endless bodies, compression bombs and trickling servers all end with a partial response or an error.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanobot.errors import NanobotError
from nanobot.net.egress import EgressGate, NetworkDeniedError
from nanobot.net.http import ACCEPT_ENCODING, BodyError, Decoder, HttpError, ssl_context
from nanobot.net.urls import WebUrl, join_url, parse_url

if TYPE_CHECKING:
    from nanobot.net.connection import Connection

_REDIRECT_STATUSES = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "Mozilla/5.0 (compatible; nanobot)"

FindSecret = Callable[[str], str | None]
"""Return the name of one of our secrets contained in this text, in any encoding; None if there is none."""


Connect = Callable[[WebUrl, float, str | None, str | None], Awaitable["Connection"]]
"""Connect to a server within a number of seconds: through this proxy, or at this address. Raises HttpError, and
ValueError if the proxy is none.
"""


async def _connect(server: WebUrl, limit_s: float, proxy: str | None, address: str | None) -> "Connection":
    from nanobot.net.connection import Connection  # brings h11

    if proxy is None and address is None:  # the host would be resolved again
        raise HttpError("no address is approved")
    return await Connection.open(server, await ssl_context(server.origin), limit_s, proxy, address)


class FetchError(NanobotError):
    """No response. The text is for the model: why, and what to do."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of a request."""

    bytes: int = 5 * 1024 * 1024
    """Of the body, compressed or decompressed, whichever is larger."""
    total_s: float = 30.0
    connect_s: float = 8.0
    """Per address."""
    redirects: int = 5


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """A request. `headers` and `body` are sent to this origin only, not to redirect targets elsewhere."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """With a body it is a POST, which follows no redirects."""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """The response. `cut`: the body was truncated."""

    url: WebUrl
    """After all redirects."""
    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False

    @property
    def content_type(self) -> str:
        """The media type in lower case, without parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Fetcher:
    """Fetches web pages for the agent. Keeps no cookies and no connections between requests."""

    def __init__(
        self,
        gate: EgressGate,
        *,
        limits: FetchLimits | None = None,
        find_secret: FindSecret = lambda text: None,
        connect: Connect | None = None,
    ) -> None:
        """`find_secret` checks everything to be sent, except for the headers that the caller passes."""
        self.limits = limits or FetchLimits()
        self._gate = gate
        self._find_secret = find_secret
        self._connect = connect or _connect

    async def fetch(self, request: FetchRequest) -> FetchResult:
        """The response, whatever its status. Raises FetchError, and what the gate raises. Cancelling is safe."""
        url = parse_url(request.url)
        try:
            async with asyncio.timeout(self.limits.total_s):
                return await self._follow_redirects(url, request)
        except TimeoutError:
            raise FetchError(
                f"{url.host} did not finish within {self.limits.total_s:g} s. Try again later, or try another page."
            ) from None
        except BodyError as error:
            raise FetchError(f"{url.host} cannot be read: {error}.") from None
        except HttpError as error:
            raise FetchError(
                f"The request to {url.host} failed: {error}. Check the address, or try again later."
            ) from None

    async def _follow_redirects(self, url: WebUrl, request: FetchRequest) -> FetchResult:
        first = url.origin
        for _ in range(self.limits.redirects + 1):
            same_origin = url.origin == first
            result = await self._send(url, request if same_origin else FetchRequest(str(url)))
            location = result.headers.get("location")
            if result.status not in _REDIRECT_STATUSES or not location:
                return result
            if request.body is not None:
                raise FetchError(f"{url.host} redirects a POST to {location[:200]}, which is not followed.")
            url = join_url(url, location)
        raise FetchError(f"{request.url[:200]} redirects more than {self.limits.redirects} times. Fetch another page.")

    async def _send(self, url: WebUrl, request: FetchRequest) -> FetchResult:
        body = request.body or b""
        if name := self._find_secret(str(url)) or (body and self._find_secret(body.decode("utf-8", "replace"))):
            raise FetchError(f"This request contains the secret {name}. Secrets are sent to their own host only.")
        headers = {
            "User-Agent": _USER_AGENT,
            "Accept": "*/*",
            "Accept-Encoding": ACCEPT_ENCODING,
            "Connection": "close",
            **request.headers,
        }
        connection = await self._open(url)
        try:
            await connection.request("GET" if request.body is None else "POST", headers, body)
            body, cut = b"", False
            if connection.status not in _REDIRECT_STATUSES or "location" not in connection.headers:
                body, cut = await self._read_body(connection)
            return FetchResult(url, connection.status, connection.headers, body, cut)
        finally:
            await connection.aclose()

    async def _open(self, url: WebUrl) -> "Connection":
        """Connect to the first address that responds of those that the gate approves, under the URL's host name."""
        route = await self._gate.route(str(url))
        if not route.addresses:
            try:
                return await self._connect(route.url, self.limits.connect_s, self._gate.policy.proxy, None)
            except ValueError as error:
                raise NetworkDeniedError(f"tools.web.proxy names a proxy that cannot be used: {error}.") from None
        *rest, last = route.addresses
        for address in rest:
            try:
                return await self._connect(route.url, self.limits.connect_s, None, address)
            except HttpError:
                continue
        return await self._connect(route.url, self.limits.connect_s, None, last)

    async def _read_body(self, connection: "Connection") -> tuple[bytes, bool]:
        """The body, and whether it was truncated."""
        decoder, body, received = Decoder(connection.headers.get("content-encoding", "")), bytearray(), 0
        while data := await connection.receive():
            received += len(data)
            for chunk in decoder.chunks(data):
                body += chunk
                if len(body) > self.limits.bytes:
                    return bytes(body[: self.limits.bytes]), True
            if received > self.limits.bytes:
                return bytes(body), True
        return bytes(body), False
