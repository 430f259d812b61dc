"""httpx, imported on first use: clients, and the reason of a failed connection."""

import ssl
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from nanobot.net.connection import KEEP_ALIVE_S
from nanobot.utils.storage_error import os_reason

if TYPE_CHECKING:
    import httpx


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
