"""One HTTP call to a model server: request, time limits, automatic fix-ups of the request, typed errors.

Shared by both wires; `chat` and `responses` add the body and the reader.
"""

import asyncio
import json
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from nanobot.errors import ProviderError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.net.http import BodyError, HttpError, parse_server_address
from nanobot.net.pools import HttpPools
from nanobot.providers.base import Delta
from nanobot.providers.capabilities import CapabilityStore, EndpointCapabilities
from nanobot.providers.error_patterns import (
    ErrorResponse,
    error_of,
    error_response_of,
    fixup_for,
    parse_error_response,
)
from nanobot.providers.errors import (
    CallTarget,
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
    TryElsewhere,
)
from nanobot.providers.limits import CallLimits, Timeouts
from nanobot.providers.wire.chat_request import ToolsEncoder
from nanobot.providers.wire.encoded_rows import RowsEncoder
from nanobot.providers.wire.responses_request import UndecryptableReasoning, flat_tool
from nanobot.providers.wire.sse import EventTooLongError, SseParser
from nanobot.providers.wire.tool_text import TextToolDeltas
from nanobot.security.secrets import redact, request_secrets

if TYPE_CHECKING:
    from nanobot.net.connection import Connection

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_MAX_ERROR_BYTES = 256 * 1024
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "nanobot",
}
_MAX_FIXUPS = 6
"""After this many fix-ups the error is final."""
FixupCallback = Callable[[ProviderError, str, float], None]
"""Called with error, model and seconds when a request was rejected and is sent again after a fix-up."""


class EndpointSettings(TypedDict, total=False):
    """Optional settings of an endpoint; None or a missing key means the default."""

    name: str
    config_key: str | None
    extra_headers: Mapping[str, str] | None
    extra_body: Mapping[str, Any] | None
    proxy: str | None
    timeouts: Timeouts | None
    reasoning_effort: str | None
    returns_reasoning: bool | None
    """Whether reasoning is sent back with tool calls; None decides by the model's name."""
    capabilities: CapabilityStore | None
    pools: HttpPools | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Address, credentials, and everything that all calls to it share."""

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
    flat_tools: ToolsEncoder = field(default_factory=lambda: ToolsEncoder(flat_tool))
    rows: RowsEncoder = field(default_factory=RowsEncoder)
    undecryptable: UndecryptableReasoning = field(default_factory=UndecryptableReasoning)

    def with_settings(self, api_base: str | None, settings: EndpointSettings) -> "Endpoint":
        """A copy with the owner's settings and its own connection pools; `api_base` overrides the default."""
        fields: dict[str, Any] = {
            name: value for name, value in settings.items() if value is not None and name != "proxy"
        }
        pools = settings.get("pools") or HttpPools(proxy=settings.get("proxy"))
        return replace(self, **{**fields, "api_base": (api_base or self.api_base).rstrip("/"), "pools": pools})

    def target(self, model: str) -> CallTarget:
        return CallTarget(self.name, model, redact(self.api_base, [self.api_key or ""]), self.config_key)

    def headers(self) -> dict[str, str]:
        """The key and the owner's headers."""
        key = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return {**key, **self.extra_headers}

    @property
    def secrets(self) -> list[str]:
        """What must be redacted in every text about a request."""
        return request_secrets(self.api_key, self.extra_headers)


class Reader(ABC):
    """Turns a server's data into deltas, the last of which is Finished. Raises a ModelCallError for invalid data."""

    content_key: ClassVar[str]
    """Where a whole response has its content."""

    def __init__(self, call: "WireCall") -> None:
        self._call = call
        self.done = False
        """Whether the server sent its end marker."""

    @property
    @abstractmethod
    def began(self) -> bool:
        """Whether the answer has begun; from then on the idle limit applies."""

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the answer is complete, so that a lost connection loses nothing."""

    @abstractmethod
    def read_event(self, event: dict[str, Any]) -> list[Delta]:
        """The deltas of one event."""

    @abstractmethod
    def read_response(self, response: dict[str, Any]) -> list[Delta]:
        """The deltas of the whole response of a server that did not stream."""

    @abstractmethod
    def end(self) -> list[Delta]:
        """The remaining deltas at the end of the data; Finished is the last. Raises if the answer may not end here."""

    def is_error(self, data: dict[str, Any]) -> bool:
        """Whether this is an error instead of content."""
        return bool(data.get("error"))

    def event(self, data: bytes) -> list[Delta]:
        """One event as sent. Invalid JSON is skipped: what is missing shows at the end."""
        if data.strip() == b"[DONE]":
            self.done = True
            return []
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return []
        return self.read_event(event) if isinstance(event, dict) else []

    def plain(self, body: bytes) -> list[Delta]:
        """The whole body of a server that did not stream."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._call.error(StreamCutError, "the answer is incomplete") from None
            excerpt = parse_error_response(200, body).message
            raise self._call.error(MalformedResponseError, f"not JSON: {excerpt}") from None
        if isinstance(data, dict) and self.is_error(data):
            raise self.failure(data)  # an error with status 200
        if not isinstance(data, dict) or not isinstance(data.get(self.content_key), list):
            detail = f"no {self.content_key} in the response: {json.dumps(data)[:200]}"
            raise self._call.error(MalformedResponseError, detail)
        return self.read_response(data)

    def failure(self, data: dict[str, Any]) -> ModelCallError:
        """The error that arrived instead of content. In the middle of an answer, a transient one is a cut stream."""
        error = self._call.error_of(error_response_of(data))
        if self.began and error.try_elsewhere is TryElsewhere.OTHER_MODEL:
            return self._call.error(StreamCutError, error.detail)
        return error


class WireCall(ABC):
    """One call. Subclasses provide the request and the reader."""

    path: ClassVar[str]
    """Appended to the base URL."""

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int | None = None,
        temperature: float | None = None,
        on_fixup: FixupCallback | None = None,
    ) -> None:
        """None leaves length and temperature to the server. `on_fixup` is called for each request that was rejected
        and corrected.
        """
        self._endpoint = endpoint
        self._on_fixup = on_fixup
        self._messages = messages
        self._tools = tools
        self._model = model
        self._max_tokens = max_tokens
        self._temperature = temperature
        self._target = endpoint.target(model)

    @abstractmethod
    async def request(self, capabilities: EndpointCapabilities) -> tuple[bytes, list[str]]:
        """The body, and the names of the fields that may be dropped from it."""

    @abstractmethod
    def reader(self) -> Reader:
        """The reader of the response."""

    async def run(self) -> AsyncGenerator[Delta, None]:
        """Send the request and yield deltas as they arrive. Closing the generator closes the connection."""
        with closing(CallLimits(self._endpoint.timeouts, self._target)) as limits:
            connection = await self._open(limits)
            body, texts = _Body(self), TextToolDeltas(self._tools)
            try:
                while not body.complete:
                    chunk = await self._next_chunk(connection, body, limits)
                    for delta in texts.filter(body.feed(chunk)):
                        yield delta
                for delta in texts.filter(body.end()):
                    yield delta
            finally:
                await self._endpoint.pools.release(connection, is_complete=body.complete)

    async def _open(self, limits: CallLimits) -> "Connection":
        """Send the request until the server accepts it, each time without a field that it rejected."""
        endpoint = self._endpoint
        for attempt in range(_MAX_FIXUPS + 1):
            body, droppable = await self.request(endpoint.capabilities.get(endpoint.api_base, self._model))
            started = time.monotonic()
            connection = await self._send(body, limits)
            if connection.status == 200:
                break
            try:
                response = await self._error_response(connection)
            finally:
                await endpoint.pools.release(connection)
            error = self.error_of(response)
            if attempt == _MAX_FIXUPS or not self.apply_fixup(response, droppable):
                raise error
            if self._on_fixup is not None:
                self._on_fixup(error, self._model, time.monotonic() - started)
        return connection

    def apply_fixup(self, response: ErrorResponse, droppable: list[str]) -> bool:
        """Learn from the error response. Return False if there is nothing to learn."""
        fixup = fixup_for(response, droppable)
        if fixup is None:
            return False
        store = self._endpoint.capabilities
        return store.learn(self._endpoint.api_base, self._model, drop=fixup.drop, rename=fixup.rename, need=fixup.need)

    def error(self, kind: type[ModelCallError], detail: str, status: int | None = None) -> ModelCallError:
        """A typed error of this call, with secrets redacted."""
        return kind(redact(detail, self._endpoint.secrets), target=self._target, status=status)

    def error_of(self, response: ErrorResponse) -> ModelCallError:
        return error_of(response, self._target, self._endpoint.secrets)

    async def _send(self, body: bytes, limits: CallLimits) -> "Connection":
        """Send the request and return the connection once the response head has arrived."""
        pools = self._endpoint.pools
        try:
            address = parse_server_address(f"{self._endpoint.api_base}{self.path}")
            with limits.wait(began=False):
                connection = await pools.connect(address, self._endpoint.timeouts.connect_s)
                try:
                    await connection.request("POST", {**_HEADERS, **self._endpoint.headers()}, body)
                except BaseException:
                    await pools.release(connection)
                    raise
        except (HttpError, ValueError) as error:  # no connection, or an invalid address
            raise self.error(ConnectionFailedError, str(error)) from None
        return connection

    async def _error_response(self, connection: "Connection") -> ErrorResponse:
        """The body of a status other than 200, parsed."""
        status, headers, body = connection.status, connection.headers, b""
        try:
            async with asyncio.timeout(self._endpoint.timeouts.idle_s):
                while len(body) <= _MAX_ERROR_BYTES and (chunk := await connection.read()):
                    body += chunk
        except (HttpError, TimeoutError):
            pass  # the status is known, which is enough
        if 300 <= status < 400:
            detail = f"a redirect to {headers.get('location', 'elsewhere')}, not followed with a key"
            raise self.error(MalformedResponseError, detail, status)
        return parse_error_response(status, body, headers)

    async def _next_chunk(self, connection: "Connection", body: "_Body", limits: CallLimits) -> bytes:
        try:
            with limits.wait(began=body.reader.began):
                return await connection.read()
        except BodyError as error:
            raise self.error(MalformedResponseError, str(error)) from None
        except HttpError as error:
            if body.reader.finished:  # the answer is complete; only the end marker is missing
                return b""
            raise self.error(StreamCutError, str(error)) from None


class _Body:
    """Reads the body as a stream of events, or as one plain object if the server ignored `stream`."""

    def __init__(self, call: WireCall) -> None:
        self.reader = call.reader()
        self.complete = False
        self._call = call
        self._parser = SseParser()
        self._plain: list[bytes] | None = None
        self._started = False
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas of the next chunk; an empty chunk is the end."""
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise self._call.error(MalformedResponseError, f"more than {MAX_RESPONSE_BYTES >> 20} MB without an end")
        if not self._started:
            first = chunk.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
            self._started = bool(first)
            self._plain = [] if first and first in b"{[<" else None
        if self._plain is not None:
            self._plain.append(chunk)
        elif self._started:
            yield from self._events(chunk)
        self.complete = self.reader.done or not chunk

    def end(self) -> Iterator[Delta]:
        if self._plain is not None:
            yield from self.reader.plain(b"".join(self._plain))
        elif not self.reader.done:
            for data in self._parser.end():
                yield from self.reader.event(data)
        yield from self.reader.end()

    def _events(self, chunk: bytes) -> Iterator[Delta]:
        try:
            events = self._parser.feed(chunk)
        except EventTooLongError as error:
            raise self._call.error(MalformedResponseError, str(error)) from None
        for data in events:
            yield from self.reader.event(data)
