"""Requests to the REST API of a platform: JSON with an access token, our errors for its refusals, files.

Nothing is sent twice here, except with a new token for one that is no longer valid: the manager retries messages.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from nanobot.channels.errors import ErrorCode, ErrorCodes, NotConnectedError, RateLimitedError, SendError
from nanobot.channels.incoming import Payload
from nanobot.channels.media import MediaError
from nanobot.net.http import connection_error_reason, load_httpx, new_client, proxy_for, ssl_context

load_httpx()  # without its command line
import httpx  # noqa: E402 behind load_httpx

_TIMEOUT = httpx.Timeout(100, connect=10)  # an upload may take long
NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""With other errors of the connection the request may have arrived."""
_PAUSES = ("retry-after", "x-ogw-ratelimit-reset")
_LONGEST_TEXT = 300

logging.getLogger("httpx").setLevel(logging.WARNING)  # it would log URLs, which may have a token


@dataclass(frozen=True, slots=True)
class Answer:
    code: ErrorCode
    """The platform's error code, or the HTTP status of a failure without one; 0 for success."""
    text: str
    body: Payload
    status: int
    """Of HTTP."""
    headers: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.text}, {self.code}"


class NoAnswerError(SendError):
    """A request was sent, and no answer came in time."""


class RestClient(ABC):
    """The requests of one bot. All raise SendError, and ChannelSetupError for refused credentials; safe to cancel."""

    codes: ClassVar[ErrorCodes]
    code_keys: ClassVar[tuple[str, ...]] = ("code",)
    """Where an answer has the error code."""
    token_ended: ClassVar[Collection[ErrorCode]] = ()
    """Error codes of a token that is no longer valid, besides the status 401."""
    token_header: ClassVar[tuple[str, str]] = ("Authorization", "Bearer ")
    """The header with the token, and what stands before it."""
    token_margin_s: ClassVar[float] = 300.0
    """How long before its end a token is replaced."""

    def __init__(self, base: str) -> None:
        self.base = base.rstrip("/")
        self._clients: dict[tuple[str, str | None], list[httpx.AsyncClient]] = {}
        """Idle ones by scheme and proxy. Each call has its own: one with many connections is slow."""
        self._users = 0
        """How many blocks and requests need the connections."""
        self._token, self._token_until = "", 0.0

    async def __aenter__(self) -> Self:
        self._users += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all connections once nobody needs them: a message may be sent while the channel stops."""
        self._users -= 1
        if not self._users:
            clients, self._clients = self._clients, {}
            for client in [client for idle in clients.values() for client in idle]:
                await client.aclose()

    @abstractmethod
    async def fetch_token(self) -> tuple[str, float]:
        """A new access token, and how long it is valid, in seconds. Raises ChannelSetupError if there is none."""

    def authorize(self, token: str) -> dict[str, str]:
        name, prefix = self.token_header
        return {name: f"{prefix}{token}"}

    def is_limited(self, code: ErrorCode) -> bool:
        """Whether there were too many requests."""
        return code in self.codes.limited

    def error_of(self, answer: Answer) -> Exception:
        return self.codes.error(answer.code, answer.text)

    async def token(self) -> str:
        if not self._token or time.monotonic() >= self._token_until:
            token, lasts_s = await self.fetch_token()
            self._token, self._token_until = token, time.monotonic() + lasts_s - self.token_margin_s
        return self._token

    async def call(self, method: str, path: str, **request: Any) -> Payload:
        """Send a request with the token, and return the body of the answer. `request`: as httpx takes it."""
        answer = await self.request(method, path, **request)
        if answer.code:
            raise self.error_of(answer)
        return answer.body

    async def request(self, method: str, path: str, **request: Any) -> Answer:
        """Send a request with the token. Raises SendError only if it is to be tried later."""
        answer = await self.exchange(method, path, headers=self.authorize(await self.token()), **request)
        if answer.status == httpx.codes.UNAUTHORIZED or answer.code in self.token_ended:
            self._token = ""
            answer = await self.exchange(method, path, headers=self.authorize(await self.token()), **request)
        return answer

    async def exchange(self, method: str, path: str, **request: Any) -> Answer:
        """Send a request to this path, or URL, without the token, like `request`."""
        url = path if path.startswith(("http://", "https://")) else f"{self.base}{path}"
        with as_send_errors(self.codes.platform):
            async with self:
                proxy = proxy_for(url)
                idle = self._clients.setdefault((url.partition(":")[0], proxy), [])
                client = idle.pop() if idle else new_client(await ssl_context(url), proxy)
                try:
                    response = await client.request(method, url, **{"timeout": _TIMEOUT, **request})
                finally:
                    idle.append(client)
        answer = self._read(response)
        if answer.status == httpx.codes.TOO_MANY_REQUESTS or self.is_limited(answer.code):
            pause = next((response.headers[name] for name in _PAUSES if name in response.headers), "")
            pause_s = float(pause) if pause.replace(".", "", 1).isdecimal() else self.codes.pause_s
            raise RateLimitedError(f"{self.codes.platform}: {answer.text} ({answer.code})", pause_s)
        if answer.status >= httpx.codes.INTERNAL_SERVER_ERROR or answer.code in self.codes.temporary:
            raise SendError(f"{self.codes.platform}: {answer.text} ({answer.code})")
        return answer

    def _read(self, response: httpx.Response) -> Answer:
        body, status = Payload.parse(response.content), response.status_code
        code = next((body[key] for key in self.code_keys if body.get(key)), 0)
        code = int(code) if isinstance(code, str) and code.isdecimal() else code
        is_json = response.content.startswith(b"{") or status == httpx.codes.NO_CONTENT
        if not isinstance(code, int | str) or (not code and (response.is_error or not is_json)):
            code = status  # without JSON, that of a server before the platform
        text = body.line("msg") or body.line("message") or body.line("errmsg") or f"HTTP {status}"
        return Answer(0 if code in self.codes.accepted else code, text[:_LONGEST_TEXT], body, status, response.headers)


@contextmanager
def as_send_errors(platform: str, *, may_have_arrived: bool = True) -> Iterator[None]:
    """Convert the errors of httpx. `may_have_arrived`: whether a request without an answer may have had an effect."""
    try:
        yield
    except NOT_SENT as error:
        raise NotConnectedError(f"{platform} cannot be reached: {connection_error_reason(error)}") from None
    except httpx.ReadTimeout:
        raise NoAnswerError(f"{platform} did not answer in time", may_have_arrived=may_have_arrived) from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        text = f"connection to {platform} lost: {type(error).__name__}"
        raise SendError(text, may_have_arrived=may_have_arrived) from None


async def download(
    platform: str, url: str, headers: Mapping[str, str] | None = None, proxy: str | None = None
) -> AsyncIterator[bytes]:
    """Yield a file in chunks. Follows no redirects. Raises MediaError, SendError."""
    async with open_download(platform, url, headers, proxy) as response:
        if response.status_code != httpx.codes.OK:
            raise MediaError(f"{platform} answered {response.status_code}")
        async for chunk in response.aiter_bytes():
            yield chunk


@asynccontextmanager
async def open_download(
    platform: str, url: str, headers: Mapping[str, str] | None = None, proxy: str | None = None
) -> AsyncIterator[httpx.Response]:
    """The answer to a GET request, before its body. Follows no redirects. Raises SendError."""
    with as_send_errors(platform):
        async with (
            new_client(await ssl_context(url), proxy_for(url, proxy)) as client,
            client.stream("GET", url, headers=headers, timeout=_TIMEOUT) as response,
        ):
            yield response
