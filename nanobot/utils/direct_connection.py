"""A connection straight to a server: h11 knows the protocol, asyncio the sockets.

What a general client has between the two (pools, hooks, a cancel scope for every read) is three quarters of the price
of a call, and a connection that serves one call at a time has no use for it.
"""

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from typing import TypeAlias, cast

import h11

from nanobot.utils.connection import BodyError, HttpError, Place, is_address

_LARGEST_HEAD = 100 * 1024
_MOST_UNREAD = 256 * 1024
"""How many bytes may wait to be read before the server is made to wait."""
_NEXT_ADDRESS_S = 0.25
"""How long one address of a server is waited for before the next is tried beside it."""
_Event: TypeAlias = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class DirectConnection(asyncio.Protocol):
    """A `Connection`, made by `open`."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self._wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=_LARGEST_HEAD)
        self._transport: asyncio.Transport
        self._unread = bytearray()
        self._paused = False
        self._hung_up = False
        self._lost = ""
        self._waiter: asyncio.Future[None] | None = None
        self._encoding = _Encoding("")

    @classmethod
    async def open(cls, place: Place, context: ssl.SSLContext, connect_s: float) -> "DirectConnection":
        """Connect, to whichever address of the server answers first. Raises HttpError."""
        try:
            async with asyncio.timeout(connect_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: cls(place),
                    place.host,
                    place.port,
                    ssl=context if place.secure else None,
                    # Where there is one address there is no race; and one that is cancelled may leave a socket open.
                    happy_eyeballs_delay=None if is_address(place.host) else _NEXT_ADDRESS_S,
                )
        except TimeoutError:
            raise HttpError(f"no connection within {connect_s:g} s") from None
        except (OSError, UnicodeError) as error:
            raise HttpError(str(error) or type(error).__name__) from None
        return connection

    @property
    def usable(self) -> bool:
        """As the port says. Bytes that nobody asked for are a good-bye, too."""
        return self._wire.our_state is h11.IDLE and not (self._unread or self._hung_up)

    async def post(self, headers: Mapping[str, str], body: bytes) -> None:
        """As the port says."""
        # A name once, however it is spelled; what the owner says of the host goes before ours.
        said = {name.lower(): (name, value) for name, value in (("Host", self.place.authority), *headers.items())}
        said["content-length"] = ("Content-Length", str(len(body)))
        if self.place.authorization is not None:
            said["authorization"] = ("Authorization", self.place.authorization)
        try:
            head = self._wire.send(h11.Request(method="POST", target=self.place.target, headers=[*said.values()]))
        except (h11.LocalProtocolError, UnicodeError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        data = self._wire.send(h11.Data(data=body)), self._wire.send(h11.EndOfMessage())
        self._transport.write(b"".join((head, *data)))
        while not isinstance(event := self._next(), h11.Response):  # before it others may say that it will come
            if event is h11.NEED_DATA:
                await self._more()
        self.status = event.status_code
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
        self._encoding = _Encoding(self.headers.get("content-encoding", ""))

    async def read(self) -> bytes:
        """As the port says. What is there comes in one piece, however it was cut."""
        pieces: list[bytes] = []
        while self._wire.their_state is h11.SEND_BODY:
            event = self._next()
            if isinstance(event, h11.Data):
                pieces.append(self._encoding.plain(event.data))
            elif event is h11.NEED_DATA:
                if any(pieces) and not self._unread:
                    break
                await self._more()
        if self._wire.our_state is h11.DONE and self._wire.their_state is h11.DONE:
            self._wire.start_next_cycle()
        return b"".join(pieces)

    async def aclose(self) -> None:
        """Hang up without a word: what is left to be sent is of no use."""
        self._transport.abort()

    def _next(self) -> _Event:
        try:
            return self._wire.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(str(error)) from None

    async def _more(self) -> None:
        """Hand on what has come; where nothing has, wait for it."""
        if not (self._unread or self._hung_up):
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        if not self._unread and (self._lost or self._wire.their_state is h11.SEND_RESPONSE):
            raise HttpError(self._lost or "the server hung up without an answer")
        self._wire.receive_data(bytes(self._unread))  # nothing at all is the end
        self._unread.clear()
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """asyncio: it stands."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """asyncio: the server says something."""
        self._unread += data
        if len(self._unread) > _MOST_UNREAD and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        """asyncio: the server says no more; with that the connection is closed."""
        self._hung_up = True
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        """asyncio: it is gone, broken if there is an error."""
        self._hung_up = True
        self._lost = "" if error is None else str(error) or type(error).__name__
        self._wake()


class _Encoding:
    """How a body is packed. We ask for it plain; some servers pack it all the same."""

    def __init__(self, name: str) -> None:
        packed = name.strip().lower() not in ("", "identity")
        self._unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32) if packed else None  # gzip or deflate
        self._name = name

    def plain(self, data: bytes) -> bytes:
        """The next piece, unpacked; that may be nothing yet. Raises BodyError."""
        if self._unpacker is None:
            return data
        try:
            return self._unpacker.decompress(data)
        except zlib.error as error:
            raise BodyError(f"it is not packed as {self._name}: {error}") from None
