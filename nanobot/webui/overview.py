"""What runs, what waits for the owner, who may talk, and which browsers are signed in."""

import asyncio
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from nanobot.agent.goals.goal import Goal
from nanobot.agent.work import WorkState, read_work
from nanobot.channels.login import qr_rows
from nanobot.pairing.commands import PairingCommands
from nanobot.security.credentials import Credential, CredentialKind
from nanobot.security.http_access import HttpError, route
from nanobot.webui.view import WebView


class _Approval(BaseModel):
    owner: bool = False


class _Person(BaseModel):
    channel: str
    sender: str


class OverviewView(WebView):
    """The inbox, Now, people and devices."""

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
