"""How the endpoints of the page and of the API are written: methods of a View, each marked with its method and path."""

import asyncio
import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, create_model
from starlette.requests import Request
from starlette.responses import Response

from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json, validate

H = TypeVar("H", bound=Callable[..., Any])
_MARK = "__nanobot_route__"


@dataclass(frozen=True, slots=True)
class _Route:
    methods: tuple[str, ...]
    path: str
    status: int
    changed: str
    requires: Requires | None
    guest_may: bool


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
        setattr(handler, _MARK, _Route(tuple(methods.split()), path, status, changed, requires, guest_may))
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
            Endpoint(
                route.path,
                self._answering(route, getattr(self, name)),
                route.requires or self.requires,
                route.methods,
                route.guest_may,
                self.error,
            )
            for name, member in vars(type(self)).items()
            if (route := getattr(member, _MARK, None)) is not None
        ]

    def _answering(self, route: _Route, handler: Callable[..., Any]) -> Callable[..., Any]:
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
            body = await read_json(request, body_model) if body_model is not None else None
            known = {"request": request, "caller": caller, "body": body}
            call = partial(handler, **found, **{name: known[name] for name in given})
            result = await (call() if inspect.iscoroutinefunction(handler) else asyncio.to_thread(call))
            if route.changed:
                self.on_change(route.changed)
            return result if isinstance(result, Response) else json_response(result, route.status)

        return answer
