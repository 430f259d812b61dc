"""The endpoints of the HTTP server: how they are written, and the check of each request before one runs.

An endpoint is a method of a `View`, marked with its method, its path and what it requires; nothing is served without
that. The Host header has to name this server, which stops DNS rebinding. A request that a browser sends for another
site is refused by Origin and Sec-Fetch-Site. Pages need the cookie of a paired device, programs a key.
"""

import asyncio
import hmac
import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError, create_model
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from nanobot.errors import NanobotError, StorageError
from nanobot.net import sse
from nanobot.net.http import is_loopback
from nanobot.security.credentials import Credential, CredentialKind, Credentials, HttpRole

M = TypeVar("M", bound=BaseModel)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
_MAX_FAILURES, _FAILURES_S, _MAX_ADDRESSES = 10, 60.0, 1000
_MAX_JSON = 2 * 1024 * 1024
"""Bytes of a body that is parsed."""
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")


def json_response(content: Any, status: int = 200) -> Response:
    """A JSON answer that nothing stores."""
    return JSONResponse(content, status, HEADERS)


def event_stream(events: AsyncIterator[bytes], headers: Mapping[str, str] = MappingProxyType({})) -> Response:
    """Server-sent events."""
    return StreamingResponse(events, media_type=sse.CONTENT_TYPE, headers={**sse.HEADERS, **headers})


class HttpError(NanobotError):
    """Ends a request with a status other than 400, which all other NanobotErrors have."""

    def __init__(
        self,
        status: int,
        text: str,
        *,
        code: str = "",
        param: str | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`code` and `param` (the field that is wrong) are for programs."""
        super().__init__(text)
        self.status = status
        self.code = code
        self.param = param
        self.headers = headers


def plain_error(error: HttpError) -> Response:
    """The answer of the page's endpoints: `{"error": TEXT}`."""
    return JSONResponse({"error": str(error)}, error.status, {**HEADERS, **error.headers})


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Read the body. Raises HttpError if it is larger."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise HttpError(413, f"The request is larger than {max_bytes >> 20} MB.")
    return bytes(body)


def validate(model: type[M], body: bytes) -> M:
    """Validate a JSON body. Raises HttpError."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = f"The request is not valid: {where}: {first['msg']}" if where else first["msg"]
        raise HttpError(400, text, code="invalid_value", param=where or None) from error


class Requires(Enum):
    """What an endpoint requires of a request, besides the right Host."""

    NOTHING = "nothing"
    SAME_ORIGIN = "same origin"
    """Nobody needs to be signed in, but no other site may send it."""
    DEVICE = "device"
    """The cookie of a paired browser; to change something, one with the role owner."""
    API_KEY = "API key"
    """`Authorization: Bearer KEY`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of the HTTP server and its handler. `handler` gets whose request it is; None if that does not matter."""

    path: str
    handler: Callable[[Request, Credential | None], Awaitable[Response]]
    requires: Requires
    methods: Sequence[str] = ("GET",)
    guest_may: bool = False
    """Whether a guest may call it; for API keys and, where it changes something, for devices."""
    error: Callable[[HttpError], Response] | None = None
    """How it writes errors, if not as the others of the server."""


@dataclass(frozen=True, slots=True)
class HttpAccess:
    """Decides about requests."""

    credentials: Credentials
    own_host: str
    """The configured host it listens on."""
    hosts: frozenset[str] = field(default_factory=frozenset)
    """Further names of this server, such as that of a proxy before it."""
    api_keys: Callable[[], Iterable[tuple[str, Credential]]] = lambda: ()
    """The keys of the config."""
    error: Callable[[HttpError], Response] = plain_error
    origins: Callable[[], Sequence[str]] = lambda: ()
    """Other sites whose pages may read the answers."""
    _failures: dict[str, list[float]] = field(default_factory=dict)
    """By address, the times of the last requests with a wrong key."""

    def routes(self, endpoints: Sequence[Endpoint]) -> list[Route]:
        """The endpoints as routes that check each request first."""
        return [Route(each.path, self._guarded(each), methods=[*each.methods]) for each in endpoints]

    def _guarded(self, endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
        write_error = endpoint.error or self.error

        async def answer(request: Request) -> Response:
            try:
                response = await endpoint.handler(request, await self._authenticate(endpoint, request))
            except HttpError as error:
                response = write_error(error)
            except NanobotError as error:
                response = write_error(HttpError(503 if isinstance(error, StorageError) else 400, str(error)))
            if (origin := request.headers.get("origin")) in self.origins():
                response.headers["Access-Control-Allow-Origin"] = str(origin)
                response.headers.add_vary_header("Origin")
            return response

        return answer

    async def _authenticate(self, endpoint: Endpoint, request: Request) -> Credential | None:
        """Whose request it is. Raises HttpError for one that the endpoint does not accept."""
        name = re.sub(r":\d*\Z", "", request.headers.get("host", "")).lower()
        is_local = is_loopback(self.own_host) and is_loopback(name.strip("[]"))
        if name not in (self.own_host.lower(), *self.hosts) and not is_local:
            raise HttpError(421, "Ask localhost, or set gateway.web.allowedHosts.")
        caller = None
        if endpoint.requires in (Requires.SAME_ORIGIN, Requires.DEVICE) and not _is_same_origin(request):
            raise HttpError(403, "Another site may not send this request.")
        if endpoint.requires is Requires.DEVICE:
            cookie = request.cookies.get(cookie_name(request), "")
            caller = await self.credentials.check(CredentialKind.DEVICE, cookie)
            if caller is None:
                raise HttpError(401, "Sign in with a link from `nanobot web`.")
        elif endpoint.requires is Requires.API_KEY:
            caller = await self._caller_of(request)
            if caller is None:
                raise self._unauthorized(request)
        only_looks = endpoint.requires is Requires.DEVICE and request.method in _SAFE_METHODS
        if caller is not None and caller.role is HttpRole.GUEST and not (endpoint.guest_may or only_looks):
            raise HttpError(403, "Only an owner may do that.")
        return caller

    def _unauthorized(self, request: Request) -> HttpError:
        """The answer to a wrong key; after too many of them from an address it has to wait."""
        address, now = request.client.host if request.client else "", time.monotonic()
        times = [at for at in self._failures.pop(address, []) if now - at < _FAILURES_S]
        self._failures[address] = [*times, now][-_MAX_FAILURES:]
        while len(self._failures) > _MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]
        if len(times) >= _MAX_FAILURES:
            wait = {"Retry-After": str(int(_FAILURES_S))}
            return HttpError(429, "Too many requests with a wrong key. Wait a minute.", headers=wait)
        problem = "This key is unknown or revoked" if "authorization" in request.headers else "A key is missing"
        return HttpError(
            401,
            f"{problem}. Send `Authorization: Bearer KEY`; make a key: nanobot api key add NAME",
            code="invalid_api_key",
            headers={"WWW-Authenticate": "Bearer"},
        )

    async def _caller_of(self, request: Request) -> Credential | None:
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            return None
        for token, caller in self.api_keys():
            if token and hmac.compare_digest(token.encode(), key.strip().encode()):
                return caller
        return await self.credentials.check(CredentialKind.API_KEY, key.strip())


def cookie_name(request: Request) -> str:
    """The cookie of a device. Its name has the port, since cookies do not."""
    port = urlsplit(f"//{request.headers.get('host', '')}").port
    return "__Host-nanobot" if request.url.scheme == "https" else f"nanobot_{port or 80}"


def _is_same_origin(request: Request) -> bool:
    """Whether a browser sends it for our own page. Sec-Fetch-Site is only sent to https and loopback addresses."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site not in (None, "same-origin", "none"):
        return False
    if request.method in _SAFE_METHODS:
        return True
    if origin is None:
        return False
    return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


H = TypeVar("H", bound=Callable[..., Any])
_MARK = "__nanobot_route__"


def route(
    methods: str,
    path: str,
    *,
    status: int = 200,
    changed: str = "",
    requires: Requires | None = None,
    guest_may: bool = False,
) -> Callable[[H], H]:
    """Mark a method of a View as the handler of a path, for these methods.

    Its arguments come by name: `request`, `caller`, `body` (parsed by its model), and all others from the path or the
    query. One that is not async runs in a thread. Its result is the JSON of the answer, unless it is a Response.
    `changed` is the topic published in the feed afterwards.
    """

    def mark(handler: H) -> H:
        def make(view: View, method: Callable[..., Any]) -> Endpoint:
            answer = _answering(view, method, status, changed)
            return Endpoint(path, answer, requires or view.requires, methods.split(), guest_may, view.error)

        setattr(handler, _MARK, make)
        return handler

    return mark


class View:
    """Some endpoints of the HTTP server."""

    requires: ClassVar[Requires] = Requires.DEVICE
    error: Callable[[HttpError], Response] | None = None
    """How it writes errors, if not as JSON."""

    def on_change(self, topic: str) -> None:
        """Called after a request that changed something."""

    def endpoints(self) -> list[Endpoint]:
        """The marked methods, in their order."""
        return [
            make(self, getattr(self, name))
            for name, member in vars(type(self)).items()
            if (make := getattr(member, _MARK, None)) is not None
        ]


def _answering(view: View, handler: Callable[..., Any], status: int, changed: str) -> Callable[..., Any]:
    parameters = inspect.signature(handler).parameters
    given = {"request", "caller", "body"} & parameters.keys()
    body_model: type[BaseModel] | None = parameters["body"].annotation if "body" in parameters else None
    fields: dict[str, Any] = {
        name: (parameter.annotation, ... if parameter.default is parameter.empty else parameter.default)
        for name, parameter in parameters.items()
        if name not in given
    }
    arguments = create_model("Arguments", **fields) if fields else None

    @wraps(handler)
    async def answer(request: Request, caller: Credential | None) -> Response:
        texts = {**request.query_params, **request.path_params}
        found = dict(validate(arguments, json.dumps(texts).encode())) if arguments is not None else {}
        body = validate(body_model, await read_body(request, _MAX_JSON)) if body_model is not None else None
        known = {"request": request, "caller": caller, "body": body}
        call = partial(handler, **found, **{name: known[name] for name in given})
        result = await (call() if inspect.iscoroutinefunction(handler) else asyncio.to_thread(call))
        if changed:
            view.on_change(changed)
        return result if isinstance(result, Response) else json_response(result, status)

    return answer
