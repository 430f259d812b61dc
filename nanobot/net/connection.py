"""A connection to a server: one request at a time, a streamed response, errors with the system's reason.

Importing httpx for it would make the first answer of a process a quarter slower, and a call four times as expensive.
`pools.HttpPools` keeps connections to model servers; `fetch` opens one for each request.
"""

import asyncio
import ssl
from collections.abc import Iterator, Mapping
from typing import TypeAlias

import h11

from nanobot.net.http import Decoder, HttpError, ssl_context
from nanobot.net.urls import WebUrl, parse_server_url
from nanobot.utils.storage_error import os_reason

_READ_BYTES = 256 * 1024
_MAX_HEAD_BYTES = 100 * 1024
_NEXT_ADDRESS_S = 0.25
"""How long to wait for one address before the next is tried in parallel."""
_Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class Connection:
    """A socket to a server, or to an HTTP proxy before it. Create it with `open`. Cancelling is safe; a cancelled
    connection can only be closed.
    """

    def __init__(
        self, address: WebUrl, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, proxy: WebUrl | None = None
    ) -> None:
        self.address = address
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """Response headers; names in lower case."""
        self.usable = True
        """Whether a request may be sent: the last response is read to its end, and does not end the connection."""
        self._proxy = proxy
        self._reader = reader
        self._writer = writer
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._decoder: Decoder | None = None
        self._decoded: Iterator[bytes] = iter(())

    @classmethod
    async def open(
        cls, address: WebUrl, context: ssl.SSLContext, connect_s: float, proxy: str | None = None, at: str | None = None
    ) -> "Connection":
        """Connect to the server at this IP address, or to the first one of the server or the proxy that responds.

        Raises HttpError, ValueError if the proxy is none.
        """
        via = parse_server_url(proxy) if proxy is not None else None
        peer = via or address
        host = at or peer.host
        # One address needs no race, and a cancelled race may leave a socket open.
        is_one_address = ":" in host or host.replace(".", "").isdigit()
        connection = None
        try:
            async with asyncio.timeout(connect_s):
                reader, writer = await asyncio.open_connection(
                    host,
                    peer.port,
                    ssl=(context if via is None else await ssl_context(via.origin)) if peer.is_secure else None,
                    server_hostname=peer.host if peer.is_secure else None,
                    happy_eyeballs_delay=None if is_one_address else _NEXT_ADDRESS_S,
                    limit=_READ_BYTES,
                )
                connection = cls(address, reader, writer, via)
                if via is not None and address.is_secure:
                    await connection._open_tunnel(context)
        except TimeoutError:
            raise HttpError(f"no connection within {connect_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise HttpError(os_reason(error)) from None
        else:
            return connection
        finally:
            if connection is not None and not connection.usable:
                await connection.aclose()

    async def _open_tunnel(self, context: ssl.SSLContext) -> None:
        """Ask the proxy for a tunnel to the server, and begin TLS in it."""
        self.usable = False
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        authority = f"{host}:{self.address.port}"
        response = await self._exchange("CONNECT", authority, {"Host": authority, **self._proxy_headers()}, b"")
        if not 200 <= response.status_code < 300:
            raise HttpError(f"the proxy refuses the connection: HTTP {response.status_code}")
        await self._writer.start_tls(context, server_hostname=self.address.host)
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._proxy = None
        self.usable = True

    def _proxy_headers(self) -> dict[str, str]:
        authorization = self._proxy.authorization if self._proxy is not None else None
        return {} if authorization is None else {"Proxy-Authorization": authorization}

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a request and wait for the response head. Raises HttpError."""
        self.usable = False
        self._decoder, self._decoded = None, iter(())
        address = self.address
        # Each name once, in any spelling; a Host header from the config overrides ours.
        headers_by_name = {
            name.lower(): (name, value)
            for name, value in (("Host", address.authority), *headers.items(), *self._proxy_headers().items())
        }
        if method != "GET":
            headers_by_name["content-length"] = ("Content-Length", str(len(body)))
        if address.authorization is not None:
            headers_by_name["authorization"] = ("Authorization", address.authorization)
        target = address.target if self._proxy is None else str(address)
        response = await self._exchange(method, target, dict(headers_by_name.values()), body)
        self.status = response.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}

    async def _exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> h11.Response:
        try:
            request = h11.Request(method=method, target=target, headers=[*headers.items()])
            head = self._wire.send(request)
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        # Not drained: a server may refuse a request without reading it to the end.
        self._writer.write(b"".join((head, self._wire.send(h11.Data(data=body)), self._wire.send(h11.EndOfMessage()))))
        while not isinstance(event := await self._next_event(), h11.Response):
            pass  # informational responses may come first
        return event

    async def read(self) -> bytes:
        """The next bytes of the body as soon as there are any; b"" at its end. Raises HttpError.

        A compressed body is decompressed only as far as it is read.
        """
        while not (chunk := next(self._decoded, b"")):
            if self.usable or not (data := await self.receive()):
                return b""
            self._decoder = self._decoder or Decoder(self.headers.get("content-encoding", ""))
            self._decoded = self._decoder.chunks(data)
        return chunk

    async def receive(self) -> bytes:
        """The next bytes of the body as sent; b"" at its end. Raises HttpError."""
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
