"""What runs, what waits for the owner, who may talk, and which browsers are signed in."""

import asyncio
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.goals.goal import Goal
from nanobot.agent.work import WorkState, read_work
from nanobot.config.paths import DataPaths
from nanobot.pairing.commands import PairingCommands
from nanobot.security.credentials import Credential, CredentialKind
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.utils.qr_code import qr_rows
from nanobot.webui.services import WebServices


class _Approval(BaseModel):
    owner: bool = False


class _Person(BaseModel):
    channel: str
    sender: str


class OverviewEndpoints:
    """The endpoints of the inbox, of Now, of people and of devices."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        self._places = DataPaths(services.runtime.data_dir)

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/now", self.now, Requires.DEVICE),
            Endpoint("/api/inbox", self.inbox, Requires.DEVICE),
            Endpoint("/api/goals", self.goals, Requires.DEVICE),
            Endpoint("/api/people", self.people, Requires.DEVICE),
            Endpoint("/api/people/revoke", self.revoke, Requires.DEVICE, ("POST",)),
            Endpoint("/api/pairing/{code}/approve", self.approve, Requires.DEVICE, ("POST",)),
            Endpoint("/api/pairing/{code}/deny", self.deny, Requires.DEVICE, ("POST",)),
            Endpoint("/api/devices", self.devices, Requires.DEVICE),
            Endpoint("/api/devices", self.new_link, Requires.DEVICE, ("POST",)),
            Endpoint("/api/devices/{name:path}", self.sign_out, Requires.DEVICE, ("DELETE",)),
        ]

    async def now(self, request: Request, caller: Credential | None) -> Response:
        """The health report, the running and waiting turns, the next jobs, and the money spent."""
        runtime = self._services.runtime
        report, usage = await self._services.report(), await self._usage()
        jobs = await asyncio.to_thread(runtime.cron().list_jobs)
        return json_response(
            {
                "report": report,
                "turns": [view.to_json() for view in self._services.feed.views()],
                "jobs": [
                    {"id": job.id, "name": job.name, "next_ms": job.state.next_run_at_ms}
                    for job in jobs[:5]
                    if job.state.next_run_at_ms is not None
                ],
                "usage": {name: usage[name] for name in ("today", "month", "limits")},
            }
        )

    async def inbox(self, request: Request, caller: Credential | None) -> Response:
        """Everything that waits for the owner. `approvals` are questions as in the feed."""
        report, pairing = await self._services.report(), await asyncio.to_thread(self._services.runtime.pairing.load)
        now, usage = self._services.runtime.pairing.now(), await self._usage()
        goals = await asyncio.to_thread(read_work, self._places.database, Goal)
        return json_response(
            {
                "approvals": [
                    {**part, "session": view.session, "channel": view.channel}
                    for view in self._services.feed.views()
                    for part in view.parts
                    if part["type"] == "approval" and "answer" not in part
                ],
                "pairing": [asdict(pending) for pending in pairing.pending.values() if pending.is_valid(now)],
                "goals": [_shown_goal(goal) for goal in goals if goal.state in (WorkState.ASKING, WorkState.WAITING)],
                "limits": [name for name, left in usage["limits"].items() if name.startswith("left") and left == 0],
                "problems": report["problems"],
                "dead_letters": report["deadLetters"],
            }
        )

    async def goals(self, request: Request, caller: Credential | None) -> Response:
        goals = await asyncio.to_thread(read_work, self._places.database, Goal)
        return json_response({"goals": [_shown_goal(goal) for goal in goals]})

    async def people(self, request: Request, caller: Credential | None) -> Response:
        """Who is paired, by channel."""
        state = await asyncio.to_thread(self._services.runtime.pairing.load)
        people = [
            {"channel": paired.channel, "sender": paired.sender_id, "name": paired.name, "owner": paired.is_owner}
            for paired in state.paired()
        ]
        return json_response({"people": people})

    async def revoke(self, request: Request, caller: Credential | None) -> Response:
        person = await read_json(request, _Person)
        await asyncio.to_thread(self._services.runtime.pairing.revoke, person.channel, person.sender)
        self._services.feed.changed("inbox")
        return json_response({"revoked": person.sender})

    async def approve(self, request: Request, caller: Credential | None) -> Response:
        """Let the person with this code talk to the bot, as its owner or not. They are told."""
        approval, code = await read_json(request, _Approval), request.path_params["code"]
        commands = PairingCommands(self._services.runtime.pairing, self._services.runtime.bus)
        pending = await commands.approve(code, owner=approval.owner)
        self._services.feed.changed("inbox")
        return json_response({"channel": pending.channel, "sender": pending.sender_id})

    async def deny(self, request: Request, caller: Credential | None) -> Response:
        pending = await asyncio.to_thread(self._services.runtime.pairing.deny, request.path_params["code"])
        self._services.feed.changed("inbox")
        return json_response({"channel": pending.channel, "sender": pending.sender_id})

    async def devices(self, request: Request, caller: Credential | None) -> Response:
        """The signed-in browsers; `current` is the one that asks."""
        devices = await self._services.credentials.list(CredentialKind.DEVICE)
        return json_response(
            {
                "devices": [
                    {
                        "name": device.name,
                        "role": device.role,
                        "used_at": device.used_at,
                        "current": caller is not None and device.name == caller.name,
                    }
                    for device in devices
                ]
            }
        )

    async def new_link(self, request: Request, caller: Credential | None) -> Response:
        """A one-time link for another browser, such as a phone's, with the rows of its QR code."""
        url = await self._services.new_link()
        return json_response({"url": url, "qr": qr_rows(url)}, 201)

    async def sign_out(self, request: Request, caller: Credential | None) -> Response:
        name = request.path_params["name"]
        if not await self._services.credentials.revoke(CredentialKind.DEVICE, name):
            raise HttpError(404, "There is no such device.")
        return json_response({"signed_out": name})

    async def _usage(self) -> dict[str, Any]:
        return (await self._services.runtime.spending.report("day", 1)).to_json()


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
