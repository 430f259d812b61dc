"""Webhooks: requests of platforms that push messages over HTTP. A channel registers a handler while it runs."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from nanobot.channels.errors import ChannelSetupError

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

log = logging.getLogger(__name__)

LARGEST_BODY = 1024 * 1024
TIMEOUT_S = 15.0
"""Teams waits that long, others less."""

WebhookHandler = Callable[[Mapping[str, str], bytes], Awaitable[int]]
"""Takes the headers (names in any case) and the body of a POST request. Returns the status, 200 once nothing can be
lost. Authenticates the sender itself: anybody may call a webhook.
"""


class Webhooks:
    def __init__(self) -> None:
        self._handlers: dict[str, WebhookHandler] = {}

    @contextmanager
    def serve(self, path: str, handler: WebhookHandler) -> Iterator[None]:
        """Answer POST requests for this path while the block runs. Raises ChannelSetupError if it is taken."""
        if path in self._handlers:
            raise ChannelSetupError(f"Another channel receives its messages at {path}; disable one of the two.")
        self._handlers[path] = handler
        try:
            yield
        finally:
            del self._handlers[path]

    def route(self, pattern: str) -> "Route":
        """The Starlette route whose paths are looked up here."""
        from starlette.routing import Route  # with the first request

        return Route(pattern, self._answer, methods=["POST"])

    async def _answer(self, request: "Request") -> "Response":
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        handler = self._handlers.get(request.url.path)
        if handler is None:
            return Response(status_code=404)
        body = bytearray()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                async for part in request.stream():
                    body += part
                    if len(body) > LARGEST_BODY:
                        return Response(status_code=413)
                return Response(status_code=await handler(request.headers, bytes(body)))
        except ClientDisconnect:
            return Response(status_code=400)
        except TimeoutError:
            log.warning("%s: a request took longer than %.0f s", request.url.path, TIMEOUT_S)
            return Response(status_code=503)
