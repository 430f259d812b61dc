"""What the gateway serves over HTTP: `/health` and `/metrics` for monitoring, and webhooks of channels under `/hooks/`.

Listens on loopback unless the config says otherwise.
"""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from nanobot.channels.webhooks import Webhooks
from nanobot.gateway.report import Report, metrics
from nanobot.net.http import is_loopback
from nanobot.net.http_server import HttpServer
from nanobot.utils.text import strict_json

if TYPE_CHECKING:
    from starlette.types import ASGIApp

_HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def gateway_server(host: str, port: int, report: Callable[[], Awaitable[Report]], webhooks: Webhooks) -> HttpServer:
    """The gateway's HTTP server."""
    return HttpServer(host, port, lambda: _make_app(host, report, webhooks), "Set gateway.port, or start with --port.")


def _make_app(host: str, report: Callable[[], Awaitable[Report]], webhooks: Webhooks) -> "ASGIApp":
    from starlette.applications import Starlette  # with the first request
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Route

    def local(page: Callable[[Report], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            if not _is_expected_host(host, request.headers.get("host", "")):
                return PlainTextResponse("Ask localhost, or set gateway.host.\n", 421, _HEADERS)
            return page(await report())

        return answer

    def health(report: Report) -> Response:
        status = 200 if report["status"] == "ok" else 503
        return Response(strict_json(report, indent=2) + "\n", status, _HEADERS, "application/json; charset=utf-8")

    def prometheus(report: Report) -> Response:
        text = metrics(report).encode("utf-8", "replace")
        return Response(text, 200, _HEADERS, "text/plain; version=0.0.4; charset=utf-8")

    return Starlette(
        routes=[
            Route("/health", local(health)),
            Route("/healthz", local(health)),
            Route("/metrics", local(prometheus)),
            webhooks.route("/hooks/{name}"),
        ]
    )


def _is_expected_host(own: str, host: str) -> bool:
    """Whether the Host header names this server; prevents DNS rebinding by web pages.

    Webhooks are exempt: a tunnel keeps its public name, and they authenticate their callers.
    """
    name = host.rpartition(":")[0] if re.search(r":\d*\Z", host) else host
    return not is_loopback(own) or name.lower() == own.lower() or is_loopback(name.strip("[]"))
