"""httpx: loaded when it is needed, its clients, and why a connection of theirs failed."""

import ssl
import sys
from types import ModuleType
from typing import TYPE_CHECKING

from nanobot.utils.connection import KEEP_ALIVE_S

if TYPE_CHECKING:
    import httpx


def load_httpx() -> None:
    """Import httpx, without its command line: that brings click and Rich and is a third of the 100 ms it takes."""
    if "httpx" not in sys.modules:
        nothing = ModuleType("httpx._main")
        nothing.__dict__["main"] = lambda: None
        sys.modules.setdefault("httpx._main", nothing)
    import httpx  # noqa: F401 the import is the point


def new_client(context: ssl.SSLContext, proxy: str | None) -> "httpx.AsyncClient":
    """A client for a call at a time. Follows no redirects, reads nothing from the environment by itself."""
    load_httpx()
    import httpx

    transport = httpx.AsyncHTTPTransport(
        verify=context,
        trust_env=False,
        proxy=proxy,
        limits=httpx.Limits(max_connections=4, max_keepalive_connections=2, keepalive_expiry=KEEP_ALIVE_S),
    )
    # Each call brings its own limits.
    return httpx.AsyncClient(transport=transport, trust_env=False, timeout=None)  # noqa: S113


def reason_of(error: BaseException) -> str:
    """Why a connection of httpx failed: the words of the system, which the library keeps two causes down."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 6:
        causes.append(cause)
    said = next((str(cause) for cause in reversed(causes) if isinstance(cause, OSError) and str(cause)), "")
    return said or str(error) or type(error).__name__
