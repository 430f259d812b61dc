"""Past turns step by step with what the model was sent, and usage."""

import asyncio
from typing import Annotated, Any

from pydantic import Field

from nanobot.agent.scope import OWNERS
from nanobot.agent.trace.reader import Recording, read_recording
from nanobot.agent.trace.replay import request_facts
from nanobot.agent.trace.store import TraceStore
from nanobot.security.http_access import HttpError, route
from nanobot.security.secrets import redact_texts, redact_value
from nanobot.session.types import Session
from nanobot.usage.sums import By
from nanobot.webui.chat import ChatView
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView


class TurnsView(WebView):
    """Replay and usage."""

    def __init__(self, services: WebServices, chat: ChatView) -> None:
        super().__init__(services)
        self._chat = chat
        self._traces = TraceStore(self.paths.traces)

    async def _recording(self, key: str) -> Recording:
        await self.runtime.traces.flush()
        recording = await asyncio.to_thread(read_recording, key, self.sessions, self._traces)
        if recording is None:
            raise HttpError(404, f"The session {key!r} has no recorded turn.")
        return recording

    @route("GET", "/api/sessions/{key:path}/turns")
    async def list_all(self, key: str) -> Any:
        """The turns of a session, oldest first, without their steps."""
        recording = await self._recording(key)
        return {"turns": redact_value([{**each.to_json(), "steps": len(each.steps)} for each in recording.turns])}

    @route("GET", "/api/sessions/{key:path}/turns/{turn}")
    async def show(self, key: str, turn: str) -> Any:
        """A turn with its steps: texts, calls and results, times, tokens, cost. `asked` is the message that began it,
        to be sent again; `can_undo`, whether its changes of files can be taken back.
        """
        recorded = (await self._recording(key)).find(turn)
        asked, last = await asyncio.to_thread(self._asked_and_last, key, recorded.turn_id)
        return {**redact_value(recorded.to_json()), "asked": asked, "can_undo": last == recorded.turn_id}

    def _asked_and_last(self, key: str, turn: str) -> tuple[dict[str, Any] | None, str | None]:
        session = self.sessions.read(key)
        rows = enumerate(session.messages if session is not None else ())
        first = next(((n, row) for n, row in rows if row.get("turn_id") == turn and row["role"] == "user"), None)
        return self._chat.row(*first) if first is not None else None, self.runtime.undo.last_turn(key)

    @route("POST", "/api/sessions/{key:path}/turns/{turn}/undo")
    async def undo(self, key: str, turn: str) -> Any:
        """Restore the files that this turn changed, as `/undo` does for the last one."""
        async with self.runtime.loop.lane(key):
            rows = (await asyncio.to_thread(self.sessions.get_or_create, key)).get_history()
            return {"report": await asyncio.to_thread(self.runtime.undo.undo, key, OWNERS, rows, turn)}

    @route("GET", "/api/sessions/{key:path}/turns/{turn}/prompt")
    async def prompt(self, key: str, turn: str) -> Any:
        """What the model was sent first in this turn: system prompt, tools, messages."""
        recording = await self._recording(key)
        recorded = recording.find(turn)
        sent = await asyncio.to_thread(recording.prompt, recorded, self._traces)
        return redact_texts(await request_facts(recorded, sent, clock=self.runtime.clock))

    @route("GET", "/api/models")
    async def models(self) -> Any:
        """The names that choose a model: those that `/model` accepts in a new session."""
        return {"models": await self.runtime.models.choices(Session(""))}

    @route("GET", "/api/usage")
    async def usage(self, by: By = "day", days: Annotated[int, Field(ge=1, le=3660)] = 30) -> Any:
        """Tokens and cost by day, model, provider, session or cause, with the limits."""
        return (await self.runtime.spending.report(by, days)).to_json()
