"""Connections to model servers: one request at a time, a streamed response, errors with the system's reason.

Importing httpx for them would make the first answer of a process a quarter slower, and a call four times as expensive.
Only a proxy is reached through httpx. `http.HttpPools` keeps connections.
"""

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import h11

from nanobot.net.http import Decoder, HttpError, ServerAddress, connection_error_reason
from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    import httpx

_READ_BYTES = 256 * 1024
_MAX_HEAD_BYTES = 100 * 1024
_NEXT_ADDRESS_S = 0.25
"""How long to wait for one address before the next is tried in parallel."""
_Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Connection(ABC):
    """A connection for one request at a time. Cancelling is safe; a cancelled connection can only be closed."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """Response headers; names in lower case."""
        self.usable = True
        """Whether a request may be sent: the last response is read to its end, and does not end the connection."""
        self._decoder: Decoder | None = None
        self._decoded: Iterator[bytes] = iter(())

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request and wait for the response head. Raises HttpError."""
        self.usable = False
        self._decoder, self._decoded = None, iter(())
        self.status, self.headers = await self._send(method, headers, body)

    async def read(self) -> bytes:
        """The next bytes of the body as soon as there are any; b"" at its end. Raises HttpError.

        A compressed body is decompressed only as far as it is read.
        """
        while not (chunk := next(self._decoded, b"")):
            if self.usable or not (data := await self._receive()):
                return b""
            self._decoder = self._decoder or Decoder(self.headers.get("content-encoding", ""))
            self._decoded = self._decoder.chunks(data)
        return chunk

    @abstractmethod
    async def _send(self, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        """Send a request and return status and headers."""

    @abstractmethod
    async def _receive(self) -> bytes:
        """The next bytes of the body as sent; b"" at its end, where `usable` is set if the connection may stay open."""

    @abstractmethod
    def is_open(self) -> bool:
        """Whether an idle connection still waits for a request."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the connection, even with a request in flight. Never raises."""


class DirectConnection(Connection):
    """A socket to the server itself. Create it with `open`."""

    def __init__(self, address: ServerAddress, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(address)
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, address: ServerAddress, context: ssl.SSLContext, connect_s: float) -> "DirectConnection":
        """Connect to the first address of the server that responds. Raises HttpError."""
        # One address needs no race, and a cancelled race may leave a socket open.
        is_one_address = ":" in address.host or address.host.replace(".", "").isdigit()
        try:
            async with asyncio.timeout(connect_s):
                reader, writer = await asyncio.open_connection(
                    address.host,
                    address.port,
                    ssl=context if address.secure else None,
                    happy_eyeballs_delay=None if is_one_address else _NEXT_ADDRESS_S,
                    limit=_READ_BYTES,
                )
        except TimeoutError:
            raise HttpError(f"no connection within {connect_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise HttpError(os_reason(error)) from None
        return cls(address, reader, writer)

    async def _send(self, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        # Each name once, in any spelling; a Host header from the config overrides ours.
        headers_by_name = {
            name.lower(): (name, value) for name, value in (("Host", self.address.authority), *headers.items())
        }
        if method != "GET":
            headers_by_name["content-length"] = ("Content-Length", str(len(body)))
        if self.address.authorization is not None:
            headers_by_name["authorization"] = ("Authorization", self.address.authorization)
        try:
            request = h11.Request(method=method, target=self.address.target, headers=[*headers_by_name.values()])
            head = self._wire.send(request)
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        # Not drained: a server may refuse a request without reading it to the end.
        self._writer.write(b"".join((head, self._wire.send(h11.Data(data=body)), self._wire.send(h11.EndOfMessage()))))
        while not isinstance(event := await self._next_event(), h11.Response):
            pass  # informational responses may come first
        return event.status_code, {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}

    async def _receive(self) -> bytes:
        event = await self._next_event()
        if not isinstance(event, h11.Data):
            self._end_response()
            return b""
        pieces = [bytes(event.data)]  # with what has arrived behind it
        while self._wire.their_state is h11.SEND_BODY and isinstance(event := self._parse(), h11.Data):
            pieces.append(bytes(event.data))
        self._end_response()
        return b"".join(pieces)

    def _end_response(self) -> None:
        """Make the connection ready for the next request if the response has been read to its end."""
        wire = self._wire
        if wire.our_state is h11.DONE and wire.their_state is h11.DONE and not wire.trailing_data[0]:
            wire.start_next_cycle()
            self.usable = True

    async def _next_event(self) -> _Event:
        """The next part of the response, read from the socket if necessary."""
        if self._wire.their_state in (h11.DONE, h11.CLOSED, h11.MUST_CLOSE):
            return h11.PAUSED
        while (event := self._parse()) is h11.NEED_DATA:
            try:
                data = await self._reader.read(_READ_BYTES)
            except OSError as error:
                raise HttpError(os_reason(error)) from None
            if not data and self._wire.their_state is h11.SEND_RESPONSE:
                raise HttpError("the server closed the connection without an answer")
            self._wire.receive_data(data)  # no bytes mean the end
        return event

    def _parse(self) -> _Event:
        try:
            return self._wire.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(str(error)) from None

    def is_open(self) -> bool:
        read = self._reader.read(1)
        try:
            read.send(None)  # waits, or returns what is there: the end, or unsolicited bytes before it
        except (StopIteration, OSError):
            return False
        read.close()
        return True

    async def aclose(self) -> None:
        self._writer.transport.abort()  # without flushing: unsent data is useless now


class ProxiedConnection(Connection):
    """A connection through a proxy. httpx supports the kinds of proxies."""

    def __init__(self, address: ServerAddress, client: "httpx.AsyncClient", connect_s: float) -> None:
        """The first request connects."""
        super().__init__(address)
        self._client = client
        self._connect_s = connect_s
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes]

    async def _send(self, method: str, headers: Mapping[str, str], body: bytes) -> tuple[int, Mapping[str, str]]:
        import httpx

        timeout = httpx.Timeout(None, connect=self._connect_s)
        try:
            request = self._client.build_request(
                method, self.address.url, content=body or None, headers=dict(headers), timeout=timeout
            )
        except (TypeError, ValueError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        try:
            self._response = await self._client.send(request, stream=True)
        except httpx.ConnectTimeout:
            raise HttpError(f"no connection within {self._connect_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise HttpError(connection_error_reason(error)) from None
        self._body = self._response.aiter_raw()
        return self._response.status_code, self._response.headers

    async def _receive(self) -> bytes:
        import httpx

        try:
            data = await anext(self._body, b"")
        except httpx.HTTPError as error:
            raise HttpError(connection_error_reason(error)) from None
        self.usable = not data
        return data

    def is_open(self) -> bool:
        return True  # httpx connects again if it is not

    async def aclose(self) -> None:
        import httpx

        with suppress(httpx.HTTPError):
            if self._response is not None:
                await self._response.aclose()
        await self._client.aclose()
