"""Health over HTTP: `/health` as JSON with status 200 or 503, `/metrics` for Prometheus.

Connections, request sizes and times are limited. Listens on loopback unless the config says otherwise.
"""

import asyncio
import errno
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress

import h11

from nanobot.gateway.listener import Listener
from nanobot.gateway.report import Report, metrics
from nanobot.net.http import is_loopback
from nanobot.utils.storage_error import os_reason
from nanobot.utils.text import strict_json

MAX_CONNECTIONS = 16
TIMEOUT_S = 5.0
_MAX_HEAD = 8 * 1024


class HealthServer(Listener):
    """The HTTP server of the health endpoint."""

    _problem_format = "health is not served: %s"

    def __init__(self, host: str, port: int, report: Callable[[], Awaitable[Report]]) -> None:
        super().__init__()
        self._host = host
        self._configured_port = port
        self._report = report
        self._connections = 0

    @property
    def port(self) -> int | None:
        """The port it listens on; None if it does not."""
        return self._server.sockets[0].getsockname()[1] if self._server is not None and self._server.sockets else None

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._answer, self._host, self._configured_port, limit=_MAX_HEAD)

    def _problem_of(self, error: OSError) -> str:
        reason = (
            "is used by another program" if error.errno == errno.EADDRINUSE else f"cannot be opened: {os_reason(error)}"
        )
        return f"{self._host}:{self._configured_port} {reason}. Set gateway.port, or start with --port."

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                if self._connections <= MAX_CONNECTIONS:
                    await self._serve(reader, writer)
        except (OSError, TimeoutError, h11.ProtocolError):
            pass  # the client left, was too slow, or sent no HTTP
        finally:
            self._connections -= 1
            with suppress(OSError):
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        http = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD)
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(_MAX_HEAD))
        if not isinstance(event, h11.Request):
            return
        host = next((value.decode("latin-1") for name, value in event.headers if name == b"host"), "")
        if self._is_expected_host(host):
            status, kind, body = await self._page(event.method, event.target.partition(b"?")[0])
        else:
            status, kind, body = 421, "text/plain; charset=utf-8", b"Ask localhost, or set gateway.host.\n"
        head = [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Connection", "close"),
        ]
        answer = http.send(h11.Response(status_code=status, headers=head))
        if event.method != b"HEAD":
            answer = (answer or b"") + (http.send(h11.Data(data=body)) or b"")
        writer.write(answer or b"")
        await writer.drain()

    def _is_expected_host(self, host: str) -> bool:
        """Whether the Host header names this server; prevents DNS rebinding by web pages."""
        name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
        return not is_loopback(self._host) or name.lower() == self._host.lower() or is_loopback(name.strip("[]"))

    async def _page(self, method: bytes, path: bytes) -> tuple[int, str, bytes]:
        if method not in (b"GET", b"HEAD"):
            return 405, "text/plain; charset=utf-8", b"Only GET is answered here.\n"
        if path not in (b"/health", b"/healthz", b"/metrics"):
            return 404, "text/plain; charset=utf-8", b"There is /health and /metrics.\n"
        report = await self._report()
        if path == b"/metrics":
            return 200, "text/plain; version=0.0.4; charset=utf-8", metrics(report).encode("utf-8", "replace")
        body = strict_json(report, indent=2) + "\n"
        return 200 if report["status"] == "ok" else 503, "application/json; charset=utf-8", body.encode()
