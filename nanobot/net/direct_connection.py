"""A direct connection to a server: h11 for the protocol, asyncio for the sockets.

What a general client adds (pools, hooks, a cancel scope per read) is three quarters of the cost of a call, and a
connection that serves one call at a time does not need it.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from typing import TypeAlias, cast

import h11

from nanobot.net.connection import HttpError, ServerAddress, is_address
from nanobot.net.decompress import Decoder
from nanobot.utils.storage_error import os_reason

_MAX_HEAD_BYTES = 100 * 1024
_MAX_UNREAD_BYTES = 256 * 1024
"""Unread bytes after which reading from the socket pauses."""
_NEXT_ADDRESS_S = 0.25
"""How long to wait for one address before the next is tried in parallel."""
_Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class DirectConnection(asyncio.Protocol):
    """Implements `Connection`. Create it with `open`."""

    def __init__(self, address: ServerAddress) -> None:
        self.address = address
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._paused = False
        self._closed = False
        self._error = ""
        self._waiter: asyncio.Future[None] | None = None
        self._decoder: Decoder | None = None
        self._decoded: Iterator[bytes] = iter(())

    @classmethod
    async def open(cls, address: ServerAddress, context: ssl.SSLContext, connect_s: float) -> "DirectConnection":
        """Connect to the first address of the server that responds. Raises HttpError."""
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(address),
                    address.host,
                    address.port,
                    ssl=context if address.secure else None,
                    # One address needs no race, and a cancelled race may leave a socket open.
                    happy_eyeballs_delay=None if is_address(address.host) else _NEXT_ADDRESS_S,
                )
        except TimeoutError:
            raise HttpError(f"no connection within {connect_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise HttpError(os_reason(error)) from None
        return connection

    @property
    def usable(self) -> bool:
        """As in the protocol. Unsolicited bytes also mean that the server is closing."""
        return self._wire.our_state is h11.IDLE and not (self._unread or self._closed)

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        # Each name once, in any spelling; a Host header from the config overrides ours.
        headers_by_name = {
            name.lower(): (name, value) for name, value in (("Host", self.address.authority), *headers.items())
        }
        if method != "GET":
            headers_by_name["content-length"] = ("Content-Length", str(len(body)))
        if self.address.authorization is not None:
            headers_by_name["authorization"] = ("Authorization", self.address.authorization)
        try:
            head = self._wire.send(
                h11.Request(method=method, target=self.address.target, headers=[*headers_by_name.values()])
            )
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        data = self._wire.send(h11.Data(data=body)), self._wire.send(h11.EndOfMessage())
        self._transport.write(b"".join((head, *data)))
        while not isinstance(event := self._next(), h11.Response):  # informational responses may come first
            if event is h11.NEED_DATA:
                await self._receive()
        self.status = event.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        self._decoder, self._decoded = None, iter(())

    async def read(self) -> bytes:
        """As in the protocol. Returns all available data in one piece; a compressed body is decompressed only as far as
        it is read.
        """
        chunks: list[bytes] = []
        size = 0
        while size < _MAX_UNREAD_BYTES:
            if chunk := next(self._decoded, b""):
                chunks.append(chunk)
                size += len(chunk)
            elif self._wire.their_state is not h11.SEND_BODY:
                if self._wire.our_state is h11.DONE and self._wire.their_state is h11.DONE:
                    self._wire.start_next_cycle()
                break
            elif isinstance(event := self._next(), h11.Data):
                self._decoder = self._decoder or Decoder(self.headers.get("content-encoding", ""))
                self._decoded = self._decoder.chunks(event.data)
            elif event is h11.NEED_DATA:
                if chunks and not self._unread:
                    break
                await self._receive()
        return b"".join(chunks)

    async def aclose(self) -> None:
        """Close without flushing: unsent data is useless now."""
        self._transport.abort()

    def _next(self) -> _Event:
        try:
            return self._wire.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(str(error)) from None

    async def _receive(self) -> None:
        """Feed received data to the parser; wait for some if there is none."""
        if not (self._unread or self._closed):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._unread and (self._error or self._wire.their_state is h11.SEND_RESPONSE):
            raise HttpError(self._error or "the server closed the connection without an answer")
        self._wire.receive_data(bytes(self._unread))  # no bytes mean the end
        self._unread.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio callback."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio callback."""
        self._unread += data
        if len(self._unread) > _MAX_UNREAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """asyncio callback. Returning None closes the connection."""
        self._closed = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio callback."""
        self._closed = True
        self._error = "" if error is None else os_reason(error)
        self._wake()
