"""What the agent remembers: facts with their sources, changes, and Dream's passes. It is the owner's memory."""

from dataclasses import asdict
from typing import Any, Literal

from pydantic import BaseModel, Field

from nanobot.agent.memory.editor import MemoryEditor
from nanobot.agent.scope import OWNERS
from nanobot.security.http_access import route
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

_MAX_CHANGES, _MAX_PASSES = 200, 50


class _Text(BaseModel):
    text: str = Field(min_length=1, max_length=2000)


class MemoryView(WebView):
    def __init__(self, services: WebServices) -> None:
        super().__init__(services)
        self._store = self.runtime.context.memory
        self._editor = MemoryEditor(self._store, who="page")

    @route("GET", "/api/memory")
    def show(self) -> Any:
        return {"state": self._editor.state(), "facts": [fact.to_json() for fact in self._editor.facts()]}

    @route("GET", "/api/memory/search")
    def search(self, q: str = "") -> Any:
        return {"hits": [asdict(hit) for hit in self._editor.search(q)[:_MAX_CHANGES]]}

    @route("GET", "/api/memory/changes")
    def changes(self) -> Any:
        """The last changes, newest first."""
        return {"changes": [change.to_json() for change in self._editor.log()[:_MAX_CHANGES]]}

    @route("GET", "/api/memory/dreams")
    def dreams(self) -> Any:
        """The last passes of Dream, newest first; `active` are those whose changes still stand."""
        revisions = self._store.revisions
        revisions.record()
        passes = [asdict(dream_pass) for dream_pass in revisions.passes()[:_MAX_PASSES]]
        return {"passes": passes, "active": [*revisions.active_passes()]}

    @route("POST", "/api/memory/dreams/{number}/restore", changed="memory")
    def restore(self, number: int) -> Any:
        """Restore the memory to before a pass of Dream; other changes since then stay."""
        return {"restored": self._editor.restore(number)}

    @route("POST", "/api/memory/dream", changed="memory")
    async def dream(self) -> Any:
        outcome, report = await self.runtime.memory.dreams.run_now(OWNERS, "page", "the page")
        return {"outcome": outcome, "report": report}

    @route("PUT", "/api/memory/facts/{fact}", changed="memory")
    def edit(self, fact: str, body: _Text) -> Any:
        """Change the text of a fact. Its source stays known through the changes."""
        edited = self._editor.edit(fact, body.text)
        return {"id": edited.id, "text": edited.text}

    @route("DELETE", "/api/memory/facts/{fact}", changed="memory")
    def forget(self, fact: str) -> Any:
        """Remove a fact; it is not learned again from old conversations."""
        return {"forgotten": [removed.text for removed in self._editor.forget(fact)]}

    @route("POST", "/api/memory/facts/{fact}/{action}", changed="memory")
    def act(self, fact: str, action: Literal["pin", "unpin", "share"]) -> Any:
        is_share = action == "share"
        changed = self._editor.share(fact) if is_share else self._editor.pin(fact, pinned=action == "pin")
        return {"id": changed.id}

    @route("POST", "/api/memory/undo", changed="memory")
    def undo(self) -> Any:
        """Undo the last change, whoever made it."""
        return {"undone": [change.to_json() for change in self._editor.undo()]}
