"""A connection through a proxy. httpx supports the kinds of proxies."""

import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import suppress

import httpx

from nanobot.net.clients import connection_error_reason, new_client
from nanobot.net.connection import HttpError, ServerAddress
from nanobot.net.decompress import Decoder


class ProxiedConnection:
    """Implements `Connection` with an httpx client. Create it with `open`."""

    def __init__(self, client: httpx.AsyncClient, address: ServerAddress, connect_s: float) -> None:
        self.address = address
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.usable = True
        self._client = client
        self._connect_s = connect_s
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None
        self._decoder: Decoder | None = None
        self._decoded: Iterator[bytes] = iter(())

    @classmethod
    def open(cls, address: ServerAddress, proxy: str, context: ssl.SSLContext, connect_s: float) -> "ProxiedConnection":
        """Create the client; the first request connects. Raises HttpError."""
        try:
            return cls(new_client(context, proxy), address, connect_s)
        except (ImportError, ValueError) as error:  # unknown kind of proxy, or its package is missing
            raise HttpError(str(error)) from None

    async def request(self, method: str, headers: Mapping[str, str], body: bytes = b"") -> None:
        self.usable = False
        timeout = httpx.Timeout(None, connect=self._connect_s)
        try:
            request = self._client.build_request(
                method, self.address.url, content=body or None, headers=dict(headers), timeout=timeout
            )
        except (TypeError, ValueError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ConnectTimeout:
            raise HttpError(f"no connection within {self._connect_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise HttpError(connection_error_reason(error)) from None
        self.status, self.headers = response.status_code, response.headers
        self._response, self._body = response, response.aiter_raw()  # decompressed here, within limits

    async def read(self) -> bytes:
        if self._body is None:
            return b""
        while not (chunk := next(self._decoded, b"")):
            try:
                data = await anext(self._body, b"")
            except httpx.HTTPError as error:
                raise HttpError(connection_error_reason(error)) from None
            if not data:
                break
            self._decoder = self._decoder or Decoder(self.headers.get("content-encoding", ""))
            self._decoded = self._decoder.chunks(data)
        self.usable = not chunk
        return chunk

    async def aclose(self) -> None:
        with suppress(httpx.HTTPError):
            if self._response is not None:
                await self._response.aclose()
        await self._client.aclose()
