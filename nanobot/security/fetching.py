"""One request to the web and its whole answer, within bounds: addresses, redirects, size, time.

Whatever a server does (leads on for ever, never ends, packs a gigabyte into a kilobyte, sends a byte a second), this
ends, with what came or with a word.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from nanobot.errors import NanobotError
from nanobot.security.network import Gate
from nanobot.security.urls import WebUrl, joined, parse_url
from nanobot.utils.clients import load_httpx, reason_of
from nanobot.utils.unpacking import ACCEPTED, PackingError, Unpacker

if TYPE_CHECKING:
    import httpx

    from nanobot.security.checked import MakeTransport

_LEADS_ON = frozenset({301, 302, 303, 307, 308})
_USER_AGENT = "Mozilla/5.0 (compatible; nanobot)"

FindSecret = Callable[[str], str | None]
"""The name of a secret of ours that stands in this text, in whatever spelling; None where there is none."""


class FetchError(NanobotError):
    """There is no answer. The text is for the model: why, and what to do."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """How much is taken, in which time."""

    bytes: int = 5 * 1024 * 1024
    """Of the body, unpacked or as it came, whichever is more."""
    total_s: float = 30.0
    connect_s: float = 8.0
    """For one address; the next is tried then."""
    redirects: int = 5


@dataclass(frozen=True, slots=True)
class Asked:
    """What to ask for. `headers` and `body` go to this host alone, wherever it leads on to."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """With one it is a POST, which is led on to nowhere."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `cut`: there was more of the body."""

    url: WebUrl
    """Where it came from, after all redirects."""
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes
    cut: bool = False

    @property
    def content_type(self) -> str:
        """What the body is, in lower case and without its parameters."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class Fetcher:
    """Asks the web for the agent. Keeps nothing between two requests: no cookies, no connections."""

    def __init__(
        self,
        gate: Gate,
        *,
        limits: FetchLimits | None = None,
        find_secret: FindSecret = lambda text: None,
        make_transport: "MakeTransport | None" = None,
    ) -> None:
        """`find_secret` is asked about all that would be sent, but for the headers a caller gives."""
        self.limits = limits or FetchLimits()
        self._gate = gate
        self._find_secret = find_secret
        self._make_transport = make_transport

    async def fetch(self, asked: Asked) -> Answer:
        """The answer, whatever its status. Raises FetchError, and what the gate raises. Cancelling is safe."""
        load_httpx()
        import httpx

        from nanobot.security.checked import CheckedTransport

        url = parse_url(asked.url)
        try:
            async with (
                asyncio.timeout(self.limits.total_s),
                CheckedTransport(self._gate, self._make_transport) as transport,  # no client: it would read redirects
            ):
                return await self._followed(transport, url, asked)
        except TimeoutError:
            raise FetchError(
                f"{url.host} did not send all of it within {self.limits.total_s:g} s. Try again later, or another page."
            ) from None
        except PackingError as error:
            raise FetchError(f"{url.host} cannot be read: {error}.") from None
        except (httpx.ConnectTimeout, httpx.PoolTimeout):
            raise FetchError(f"{url.host} does not answer. Check the address, or try again later.") from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            raise FetchError(f"{url.host} gave no answer: {reason_of(error)}.") from None

    async def _followed(self, transport: "httpx.AsyncBaseTransport", url: WebUrl, asked: Asked) -> Answer:
        first = url.origin
        for _ in range(self.limits.redirects + 1):
            at_home = url.origin == first
            answer = await self._asked(transport, url, asked if at_home else Asked(str(url)))
            location = answer.headers.get("location")
            if answer.status not in _LEADS_ON or not location:
                return answer
            if asked.body is not None:
                raise FetchError(f"{url.host} leads on to {location[:200]}, where what is sent does not go.")
            url = joined(url, location)
        raise FetchError(f"{asked.url[:200]} leads on more than {self.limits.redirects} times. Fetch another page.")

    async def _asked(self, transport: "httpx.AsyncBaseTransport", url: WebUrl, asked: Asked) -> Answer:
        self._check_secrets(url, asked.body)
        import httpx

        request = httpx.Request(
            "GET" if asked.body is None else "POST",
            str(url),
            headers={
                "Host": url.authority,  # else httpx decodes the name for it, and stumbles over what DNS does not mind
                "User-Agent": _USER_AGENT,
                "Accept": "*/*",
                "Accept-Encoding": ACCEPTED,
                **asked.headers,
            },
            content=asked.body,
            extensions={"timeout": {"connect": self.limits.connect_s}},
        )
        response = await transport.handle_async_request(request)
        try:
            if response.status_code in _LEADS_ON and "location" in response.headers:
                return Answer(url, response.status_code, dict(response.headers), b"")
            body, cut = await self._body(response)
            return Answer(url, response.status_code, dict(response.headers), body, cut)
        finally:
            await response.aclose()

    async def _body(self, response: "httpx.Response") -> tuple[bytes, bool]:
        """The body and whether there was more of it."""
        unpacker, body, came = Unpacker(response.headers.get("content-encoding", "")), bytearray(), 0
        async for data in response.aiter_raw():
            came += len(data)
            for piece in unpacker.pieces(data):
                body += piece
                if len(body) > self.limits.bytes:
                    return bytes(body[: self.limits.bytes]), True
            if came > self.limits.bytes:
                return bytes(body), True
        return bytes(body), False

    def _check_secrets(self, url: WebUrl, body: bytes | None) -> None:
        found = self._find_secret(str(url)) or (body and self._find_secret(body.decode("utf-8", "replace")))
        if found:
            raise FetchError(f"This request holds the secret {found}, and secrets go to no host but their own.")
