"""The endpoints of the page: signing in, the feed, and those of each view."""

import asyncio
from collections.abc import AsyncIterator

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nanobot.agent.events import ReasoningDelta, TextDelta
from nanobot.agent.feed import FeedItem
from nanobot.net import sse
from nanobot.security.credentials import DEVICE_S, Credential, CredentialKind
from nanobot.security.http_access import Endpoint, HttpError, Requires, cookie_name, json_response, read_json
from nanobot.webui.channels import ChannelEndpoints
from nanobot.webui.chat import ChatEndpoints
from nanobot.webui.files import FileEndpoints
from nanobot.webui.jobs import JobEndpoints
from nanobot.webui.memory import MemoryEndpoints
from nanobot.webui.overview import OverviewEndpoints
from nanobot.webui.services import WebServices
from nanobot.webui.sessions import SessionEndpoints
from nanobot.webui.settings import SettingsEndpoints
from nanobot.webui.static_files import StaticFiles
from nanobot.webui.turns import TurnEndpoints

_BATCH_S = 0.03
"""Deltas of this time are sent together: a screen shows no more."""


def endpoints(services: WebServices) -> list[Endpoint]:
    """All endpoints of the page."""
    files = FileEndpoints(services)
    chat = ChatEndpoints(services, files)
    return [
        *StaticFiles().endpoints(),
        *PageEndpoints(services, chat).endpoints(),
        *chat.endpoints(),
        *files.endpoints(),
        *SessionEndpoints(services).endpoints(),
        *OverviewEndpoints(services).endpoints(),
        *MemoryEndpoints(services).endpoints(),
        *JobEndpoints(services).endpoints(),
        *TurnEndpoints(services).endpoints(),
        *SettingsEndpoints(services).endpoints(),
        *ChannelEndpoints(services).endpoints(),
    ]


class _Link(BaseModel):
    key: str


class PageEndpoints:
    """Signing in, and the feed."""

    def __init__(self, services: WebServices, chat: ChatEndpoints) -> None:
        self._services = services
        self._chat = chat

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/pair", self.pair, Requires.SAME_ORIGIN, ("POST",)),
            Endpoint("/api/me", self.me, Requires.DEVICE),
            Endpoint("/api/feed", self.feed, Requires.DEVICE),
        ]

    async def pair(self, request: Request, caller: Credential | None) -> Response:
        """Exchange the secret of a one-time link for the cookie of this browser."""
        link = await read_json(request, _Link)
        secret = await self._services.credentials.use_link(link.key, request.headers.get("user-agent", "browser")[:120])
        if secret is None:
            raise HttpError(403, "This link was used or is too old. Get a new one: nanobot web")
        response = json_response({"paired": True})
        response.set_cookie(
            cookie_name(request),
            secret,
            max_age=int(DEVICE_S),
            httponly=True,
            secure=request.url.scheme == "https",
            samesite="strict",
        )
        return response

    async def me(self, request: Request, caller: Credential | None) -> Response:
        assert caller is not None  # noqa: S101 a device is required
        return json_response(
            {
                "device": caller.name,
                "role": caller.role,
                "name": self._services.runtime.config.agents.defaults.bot_title,
            }
        )

    async def feed(self, request: Request, caller: Credential | None) -> Response:
        """The feed from a position on, or from now; `reset` tells a client to load anew."""
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        assert caller is not None  # noqa: S101 a device is required
        return StreamingResponse(self._stream(after, caller.name), media_type=sse.CONTENT_TYPE, headers=sse.HEADERS)

    async def _stream(self, after: str, device: str) -> AsyncIterator[bytes]:
        """Ends when the device was signed out, at the latest with the next ping."""
        feed, clock = self._services.feed, asyncio.get_running_loop().time
        yield b"retry: 1000\n\n"
        checked_at = clock()
        async for items in feed.follow(after, ping_s=sse.PING_S, batch_s=_BATCH_S):
            if items is None:
                yield sse.event({}, event_id=feed.cursor, name="reset")
            else:
                yield b"".join(self._frame(group) for group in _join_deltas(items)) or sse.PING
            if clock() - checked_at >= sse.PING_S:
                devices, checked_at = await self._services.credentials.list(CredentialKind.DEVICE), clock()
                if device not in {known.name for known in devices}:
                    return

    def _frame(self, items: list[FeedItem]) -> bytes:
        """Items as an event. Joined deltas have a list of their texts, so that a reader can skip those it has."""
        item = items[-1]
        event = self._chat.event(item.event.to_json())
        if len(items) > 1:
            event["text"] = [getattr(item.event, "text", "") for item in items]
        data = {"session": item.session, "channel": item.channel, "event": event}
        return sse.event(data, event_id=self._services.feed.cursor_at(item.position), name="turn")


def _join_deltas(items: list[FeedItem]) -> list[list[FeedItem]]:
    """Group neighbouring deltas of the same kind and turn; others stay alone."""
    groups: list[list[FeedItem]] = []
    for item in items:
        before = groups[-1][-1].event if groups else None
        is_delta = isinstance(item.event, TextDelta | ReasoningDelta)
        if is_delta and type(before) is type(item.event) and before.turn_id == item.event.turn_id:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups
