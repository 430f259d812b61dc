"""What the gateway serves over HTTP: `/health` and `/metrics` for monitoring, webhooks of channels, the page, the API.

Imported once the gateway is ready.
"""

from collections.abc import Iterator
from dataclasses import replace

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nanobot.api.answers import error_response
from nanobot.api.app import endpoints as api_endpoints
from nanobot.api.requests import ApiServices
from nanobot.channels.webhooks import Webhooks
from nanobot.gateway.health import metrics
from nanobot.security.credentials import Credential, CredentialKind, HttpRole
from nanobot.security.http_access import HEADERS, Endpoint, HttpAccess, Requires
from nanobot.utils.text import strict_json
from nanobot.webui.app import endpoints as web_endpoints
from nanobot.webui.services import WebServices


def make_app(host: str, services: WebServices, api: ApiServices, webhooks: Webhooks) -> Starlette:
    """The app of the gateway's port; `host` is the address it is served on."""
    access = _access(host, services)
    routes = [*access.routes(all_endpoints(services)), *_api_routes(access, api), webhooks.route("/hooks/{name}")]
    return Starlette(routes=routes)


def make_api_app(host: str, services: WebServices, api: ApiServices) -> Starlette:
    """The app of the API's own port."""
    return Starlette(routes=_api_routes(_access(host, services), api))


def _access(host: str, services: WebServices) -> HttpAccess:
    config = services.runtime.config
    hosts = frozenset(name.lower() for name in config.gateway.web.allowed_hosts)

    def api_keys() -> Iterator[tuple[str, Credential]]:
        yield config.api.token, Credential(CredentialKind.API_KEY, "", HttpRole.OWNER)
        for name, key in config.api.keys.items():
            yield key.token, Credential(CredentialKind.API_KEY, name, HttpRole(key.role), person=key.as_)

    return HttpAccess(services.credentials, host, hosts, api_keys)


def _api_routes(access: HttpAccess, api: ApiServices) -> list[Route]:
    config = api.runtime.config
    return replace(access, error=error_response, origins=lambda: config.api.allow_origins).routes(api_endpoints(api))


def all_endpoints(services: WebServices) -> list[Endpoint]:
    """The endpoints for monitoring and the page. Webhooks are none: a tunnel keeps its public name, and they
    authenticate their callers.
    """

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
