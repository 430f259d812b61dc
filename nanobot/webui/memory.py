"""What the agent remembers: facts with their sources, changes, and Dream's passes."""

import asyncio
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.scope import OWNERS
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.webui.services import WebServices

_MAX_CHANGES = 200


class _Text(BaseModel):
    text: str = Field(min_length=1, max_length=2000)


class MemoryEndpoints:
    """The endpoints of the memory view. They work on the owner's memory."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        runtime = services.runtime
        self._store = runtime.context.memory
        self._editor = MemoryEditor(self._store, runtime.clock, who="page")

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/memory", self.show, Requires.DEVICE),
            Endpoint("/api/memory/search", self.search, Requires.DEVICE),
            Endpoint("/api/memory/changes", self.changes, Requires.DEVICE),
            Endpoint("/api/memory/dreams", self.dreams, Requires.DEVICE),
            Endpoint("/api/memory/dreams/{number}/restore", self.restore, Requires.DEVICE, ("POST",)),
            Endpoint("/api/memory/dream", self.dream, Requires.DEVICE, ("POST",)),
            Endpoint("/api/memory/undo", self.undo, Requires.DEVICE, ("POST",)),
            Endpoint("/api/memory/facts/{fact}", self.edit, Requires.DEVICE, ("PUT",)),
            Endpoint("/api/memory/facts/{fact}", self.forget, Requires.DEVICE, ("DELETE",)),
            Endpoint("/api/memory/facts/{fact}/{action}", self.act, Requires.DEVICE, ("POST",)),
        ]

    async def show(self, request: Request, caller: Credential | None) -> Response:
        facts = await asyncio.to_thread(self._editor.facts)
        state = await asyncio.to_thread(self._editor.state)
        return json_response({"state": state, "facts": [fact.to_json() for fact in facts]})

    async def search(self, request: Request, caller: Credential | None) -> Response:
        hits = await asyncio.to_thread(self._editor.search, request.query_params.get("q", ""))
        return json_response({"hits": [asdict(hit) for hit in hits[:_MAX_CHANGES]]})

    async def changes(self, request: Request, caller: Credential | None) -> Response:
        """The last changes, newest first."""
        changes = await asyncio.to_thread(self._editor.log)
        return json_response({"changes": [change.to_json() for change in changes[:_MAX_CHANGES]]})

    async def dreams(self, request: Request, caller: Credential | None) -> Response:
        """The last passes of Dream, newest first; `active` are those whose changes still stand."""

        def read() -> dict[str, Any]:
            self._store.revisions.record()
            revisions = self._store.revisions
            passes = [asdict(dream_pass) for dream_pass in revisions.passes()[:50]]
            return {"passes": passes, "active": [*revisions.active_passes()]}

        return json_response(await asyncio.to_thread(read))

    async def restore(self, request: Request, caller: Credential | None) -> Response:
        """Restore the memory to before a pass of Dream; other changes since then stay."""
        number = request.path_params["number"]
        if not number.isdecimal():
            raise HttpError(404, "A pass of Dream has a number.")
        restored = await asyncio.to_thread(self._editor.restore, int(number))
        self._services.feed.changed("memory")
        return json_response({"restored": restored})

    async def dream(self, request: Request, caller: Credential | None) -> Response:
        """Tidy the memory now."""
        outcome, report = await self._services.runtime.memory.dreams.run_now(OWNERS, "page", "the page")
        self._services.feed.changed("memory")
        return json_response({"outcome": outcome, "report": report})

    async def edit(self, request: Request, caller: Credential | None) -> Response:
        """Change the text of a fact. Its source stays known through the changes."""
        new = await read_json(request, _Text)
        fact = await asyncio.to_thread(self._editor.edit, request.path_params["fact"], new.text)
        self._services.feed.changed("memory")
        return json_response({"id": fact.id, "text": fact.text})

    async def forget(self, request: Request, caller: Credential | None) -> Response:
        """Remove a fact; it is not learned again from old conversations."""
        removed = await asyncio.to_thread(self._editor.forget, request.path_params["fact"])
        self._services.feed.changed("memory")
        return json_response({"forgotten": [fact.text for fact in removed]})

    async def act(self, request: Request, caller: Credential | None) -> Response:
        """Pin, unpin or share a fact."""
        wanted, action = request.path_params["fact"], request.path_params["action"]
        match action:
            case "pin" | "unpin":
                fact = await asyncio.to_thread(lambda: self._editor.pin(wanted, pinned=action == "pin"))
            case "share":
                fact = await asyncio.to_thread(self._editor.share, wanted)
            case _:
                raise HttpError(404, "A fact can be pinned, unpinned or shared.")
        self._services.feed.changed("memory")
        return json_response({"id": fact.id})

    async def undo(self, request: Request, caller: Credential | None) -> Response:
        """Undo the last change, whoever made it."""
        changes = await asyncio.to_thread(self._editor.undo)
        self._services.feed.changed("memory")
        return json_response({"undone": [change.to_json() for change in changes]})
