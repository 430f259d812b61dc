"""A connection by way of a proxy. httpx knows the kinds of proxies, and how to speak through them."""

import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import httpx

from nanobot.utils.clients import new_client, reason_of
from nanobot.utils.connection import BodyError, HttpError, Place


class ProxiedConnection:
    """A `Connection`, made by `open`: a client that has one."""

    def __init__(self, client: httpx.AsyncClient, place: Place, connect_s: float) -> None:
        self.place = place
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.usable = True
        self._client = client
        self._connect_s = connect_s
        self._response: httpx.Response | None = None
        self._body: AsyncIterator[bytes] | None = None

    @classmethod
    def open(cls, place: Place, proxy: str, context: ssl.SSLContext, connect_s: float) -> "ProxiedConnection":
        """Get ready; the first request connects. Raises HttpError."""
        try:
            return cls(new_client(context, proxy), place, connect_s)
        except (ImportError, ValueError) as error:  # no such kind of proxy, or a package that it takes is missing
            raise HttpError(str(error)) from None

    async def post(self, headers: Mapping[str, str], body: bytes) -> None:
        """As the port says."""
        self.usable = False
        timeout = httpx.Timeout(None, connect=self._connect_s)
        try:
            request = self._client.build_request(
                "POST", self.place.url, content=body, headers=dict(headers), timeout=timeout
            )
        except (TypeError, ValueError) as error:
            raise HttpError(f"the request cannot be built: {type(error).__name__}") from None
        try:
            response = await self._client.send(request, stream=True)
        except httpx.ConnectTimeout:
            raise HttpError(f"no connection within {self._connect_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise HttpError(reason_of(error)) from None
        self.status, self.headers = response.status_code, response.headers
        self._response, self._body = response, response.aiter_bytes()

    async def read(self) -> bytes:
        """As the port says."""
        if self._body is None:
            return b""
        try:
            piece = await anext(self._body, b"")
        except httpx.DecodingError as error:
            raise BodyError(reason_of(error)) from None
        except httpx.HTTPError as error:
            raise HttpError(reason_of(error)) from None
        self.usable = not piece
        return piece

    async def aclose(self) -> None:
        """Hang up."""
        with suppress(httpx.HTTPError):
            if self._response is not None:
                await self._response.aclose()
        await self._client.aclose()
