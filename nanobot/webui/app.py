"""The endpoints of the page: signing in, the feed, and those of each view."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import ReasoningDelta, TextDelta
from nanobot.agent.feed import FeedItem
from nanobot.net import sse
from nanobot.security.credentials import DEVICE_S, Credential, CredentialKind
from nanobot.security.http_access import Endpoint, HttpError, Requires, cookie_name, event_stream, json_response, route
from nanobot.webui.channels import ChannelsView
from nanobot.webui.chat import ChatView
from nanobot.webui.files import FilesView
from nanobot.webui.jobs import JobsView
from nanobot.webui.memory import MemoryView
from nanobot.webui.overview import OverviewView
from nanobot.webui.plain import PlainView
from nanobot.webui.services import WebServices
from nanobot.webui.sessions import SessionsView
from nanobot.webui.settings import SettingsView
from nanobot.webui.static_files import StaticFiles
from nanobot.webui.turns import TurnsView
from nanobot.webui.view import WebView

_BATCH_S = 0.03
"""Deltas of this time are sent together: a screen shows no more."""


def endpoints(services: WebServices) -> list[Endpoint]:
    """All endpoints of the page."""
    static, files = StaticFiles(), FilesView(services)
    chat = ChatView(services, files)
    views: list[WebView] = [PlainView(services, static, chat), PageView(services, chat), chat, files]
    views += [TurnsView(services, chat), SessionsView(services), OverviewView(services), MemoryView(services)]
    views += [JobsView(services), SettingsView(services), ChannelsView(services)]
    return [*static.endpoints(), *(endpoint for view in views for endpoint in view.endpoints())]


class _Link(BaseModel):
    key: str


class PageView(WebView):
    """Signing in, and the feed."""

    def __init__(self, services: WebServices, chat: ChatView) -> None:
        super().__init__(services)
        self._chat = chat

    @route("POST", "/api/pair", requires=Requires.SAME_ORIGIN)
    async def pair(self, request: Request, body: _Link) -> Response:
        """Exchange the secret of a one-time link for the cookie of this browser."""
        browser = request.headers.get("user-agent", "browser")[:120]
        secret = await self.services.credentials.use_link(body.key, browser)
        if secret is None:
            raise HttpError(403, "This link was used or is too old. Get a new one: nanobot web")
        response, is_https = json_response({"paired": True}), request.url.scheme == "https"
        response.set_cookie(
            cookie_name(request), secret, max_age=int(DEVICE_S), httponly=True, secure=is_https, samesite="strict"
        )
        return response

    @route("GET", "/api/me")
    async def me(self, caller: Credential) -> Any:
        return {"device": caller.name, "role": caller.role, "name": self.runtime.config.agents.defaults.bot_title}

    @route("GET", "/api/feed")
    async def follow(self, request: Request, caller: Credential, after: str = "") -> Response:
        """The feed from a position on, or from now; `reset` tells a client to load anew."""
        return event_stream(self._stream(request.headers.get("last-event-id") or after, caller.name))

    async def _stream(self, after: str, device: str) -> AsyncIterator[bytes]:
        """Ends when the device was signed out, at the latest with the next ping."""
        clock = asyncio.get_running_loop().time
        yield b"retry: 1000\n\n"
        checked_at = clock()
        async for items in self.feed.follow(after, ping_s=sse.PING_S, batch_s=_BATCH_S):
            if items is None:
                yield sse.event({}, event_id=self.feed.cursor, name="reset")
            else:
                yield b"".join(self._frame(group) for group in _join_deltas(items)) or sse.PING
            if clock() - checked_at >= sse.PING_S:
                devices, checked_at = await self.services.credentials.list(CredentialKind.DEVICE), clock()
                if device not in {known.name for known in devices}:
                    return

    def _frame(self, items: list[FeedItem]) -> bytes:
        """Items as an event. Joined deltas have a list of their texts, so that a reader can skip those it has."""
        item = items[-1]
        event = self._chat.event(item.event.to_json())
        if len(items) > 1:
            event["text"] = [getattr(item.event, "text", "") for item in items]
        data = {"session": item.session, "channel": item.channel, "event": event}
        return sse.event(data, event_id=self.feed.cursor_at(item.position), name="turn")


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
