"""One HTTP call to a model server: the request, time limits, automatic fix-ups of the request, server-sent events, and
the answer they add up to. Shared by both wires; `chat` and `responses` add the body and how an event is read.
"""

import asyncio
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict, TypeGuard

from nanobot.errors import ProviderError
from nanobot.net.http import BodyError, HttpError
from nanobot.net.pools import HttpPools
from nanobot.net.urls import parse_server_url
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    new_call_id,
)
from nanobot.providers.endpoint import CallLimits, CapabilityStore, Endpoint, Facts, Timeouts
from nanobot.providers.error_patterns import ErrorResponse, error_response_of, fixup_for, parse_error_response
from nanobot.providers.errors import (
    ConnectionFailedError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
    TryElsewhere,
)
from nanobot.providers.wire.rows import RowsEncoder, ToolsEncoder
from nanobot.providers.wire.tool_text import TextToolDeltas

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
    """Optional settings of a chat endpoint; None or a missing key means the default."""

    name: str
    config_key: str | None
    extra_headers: Mapping[str, str] | None
    extra_body: Mapping[str, Any] | None
    proxy: str | None
    timeouts: Timeouts | None
    reasoning_effort: str | None
    capabilities: CapabilityStore | None


@dataclass(frozen=True, slots=True)
class ChatEndpoint(Endpoint):
    """An endpoint of chat models, and what all calls to it share."""

    extra_body: Mapping[str, Any] = field(default_factory=dict)
    reasoning_effort: str | None = None
    capabilities: CapabilityStore = field(default_factory=CapabilityStore)
    tools: ToolsEncoder = field(default_factory=ToolsEncoder)
    rows: RowsEncoder = field(default_factory=RowsEncoder)
    undecryptable: set[int] = field(default_factory=set)
    """Hashes of encrypted reasoning that the server could not decrypt, from another account or vendor."""

    @classmethod
    def create(cls, api_base: str, api_key: str | None, settings: EndpointSettings, **defaults: Any) -> "ChatEndpoint":
        """An endpoint with connections of its own. The settings override the defaults."""
        given = {name: value for name, value in settings.items() if value is not None and name != "proxy"}
        fields: dict[str, Any] = {"pools": HttpPools(proxy=settings.get("proxy")), **defaults, **given}
        fields.setdefault("config_key", f"providers.{fields['name']}.apiKey")
        return cls(api_base=api_base.rstrip("/"), api_key=api_key, **fields)


class SseParser:
    """Parses server-sent events: accepts bytes split anywhere, returns the data of each complete event.

    Follows the living standard (html.spec.whatwg.org, "Server-sent events"), except that a line ends in LF or CRLF:
    comments begin with a colon, data of several lines is joined, an empty line ends the event.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that end in this chunk."""
        *lines, rest = chunk.split(b"\n")
        if lines:
            lines[0], self._rest = b"".join((*self._rest, lines[0])), []
        self._rest.append(rest)
        return [event for line in lines for event in self._parse_line(line)]

    def end(self) -> list[bytes]:
        """The data of an event that the server did not terminate before it closed the connection."""
        return [*self._parse_line(b"".join(self._rest)), *self._parse_line(b"")]

    def _parse_line(self, line: bytes) -> list[bytes]:
        """The data of the event that this line ends, if it ends one."""
        line = line.removesuffix(b"\r")
        if not line and self._data:
            data, self._data = b"\n".join(self._data), []
            return [data]
        name, _, value = line.partition(b":")
        if name.lstrip(b"\xef\xbb\xbf") == b"data":
            self._data.append(value.removeprefix(b" "))
        return []


@dataclass(slots=True)
class PartialCall:
    """A tool call under construction."""

    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)
    extra_content: dict[str, Any] | None = None


def text_or_empty(value: object) -> str:
    return value if isinstance(value, str) else ""


def dicts_in(value: object) -> list[dict[str, Any]]:
    """The objects of a list from a server; empty if it is none."""
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def normal_usage(usage: dict[str, Any]) -> dict[str, int]:
    """Token counts under our names, whatever the server calls them and however it sums them.

    Cached and written tokens are part of the prompt, reasoning is part of the completion. Writing and reasoning are
    left out if the server does not report them.
    """
    prompt_details = _part(usage, "prompt_tokens_details", "input_tokens_details")
    completion_details = _part(usage, "completion_tokens_details", "output_tokens_details")
    prompt = _first(usage, "prompt_tokens", "input_tokens")
    completion = _first(usage, "completion_tokens", "output_tokens")
    reasoning = _first(completion_details, "reasoning_tokens") or _first(usage, "reasoning_tokens")
    read = _first(usage, "cache_read_input_tokens")
    written = _first(usage, "cache_creation_input_tokens")
    if "prompt_tokens" not in usage:  # Anthropic's format: cache reads and writes are not part of input_tokens
        prompt += read + written
    if reasoning and _first(usage, "total_tokens") == prompt + completion + reasoning:
        completion += reasoning  # some servers do not count reasoning as completion
    if not (prompt or completion):
        return {}
    cached = (
        _first(prompt_details, "cached_tokens") or _first(usage, "prompt_cache_hit_tokens", "cached_tokens") or read
    )
    written = written or _first(prompt_details, "cache_write_tokens", "cache_creation_tokens")
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "cached_tokens": min(cached, prompt)}
    if written:
        counts["cache_written_tokens"] = min(written, prompt - counts["cached_tokens"])
    if reasoning:
        counts["reasoning_tokens"] = min(reasoning, completion)
    return counts


def _part(usage: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((part for name in names if isinstance(part := usage.get(name), dict)), {})


def _first(counts: dict[str, Any], *names: str) -> int:
    return next((int(counts[name]) for name in names if is_count(counts.get(name))), 0)


def is_count(value: Any) -> TypeGuard[int | float]:
    """Whether it is a finite number, not negative."""
    return isinstance(value, int | float) and 0 <= value < math.inf


class Reader(ABC):
    """Turns the body of a response into deltas, the last of which is Finished: a stream of events, or one plain object
    if the server ignored `stream`. Raises a ModelCallError for invalid data. The deltas add up to the response.
    """

    content_key: ClassVar[str]
    """Where a whole response has its content."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        self._endpoint = endpoint
        self._model = model
        self.done = False
        """Whether the server sent its end marker."""
        self.complete = False
        """Whether the body needs not be read any further."""
        self.began = False
        """Whether the answer has begun; from then on the idle limit applies."""
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[PartialCall] = []
        self.thinking: list[dict[str, Any]] = []
        self._ready: list[Delta] = []
        self._parser = SseParser()
        self._plain: list[bytes] | None = None
        self._started = False
        self._size = 0

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether the answer is complete, so that a lost connection loses nothing."""

    @abstractmethod
    def _read_event(self, event: dict[str, Any]) -> None:
        """Add what one event says to the answer."""

    @abstractmethod
    def _read_response(self, response: dict[str, Any]) -> None:
        """Add the whole response of a server that did not stream."""

    @abstractmethod
    def _finish(self) -> LLMResponse:
        """The whole answer at the end of the data. Raises if the answer may not end here."""

    def read_event(self, event: dict[str, Any]) -> list[Delta]:
        """The deltas of one event."""
        self._read_event(event)
        return self._take_ready()

    def read_end(self) -> list[Delta]:
        """The remaining deltas at the end of the data; Finished is the last."""
        response = self._finish()
        return [*self._take_ready(), Finished(response)]

    def _take_ready(self) -> list[Delta]:
        ready, self._ready = self._ready, []
        return ready

    def is_error(self, data: dict[str, Any]) -> bool:
        """Whether this is an error instead of content."""
        return bool(data.get("error"))

    def feed(self, chunk: bytes) -> Iterator[Delta]:
        """The deltas of the next chunk; an empty chunk is the end."""
        self._size += len(chunk)
        if self._size > MAX_RESPONSE_BYTES:
            raise self.error(MalformedResponseError, f"more than {MAX_RESPONSE_BYTES >> 20} MB without an end")
        if not self._started:
            first = chunk.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
            self._started = bool(first)
            self._plain = [] if first and first in b"{[<" else None
        if self._plain is not None:
            self._plain.append(chunk)
        elif self._started:
            for data in self._parser.feed(chunk):
                yield from self._event(data)
        self.complete = self.done or not chunk

    def end(self) -> Iterator[Delta]:
        if self._plain is not None:
            yield from self._read_plain(b"".join(self._plain))
        elif not self.done:
            for data in self._parser.end():
                yield from self._event(data)
        yield from self.read_end()

    def _event(self, data: bytes) -> list[Delta]:
        """One event as sent. Invalid JSON is skipped: what is missing shows at the end."""
        if data.strip() == b"[DONE]":
            self.done = True
            return []
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return []
        return self.read_event(event) if isinstance(event, dict) else []

    def _read_plain(self, body: bytes) -> list[Delta]:
        """The whole body of a server that did not stream."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self.error(StreamCutError, "the answer is incomplete") from None
            excerpt = parse_error_response(200, body).message
            raise self.error(MalformedResponseError, f"not JSON: {excerpt}") from None
        if isinstance(data, dict) and self.is_error(data):
            raise self.failure(data)  # an error with status 200
        if not isinstance(data, dict) or not isinstance(data.get(self.content_key), list):
            detail = f"no {self.content_key} in the response: {json.dumps(data)[:200]}"
            raise self.error(MalformedResponseError, detail)
        self._read_response(data)
        return self._take_ready()

    def add_text(self, *deltas: TextDelta | ReasoningDelta) -> None:
        for delta in deltas:
            if delta.text:
                self.began = True
                (self.text if isinstance(delta, TextDelta) else self.reasoning).append(delta.text)
                self._ready.append(delta)

    def add_to_call(self, index: int, call_id: str, name: str, arguments: str) -> None:
        """Add a fragment of a call. The first id and the first name count; arguments are joined."""
        self.began = True
        call = self.calls[index]
        new_name = "" if call.name else name
        call.id, call.name = call.id or call_id, call.name or name
        if arguments:
            call.arguments.append(arguments)
        if new_name or arguments:
            self._ready.append(ToolCallDelta(index, new_name, arguments))

    def response(self, finish_reason: str, usage: dict[str, int], cost_usd: float | None = None) -> LLMResponse:
        """The whole answer. Calls without an id, or with that of another call, get a new one."""
        calls: dict[str, ToolCallRequest] = {}
        for call in self.calls:
            if call.name or call.arguments:
                call_id = call.id if call.id and call.id not in calls else new_call_id()
                text = "".join(call.arguments)
                calls[call_id] = ToolCallRequest.from_text(call_id, call.name, text, call.extra_content)
        if calls and finish_reason in ("stop", "function_call", "eos"):
            finish_reason = "tool_calls"
        return LLMResponse(
            content="".join(self.text) or None,
            tool_calls=list(calls.values()),
            finish_reason=finish_reason,
            usage=usage,
            reasoning_content="".join(self.reasoning) or None,
            thinking_blocks=self.thinking or None,
            cost_usd=cost_usd,
        )

    def error(self, kind: type[ModelCallError], detail: str = "") -> ModelCallError:
        return self._endpoint.error(kind, detail, model=self._model)

    def failure(self, data: dict[str, Any]) -> ModelCallError:
        """The error that arrived instead of content. In the middle of an answer, a transient one is a cut stream."""
        error = self._endpoint.error_of(error_response_of(data), self._model)
        if self.began and error.try_elsewhere is TryElsewhere.OTHER_MODEL:
            return self.error(StreamCutError, error.detail)
        return error


class WireCall(ABC):
    """One call. Subclasses provide the request and the reader."""

    path: ClassVar[str]
    """Appended to the base URL."""
    reader: ClassVar[type[Reader]]
    """Reads the response."""

    def __init__(
        self,
        endpoint: ChatEndpoint,
        request: ModelRequest,
        on_fixup: FixupCallback | None = None,
        *,
        has_own_limits: bool = False,
    ) -> None:
        """`on_fixup` is called for each request that was rejected and corrected. With `has_own_limits`, the server sets
        length and temperature itself.
        """
        self.endpoint = endpoint
        self._request = request
        self._on_fixup = on_fixup
        self._max_tokens = None if has_own_limits else request.max_tokens
        self._temperature = None if has_own_limits else request.temperature

    @abstractmethod
    async def body(self, facts: Facts) -> tuple[bytes, list[str]]:
        """The body for an endpoint of which these facts are known, and the names of the fields that may be dropped."""

    async def run(self) -> AsyncGenerator[Delta, None]:
        """Send the request and yield deltas as they arrive. Closing the generator closes the connection."""
        endpoint, model = self.endpoint, self._request.model
        with closing(CallLimits(endpoint.timeouts, endpoint.target(model))) as limits:
            connection = await self._open(limits)
            reader, texts = self.reader(endpoint, model), TextToolDeltas(self._request.tools)
            try:
                while not reader.complete:
                    chunk = await self._next_chunk(connection, reader, limits)
                    for delta in texts.filter(reader.feed(chunk)):
                        yield delta
                for delta in texts.filter(reader.end()):
                    yield delta
            finally:
                await endpoint.pools.release(connection, is_complete=reader.complete)

    async def _open(self, limits: CallLimits) -> "Connection":
        """Send the request until the server accepts it, each time without a field that it rejected."""
        endpoint, model = self.endpoint, self._request.model
        for attempt in range(_MAX_FIXUPS + 1):
            body, droppable = await self.body(endpoint.capabilities.get(endpoint.api_base, model))
            started = time.monotonic()
            try:
                connection = await limits.wait(self._send(body), began=False)
            except (HttpError, ValueError) as error:  # no connection, or an invalid address
                raise endpoint.error(ConnectionFailedError, str(error), model=model) from None
            if connection.status == 200:
                break
            try:
                response = await self._error_response(connection)
            finally:
                await endpoint.pools.release(connection)
            rejection = endpoint.error_of(response, model)
            if attempt == _MAX_FIXUPS or not self.learn(response, droppable):
                raise rejection
            if self._on_fixup is not None:
                self._on_fixup(rejection, model, time.monotonic() - started)
        return connection

    async def _send(self, body: bytes) -> "Connection":
        """Send the request and return the connection once the response head has arrived."""
        endpoint = self.endpoint
        address = parse_server_url(f"{endpoint.api_base}{self.path}")
        connection = await endpoint.pools.connect(address, endpoint.timeouts.connect_s)
        try:
            await connection.request("POST", {**_HEADERS, **endpoint.bearer, **endpoint.extra_headers}, body)
        except BaseException:
            await endpoint.pools.release(connection)
            raise
        return connection

    def learn(self, response: ErrorResponse, droppable: list[str]) -> bool:
        """Learn from the error response. Return False if there is nothing to learn."""
        fact, endpoint = fixup_for(response, droppable), self.endpoint
        return fact is not None and endpoint.capabilities.learn(endpoint.api_base, self._request.model, fact)

    async def _error_response(self, connection: "Connection") -> ErrorResponse:
        """The body of a status other than 200, parsed."""
        status, headers, body = connection.status, connection.headers, b""
        try:
            async with asyncio.timeout(self.endpoint.timeouts.idle_s):
                while len(body) <= _MAX_ERROR_BYTES and (chunk := await connection.read()):
                    body += chunk
        except (HttpError, TimeoutError):
            pass  # the status is known, which is enough
        return parse_error_response(status, body, headers)

    async def _next_chunk(self, connection: "Connection", reader: Reader, limits: CallLimits) -> bytes:
        try:
            return await limits.wait(connection.read(), began=reader.began)
        except BodyError as error:
            raise reader.error(MalformedResponseError, str(error)) from None
        except HttpError as error:
            if reader.finished:  # the answer is complete; only the end marker is missing
                return b""
            raise reader.error(StreamCutError, str(error)) from None
