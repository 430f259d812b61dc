"""The endpoints of the page: signing in, the feed, what runs, what waits for the owner, people, browsers, and those of
each other view.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import ReasoningDelta, TextDelta
from nanobot.agent.feed import FeedItem
from nanobot.agent.goals.goal import Goal
from nanobot.agent.work import WorkState, read_work
from nanobot.net import sse
from nanobot.pairing.commands import PairingCommands
from nanobot.security.credentials import DEVICE_S, Credential, CredentialKind
from nanobot.security.http_access import Endpoint, HttpError, Requires, cookie_name, event_stream, json_response, route
from nanobot.utils.qr_code import qr_rows
from nanobot.webui.channels import ChannelsView
from nanobot.webui.chat import ChatView
from nanobot.webui.jobs import JobsView
from nanobot.webui.memory import MemoryView
from nanobot.webui.pages import PlainView, StaticFiles
from nanobot.webui.services import WebServices
from nanobot.webui.sessions import SessionsView
from nanobot.webui.settings import SettingsView
from nanobot.webui.view import WebView

_BATCH_S = 0.03
"""Deltas of this time are sent together: a screen shows no more."""


def endpoints(services: WebServices) -> list[Endpoint]:
    static, chat = StaticFiles(), ChatView(services)
    views: list[WebView] = [PlainView(services, static, chat), PageView(services, chat), chat]
    views += [SessionsView(services, chat), MemoryView(services)]
    views += [JobsView(services), SettingsView(services), ChannelsView(services)]
    return [*static.endpoints(), *(endpoint for view in views for endpoint in view.endpoints())]


class _Link(BaseModel):
    key: str


class _Person(BaseModel):
    channel: str
    sender: str


class _Approval(BaseModel):
    owner: bool = False


class PageView(WebView):
    """Signing in, the feed, the inbox, Now, people and devices."""

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

    @route("GET", "/api/now")
    async def now(self) -> Any:
        """The health report, the running and waiting turns, the next jobs, and the money spent."""
        usage, jobs = await self._usage(), await asyncio.to_thread(self.runtime.cron().list_jobs)
        return {
            "report": await self.services.report(),
            "turns": [view.to_json() for view in self.feed.views()],
            "jobs": [
                {"id": job.id, "name": job.name, "next_ms": job.state.next_run_at_ms}
                for job in jobs[:5]
                if job.state.next_run_at_ms is not None
            ],
            "usage": {name: usage[name] for name in ("today", "month", "limits")},
        }

    @route("GET", "/api/inbox")
    async def inbox(self) -> Any:
        """Everything that waits for the owner. `approvals` are questions as in the feed."""
        report, usage = await self.services.report(), await self._usage()
        goals = await asyncio.to_thread(read_work, self.paths.database, Goal)
        pairing, now = await asyncio.to_thread(self.runtime.pairing.load), self.runtime.pairing.now()
        return {
            "approvals": [
                {**part, "session": view.session, "channel": view.channel}
                for view in self.feed.views()
                for part in view.parts
                if part["type"] == "approval" and "answer" not in part
            ],
            "pairing": [asdict(pending) for pending in pairing.pending.values() if pending.is_valid(now)],
            "goals": [_shown_goal(goal) for goal in goals if goal.state in (WorkState.ASKING, WorkState.WAITING)],
            "limits": [name for name, left in usage["limits"].items() if name.startswith("left") and left == 0],
            "problems": report["problems"],
            "dead_letters": report["deadLetters"],
        }

    async def _usage(self) -> dict[str, Any]:
        return (await self.runtime.spending.report("day", 1)).to_json()

    @route("GET", "/api/goals")
    def goals(self) -> Any:
        return {"goals": [_shown_goal(goal) for goal in read_work(self.paths.database, Goal)]}

    @route("GET", "/api/people")
    def people(self) -> Any:
        """Who is paired, by channel."""
        paired = self.runtime.pairing.load().paired()
        return {
            "people": [
                {"channel": each.channel, "sender": each.sender_id, "name": each.name, "owner": each.is_owner}
                for each in paired
            ]
        }

    @route("POST", "/api/people/revoke", changed="inbox")
    def revoke(self, body: _Person) -> Any:
        self.runtime.pairing.revoke(body.channel, body.sender)
        return {"revoked": body.sender}

    @route("POST", "/api/pairing/{code}/approve", changed="inbox")
    async def approve(self, code: str, body: _Approval) -> Any:
        """Let the person with this code talk to the bot, as its owner or not. They are told."""
        commands = PairingCommands(self.runtime.pairing, self.runtime.bus)
        pending = await commands.approve(code, owner=body.owner)
        return {"channel": pending.channel, "sender": pending.sender_id}

    @route("POST", "/api/pairing/{code}/deny", changed="inbox")
    def deny(self, code: str) -> Any:
        pending = self.runtime.pairing.deny(code)
        return {"channel": pending.channel, "sender": pending.sender_id}

    @route("GET", "/api/devices")
    async def devices(self, caller: Credential) -> Any:
        """The signed-in browsers; `current` is the one that asks."""
        devices = await self.services.credentials.list(CredentialKind.DEVICE)
        return {
            "devices": [
                {"name": each.name, "role": each.role, "used_at": each.used_at, "current": each.name == caller.name}
                for each in devices
            ]
        }

    @route("POST", "/api/devices", status=201)
    async def new_link(self) -> Any:
        """A one-time link for another browser, such as a phone's, with the rows of its QR code."""
        url = await self.services.new_link()
        return {"url": url, "qr": qr_rows(url)}

    @route("DELETE", "/api/devices/{name:path}")
    async def sign_out(self, name: str) -> Any:
        if not await self.services.credentials.revoke(CredentialKind.DEVICE, name):
            raise HttpError(404, "There is no such device.")
        return {"signed_out": name}


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


def _shown_goal(goal: Goal) -> dict[str, Any]:
    return {
        "id": goal.id,
        "session_key": goal.session_key,
        "text": goal.order.text,
        "state": goal.state,
        "why": goal.why,
        "limits": asdict(goal.limits),
        **asdict(goal.usage),
        "note": asdict(goal.progress.note),
        "objections": goal.progress.objections,
        "created_at": goal.created_at,
        "spent": goal.spent,
    }
