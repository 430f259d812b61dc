"""What the gateway serves over HTTP: `/health` and `/metrics` for monitoring, webhooks of channels, the page, the API.

Imported with the first request.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from nanobot.channels.webhooks import Webhooks
from nanobot.gateway.report import metrics
from nanobot.security.credentials import Credential
from nanobot.security.http_access import HEADERS, Endpoint, HttpAccess, Requires
from nanobot.utils.text import strict_json
from nanobot.webui.app import endpoints as web_endpoints
from nanobot.webui.services import WebServices


def make_app(host: str, services: WebServices, webhooks: Webhooks) -> Starlette:
    """The app; `host` is the address it is served on."""
    web = services.runtime.config.gateway.web
    access = HttpAccess(services.credentials, host, frozenset(name.lower() for name in web.allowed_hosts))
    return Starlette(routes=[*access.routes(all_endpoints(services)), webhooks.route("/hooks/{name}")])


def all_endpoints(services: WebServices) -> list[Endpoint]:
    """Every endpoint but the webhooks: a tunnel keeps its public name, and they authenticate their callers."""

    async def health(request: Request, caller: Credential | None) -> Response:
        report = await services.report()
        status = 200 if report["status"] == "ok" else 503
        return Response(strict_json(report, indent=2) + "\n", status, HEADERS, "application/json; charset=utf-8")

    async def prometheus(request: Request, caller: Credential | None) -> Response:
        text = metrics(await services.report()).encode("utf-8", "replace")
        return Response(text, 200, HEADERS, "text/plain; version=0.0.4; charset=utf-8")

    monitoring = [
        Endpoint("/health", health, Requires.NOTHING),
        Endpoint("/healthz", health, Requires.NOTHING),
        Endpoint("/metrics", prometheus, Requires.NOTHING),
    ]
    return [*monitoring, *(web_endpoints(services) if services.runtime.config.gateway.web.enabled else ())]
