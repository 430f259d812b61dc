"""One call to a model's server: sent, watched by the clock, mended where the server asks for it, every failure typed.

What goes into the body and how the answer is read is a wire's own (`completions`, `responses`). What can happen on the
way there and back is here, once.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, TypedDict

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
from nanobot.providers.textual_calls import TextualDeltas
from nanobot.providers.wire import ToolsEncoder
from nanobot.security.secrets import redact, secrets_in
from nanobot.utils.connection import BodyError, Connection, HttpError, place_of
from nanobot.utils.http import HttpPools

LARGEST_ANSWER = 64 * 1024 * 1024
_LARGEST_REFUSAL = 256 * 1024
_HEADERS = {
    "Content-Type": "application/json",
    "Accept": "text/event-stream, application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "nanobot",
}
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
        self._target = endpoint.target(model)

    async def request(self, learned: Learned) -> tuple[bytes, list[str]]:
        """The body, and the names of what may be left out of it."""
        raise NotImplementedError

    def reader(self) -> Reader:
        """What reads the answer."""
        raise NotImplementedError

    async def run(self) -> AsyncGenerator[Delta, None]:
        """Ask, and hand on what is answered, as it comes. Closing it hangs up."""
        with closing(CallLimits(self._endpoint.timeouts, self._target)) as limits:
            connection = await self._ask(limits)
            body, texts = _Body(self), TextualDeltas(self._tools)
            try:
                while not body.whole:
                    piece = await self._next_piece(connection, body, limits)
                    for delta in texts.passed(body.feed(piece)):
                        yield delta
                for delta in texts.passed(body.end()):
                    yield delta
            finally:
                await self._endpoint.pools.take_back(connection, all_said=body.whole)

    async def _ask(self, limits: CallLimits) -> Connection:
        """Ask, and ask again with less while the server names a field that it does not take; then it answers."""
        endpoint = self._endpoint
        for attempt in range(_MENDS + 1):
            body, sent = await self.request(endpoint.capabilities.get(endpoint.api_base, self._model))
            started = time.monotonic()
            connection = await self._send(body, limits)
            if connection.status == 200:
                break
            try:
                refusal = await self._refusal(connection)
            finally:
                await endpoint.pools.take_back(connection)
            error = self.error_of(refusal)
            if attempt == _MENDS or not self.mend(refusal, sent):
                raise error
            if self._mended is not None:
                self._mended(error, self._model, time.monotonic() - started)
        return connection

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

    async def _send(self, body: bytes, limits: CallLimits) -> Connection:
        """The request is sent, and the head of its answer is there."""
        pools = self._endpoint.pools
        try:
            place = place_of(f"{self._endpoint.api_base}{self.path}")
            with limits.next_sign(began=False):
                connection = await pools.connect(place, self._endpoint.timeouts.connect_s)
                try:
                    await connection.post(self._headers(), body)
                    await pools.answered()
                except BaseException:
                    await pools.take_back(connection)
                    raise
        except (HttpError, ValueError) as error:  # a connection, or an address that is none
            raise self.error(ConnectionFailedError, str(error)) from None
        return connection

    def _headers(self) -> dict[str, str]:
        endpoint = self._endpoint
        key = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        return {**_HEADERS, **key, **endpoint.extra_headers}

    async def _refusal(self, connection: Connection) -> Refusal:
        """What stands behind a status other than 200."""
        status, headers, body = connection.status, connection.headers, b""
        try:
            async with asyncio.timeout(self._endpoint.timeouts.idle_s):
                while len(body) <= _LARGEST_REFUSAL and (piece := await connection.read()):
                    body += piece
        except (HttpError, TimeoutError):
            pass  # the status is known; what else the server would have said is not worth a failure
        if 300 <= status < 400:
            detail = f"a redirect to {headers.get('location', 'elsewhere')}, not followed with a key"
            raise self.error(MalformedResponseError, detail, status)
        return read_refusal(status, body, headers)

    async def _next_piece(self, connection: Connection, body: "_Body", limits: CallLimits) -> bytes:
        try:
            with limits.next_sign(began=body.reader.began):
                return await connection.read()
        except BodyError as error:
            raise self.error(MalformedResponseError, str(error)) from None
        except HttpError as error:
            if body.reader.finished:  # all is said; only the good-bye is missing
                return b""
            raise self.error(StreamCutError, str(error)) from None


class _Body:
    """Reads the body of an answer as a stream of events, or as one plain answer where the server ignored `stream`."""

    def __init__(self, call: Call) -> None:
        self.reader = call.reader()
        self.whole = False
        """Whether all is said: its end came, or the server's good-bye."""
        self._call = call
        self._parser = SseParser()
        self._plain: list[bytes] | None = None
        self._opened = False
        self._size = 0

    def feed(self, piece: bytes) -> Iterator[Delta]:
        """What the next piece says; an empty one is the end."""
        self._size += len(piece)
        if self._size > LARGEST_ANSWER:
            raise self._call.error(MalformedResponseError, f"more than {LARGEST_ANSWER >> 20} MB without an end")
        if not self._opened:
            first = piece.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
            self._opened = bool(first)
            self._plain = [] if first and first in b"{[<" else None
        if self._plain is not None:
            self._plain.append(piece)
        elif self._opened:
            yield from self._events(piece)
        self.whole = self.reader.done or not piece

    def end(self) -> Iterator[Delta]:
        """What is left when nothing more comes; Finished is the last of it."""
        if self._plain is not None:
            yield from self.reader.plain(b"".join(self._plain))
        elif not self.reader.done:
            for data in self._parser.end():
                yield from self.reader.event(data)
        yield from self.reader.end()

    def _events(self, piece: bytes) -> Iterator[Delta]:
        try:
            events = self._parser.feed(piece)
        except EventTooLongError as error:
            raise self._call.error(MalformedResponseError, str(error)) from None
        for data in events:
            yield from self.reader.event(data)
