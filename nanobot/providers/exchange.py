"""One call to a model's server: sent, watched by the clock, mended where the server asks for it, every failure typed.

What goes into the body and how the answer is read is a wire's own (`completions`, `responses`). What can happen on the
way there and back is here, once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypedDict, cast
from urllib.parse import urlsplit

from nanobot.errors import ProviderError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta
from nanobot.providers.capabilities import CapabilityStore, Learned
from nanobot.providers.encoded_rows import RowsEncoder
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
)
from nanobot.providers.failures import Refusal, error_of, mend_for, read_refusal
from nanobot.providers.limits import CallLimits, Timeouts
from nanobot.providers.sse import EventTooLongError, SseParser
from nanobot.providers.wire import ToolsEncoder
from nanobot.security.secrets import redact, secrets_in
from nanobot.utils.http import HttpPools, load_httpx

if TYPE_CHECKING:
    import httpx

LARGEST_ANSWER = 64 * 1024 * 1024
_MENDS = 6
"""How many fields a server may find fault with before we believe that it is not about fields."""
Mended = Callable[[ProviderError, str, float], None]
"""Told of a request that was refused and is sent again with less: how it failed, its model, the seconds it took."""


class EndpointSettings(TypedDict, total=False):
    """What its owner may say of an endpoint; what is None or left out is as usual."""

    name: str
    config_key: str | None
    extra_headers: Mapping[str, str] | None
    extra_body: Mapping[str, Any] | None
    proxy: str | None
    timeouts: Timeouts | None
    reasoning_effort: str | None
    returns_reasoning: bool | None
    """Whether thinking goes back with tool calls; None decides by the model's name."""
    capabilities: CapabilityStore | None
    pools: HttpPools | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a call goes, and all that is the same for each."""

    name: str
    api_base: str
    api_key: str | None = field(default=None, repr=False)
    config_key: str = ""
    extra_headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    timeouts: Timeouts = field(default_factory=Timeouts)
    reasoning_effort: str | None = None
    returns_reasoning: bool | None = None
    capabilities: CapabilityStore = field(default_factory=CapabilityStore)
    pools: HttpPools = field(default_factory=HttpPools)
    tools: ToolsEncoder = field(default_factory=ToolsEncoder)
    rows: RowsEncoder = field(default_factory=RowsEncoder)

    def with_settings(self, api_base: str | None, settings: EndpointSettings) -> "Endpoint":
        """The same as its owner wants it; `api_base` goes before the usual one. It lends connections of its own."""
        said: dict[str, Any] = {
            name: value for name, value in settings.items() if value is not None and name != "proxy"
        }
        pools = settings.get("pools") or HttpPools(proxy=settings.get("proxy"))
        return replace(self, **{**said, "api_base": (api_base or self.api_base).rstrip("/"), "pools": pools})

    def target(self, model: str) -> CallTarget:
        """Who is asked, for a person to read."""
        return CallTarget(self.name, model, redact(self.api_base, [self.api_key or ""]), self.config_key)

    @property
    def secrets(self) -> list[str]:
        """What must not be told of a request."""
        return secrets_in(self.api_key, self.extra_headers)


class Reader(Protocol):
    """Makes deltas of what a server sends, the last of them Finished. Raises a ModelCallError where it cannot."""

    @property
    def began(self) -> bool:
        """Whether there was a sign of an answer: from then on a shorter limit holds."""
        ...

    @property
    def finished(self) -> bool:
        """Whether all is said, so that a lost connection loses nothing."""
        ...

    @property
    def done(self) -> bool:
        """Whether the server said goodbye: nothing of the answer is still to come."""
        ...

    def event(self, data: bytes) -> list[Delta]:
        """One event of a stream."""
        ...

    def plain(self, body: bytes) -> list[Delta]:
        """A whole answer of a server that did not stream."""
        ...

    def end(self) -> list[Delta]:
        """What is left when nothing more comes; Finished is the last of it."""
        ...


class Call:
    """One call: its request, mended as often as the server asks for it, and its answer. A wire fills in the gaps."""

    path: ClassVar[str]
    """What stands behind the base URL."""

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        mended: Mended | None = None,
    ) -> None:
        """`mended` is told of each request that was refused before the one that counts."""
        self._endpoint = endpoint
        self._mended = mended
        self._messages = messages
        self._tools = tools
        self._model = model
        self._timeouts = endpoint.timeouts
        self._target = endpoint.target(model)
        self._limits = CallLimits(endpoint.timeouts, self._target)

    async def request(self, learned: Learned) -> tuple[bytes, list[str]]:
        """The body, and the names of what may be left out of it."""
        raise NotImplementedError

    def reader(self) -> Reader:
        """What reads the answer."""
        raise NotImplementedError

    async def run(self) -> AsyncIterator[Delta]:
        """Ask, and ask again with less while the server names a field that it does not take."""
        with closing(self._limits):
            for attempt in range(_MENDS + 1):
                learned = self._endpoint.capabilities.get(self._endpoint.api_base, self._model)
                body, sent = await self.request(learned)
                started = time.monotonic()
                try:
                    async with aclosing(cast("Any", self._ask(body))) as deltas:
                        async for delta in deltas:
                            yield delta
                    return
                except _RefusedError as refused:
                    if attempt == _MENDS or not self.mend(refused.refusal, sent):
                        raise refused.error from None
                    if self._mended is not None:
                        self._mended(refused.error, self._model, time.monotonic() - started)

    def mend(self, refusal: Refusal, sent: list[str]) -> bool:
        """Learn from the refusal. False when there is nothing to learn."""
        mend = mend_for(refusal, sent)
        if mend is None:
            return False
        store = self._endpoint.capabilities
        return store.learn(self._endpoint.api_base, self._model, drop=mend.drop, rename=mend.rename, need=mend.need)

    def error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        """A failure of this call. No key is in its text."""
        return kind(redact(detail, self._endpoint.secrets), target=self._target, status=status)

    def error_of(self, refusal: Refusal) -> ModelCallError:
        """The failure that a refusal is."""
        return error_of(refusal, self._target, self._endpoint.secrets)

    async def _ask(self, body: bytes) -> AsyncIterator[Delta]:
        load_httpx()  # not before the first request
        import httpx

        url = f"{self._endpoint.api_base}{self.path}"
        try:
            urlsplit(url)
        except ValueError as error:
            raise self.error(ConnectionFailedError, str(error)) from None
        try:
            async with aclosing(cast("Any", self._exchange(url, body))) as deltas:
                async for delta in deltas:
                    yield delta
        except httpx.ConnectTimeout:
            raise self.error(ConnectionFailedError, f"no connection within {self._timeouts.connect_s:g} s") from None
        except httpx.ConnectError as error:
            raise self.error(ConnectionFailedError, reason_of(error)) from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.ProxyError, ImportError, UnicodeError) as error:
            raise self.error(ConnectionFailedError, reason_of(error)) from None
        except httpx.DecodingError as error:
            raise self.error(MalformedResponseError, reason_of(error)) from None
        except httpx.TransportError as error:  # before the first byte of an answer; later ones are a cut stream
            raise self.error(ConnectionFailedError, reason_of(error)) from None

    async def _exchange(self, url: str, body: bytes) -> AsyncIterator[Delta]:
        import httpx

        timeout = httpx.Timeout(None, connect=self._timeouts.connect_s)
        async with AsyncExitStack() as connection:
            client = await connection.enter_async_context(self._endpoint.pools.lend(url))
            try:
                request = client.build_request("POST", url, content=body, headers=self._headers(), timeout=timeout)
            except (TypeError, ValueError) as error:  # a key or a header with a character that HTTP does not carry
                problem = f"the request cannot be built: {type(error).__name__}"
                raise self.error(ConnectionFailedError, problem) from None
            async with self._limits.next_sign(began=False):
                response = await client.send(request, stream=True)
            connection.push_async_callback(response.aclose)
            if response.status_code != 200:
                raise await self._refused(response)
            async with aclosing(cast("Any", self._deltas(response.aiter_bytes(), connection))) as deltas:
                async for delta in deltas:
                    yield delta

    def _headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "User-Agent": "nanobot",
        }
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        return {**headers, **self._endpoint.extra_headers}

    async def _refused(self, response: "httpx.Response") -> "ModelCallError | _RefusedError":
        body = b""
        try:
            async with asyncio.timeout(self._timeouts.idle_s):
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > 256 * 1024:
                        break
        except Exception:  # noqa: S110 the status is known; what else the server would have said is not worth a failure
            pass
        if 300 <= response.status_code < 400:
            place = response.headers.get("location", "elsewhere")
            return self.error(
                MalformedResponseError, f"a redirect to {place}, not followed with a key", response.status_code
            )
        refusal = read_refusal(response.status_code, body, response.headers)
        return _RefusedError(refusal, self.error_of(refusal))

    async def _deltas(self, source: AsyncIterator[bytes], connection: AsyncExitStack) -> AsyncIterator[Delta]:
        """Read the body as a stream of events, or as one plain answer where the server ignored `stream`."""
        reader = self.reader()
        parser = SseParser()
        plain: list[bytes] | None = None
        opened = False
        size = 0
        async with aclosing(cast("Any", self._chunks(source, reader))) as chunks:
            async for chunk in chunks:
                size += len(chunk)
                if size > LARGEST_ANSWER:
                    raise self.error(MalformedResponseError, f"more than {LARGEST_ANSWER >> 20} MB without an end")
                if not opened:
                    first = chunk.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
                    if not first:
                        continue
                    opened = True
                    plain = [] if first in b"{[<" else None
                if plain is not None:
                    plain.append(chunk)
                    continue
                try:
                    events = parser.feed(chunk)
                except EventTooLongError as error:
                    raise self.error(MalformedResponseError, str(error)) from None
                for data in events:
                    for delta in reader.event(data):
                        yield delta
                if reader.done:
                    await self._endpoint.pools.let_go(source, connection.pop_all())
                    break
        if plain is not None:
            for delta in reader.plain(b"".join(plain)):
                yield delta
        elif not reader.done:
            for data in parser.end():
                for delta in reader.event(data):
                    yield delta
        for delta in reader.end():
            yield delta

    async def _chunks(self, source: AsyncIterator[bytes], reader: Reader) -> AsyncIterator[bytes]:
        import httpx

        while True:
            try:
                async with self._limits.next_sign(began=reader.began):
                    chunk = await anext(source, None)
            except (httpx.ReadError, httpx.RemoteProtocolError) as error:
                if reader.finished:  # all is said; only the good-bye is missing
                    return
                raise self.error(StreamCutError, reason_of(error)) from None
            if chunk is None:
                return
            yield chunk


class _RefusedError(Exception):
    """A status other than 200: what was said, and the error it becomes if nothing can be mended."""

    def __init__(self, refusal: Refusal, error: ModelCallError) -> None:
        super().__init__(str(error))
        self.refusal = refusal
        self.error = error


def reason_of(error: BaseException) -> str:
    """Why a connection failed: the words of the system, which the library keeps two causes down."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 6:
        causes.append(cause)
    said = next((str(cause) for cause in reversed(causes) if isinstance(cause, OSError) and str(cause)), "")
    return said or str(error) or type(error).__name__
