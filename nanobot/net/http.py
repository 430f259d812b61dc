"""What all HTTP clients share: decompression, TLS contexts, proxies, and httpx on first use."""

import asyncio
import ipaddress
import os
import ssl
import sys
import zlib
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    import httpx


KEEP_ALIVE_S = 55.0
"""How long to keep an idle connection: most servers close theirs after a minute."""
ACCEPT_ENCODING = "gzip, deflate"
"""The encodings to request: those that `Decoder` knows."""
_DECODED_BYTES = 64 * 1024


class HttpError(Exception):
    """No response, or no more of it. The text is the system's reason."""


class BodyError(HttpError):
    """The body does not match the response's headers."""


class Decoder:
    """Decompresses a body with this Content-Encoding piece by piece, so that a compression bomb never fills the memory.

    Raises BodyError, also for an encoding that was not requested.
    """

    def __init__(self, encoding: str = "") -> None:
        self._encoding = encoding.strip().lower()
        if self._encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
            raise BodyError(f"the response is compressed as {self._encoding[:40]}, which was not requested")
        self._zlib = None if self._encoding in ("", "identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._started = False

    def chunks(self, data: bytes) -> Iterator[bytes]:
        """Decode more of the body, in chunks of at most 64 kB."""
        if self._zlib is None:
            yield data
            return
        while data:
            if self._zlib.eof:  # concatenated members form one body
                self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 32)
            try:
                chunk = self._zlib.decompress(data, _DECODED_BYTES)
            except zlib.error as error:
                if self._started or self._encoding != "deflate":
                    raise BodyError(f"the response is not valid {self._encoding}: {error}") from None
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)  # some servers send raw deflate data
                self._started = True
                continue
            self._started = True
            data = self._zlib.unused_data if self._zlib.eof else self._zlib.unconsumed_tail
            if chunk:
                yield chunk


def verifying_context() -> ssl.SSLContext:
    """A new TLS context that trusts the usual certificate authorities. Takes 20 ms."""
    import certifi  # only TLS needs it

    folder = os.environ.get("SSL_CERT_DIR")  # set where a company has its own root certificate
    file = os.environ.get("SSL_CERT_FILE") or (None if folder else certifi.where())
    return ssl.create_default_context(cafile=file, capath=folder)


@cache
def https_context() -> ssl.SSLContext:
    """The shared context for https URLs. Blocks the first time."""
    context = verifying_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


@cache
def _plain_context() -> ssl.SSLContext:
    # For http URLs: httpx requires a context anyway, and this one loads no certificates.
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


async def ssl_context(url: str) -> ssl.SSLContext:
    """The shared context for this kind of URL. Loading the certificates takes 20 ms, so it runs once, in a thread."""
    if urlsplit(url).scheme != "https":
        return _plain_context()
    return await asyncio.to_thread(https_context)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, judged by its spelling alone (no DNS)."""
    name = host.lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_for(url: str, proxy: str | None = None) -> str | None:
    """The proxy for this URL: none for this machine, else the given one, else that of the environment."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if is_loopback(host):
        return None
    if proxy:
        return proxy
    from urllib.request import getproxies, proxy_bypass  # slow import; `prepare` has loaded it already

    proxies = getproxies()
    chosen = proxies.get(parts.scheme) or proxies.get("all")
    return None if chosen is None or proxy_bypass(host) else chosen


def load_httpx() -> None:
    """Import httpx without its command line, which needs click and Rich: a third of the 100 ms."""
    if "httpx" in sys.modules:
        return
    stub = ModuleType("httpx._main")
    stub.__dict__["main"] = lambda: None
    sys.modules.setdefault("httpx._main", stub)
    import httpx  # noqa: F401 imported for its side effect

    if sys.modules.get("httpx._main") is stub:
        del sys.modules["httpx._main"]  # an embedding program that wants it gets the real one


def new_client(context: ssl.SSLContext, proxy: str | None) -> "httpx.AsyncClient":
    """A client for one call at a time. Follows no redirects and ignores the environment."""
    load_httpx()
    import httpx

    transport = httpx.AsyncHTTPTransport(
        verify=context,
        trust_env=False,
        proxy=proxy,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=KEEP_ALIVE_S),
    )
    # Each call sets its own timeouts.
    return httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113


def connection_error_reason(error: BaseException) -> str:
    """Why an httpx connection failed, from the system's error, which httpx wraps in several causes."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 6:
        causes.append(cause)
    return os_reason(next((cause for cause in reversed(causes) if isinstance(cause, OSError) and str(cause)), error))
