"""Past turns step by step with what the model was sent, and usage."""

import asyncio
from typing import Any, get_args

from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.scope import OWNERS
from nanobot.agent.trace.reader import Recording, read_recording
from nanobot.agent.trace.replay import request_facts
from nanobot.agent.trace.store import TraceStore
from nanobot.config.paths import DataPaths
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response
from nanobot.security.secrets import redact_texts, redact_value
from nanobot.session.types import Session
from nanobot.usage.sums import By
from nanobot.webui.chat import ChatEndpoints
from nanobot.webui.services import WebServices


class TurnEndpoints:
    """The endpoints of replay and usage."""

    def __init__(self, services: WebServices, chat: ChatEndpoints) -> None:
        self._services = services
        self._chat = chat
        self._traces = TraceStore(DataPaths(services.runtime.data_dir).traces)

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/sessions/{key:path}/turns", self.list_all, Requires.DEVICE),
            Endpoint("/api/sessions/{key:path}/turns/{turn}", self.show, Requires.DEVICE),
            Endpoint("/api/sessions/{key:path}/turns/{turn}/undo", self.undo, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/turns/{turn}/prompt", self.prompt, Requires.DEVICE),
            Endpoint("/api/models", self.models, Requires.DEVICE),
            Endpoint("/api/usage", self.usage, Requires.DEVICE),
        ]

    async def list_all(self, request: Request, caller: Credential | None) -> Response:
        """The turns of a session, oldest first, without their steps."""
        recording = await self._recording(request)
        turns = [{**turn.to_json(), "steps": len(turn.steps)} for turn in recording.turns]
        return json_response({"turns": redact_value(turns)})

    async def show(self, request: Request, caller: Credential | None) -> Response:
        """A turn with its steps: texts, calls and results, times, tokens, cost. `asked` is the message that began it,
        to be sent again; `can_undo`, whether its changes of files can be taken back.
        """
        recording = await self._recording(request)
        turn = recording.find(request.path_params["turn"])
        asked, last = await asyncio.to_thread(self._asked_and_last, recording.key, turn.turn_id)
        return json_response({**redact_value(turn.to_json()), "asked": asked, "can_undo": last == turn.turn_id})

    async def undo(self, request: Request, caller: Credential | None) -> Response:
        """Restore the files that this turn changed, as `/undo` does for the last one."""
        key, turn, runtime = request.path_params["key"], request.path_params["turn"], self._services.runtime
        async with runtime.loop.lane(key):
            rows = (await asyncio.to_thread(runtime.sessions.get_or_create, key)).get_history()
            report = await asyncio.to_thread(runtime.undo.undo, key, OWNERS, rows, turn)
        return json_response({"report": report})

    async def models(self, request: Request, caller: Credential | None) -> Response:
        """The names that choose a model: those that `/model` accepts in a new session."""
        return json_response({"models": await self._services.runtime.models.choices(Session(""))})

    def _asked_and_last(self, key: str, turn: str) -> tuple[dict[str, Any] | None, str | None]:
        runtime = self._services.runtime
        session = runtime.sessions.read(key)
        rows = enumerate(session.messages if session is not None else ())
        first = next(((n, row) for n, row in rows if row.get("turn_id") == turn and row["role"] == "user"), None)
        return self._chat.row(*first) if first is not None else None, runtime.undo.last_turn(key)

    async def prompt(self, request: Request, caller: Credential | None) -> Response:
        """What the model was sent first in this turn: system prompt, tools, messages."""
        recording = await self._recording(request)
        turn = recording.find(request.path_params["turn"])
        sent = await asyncio.to_thread(recording.prompt, turn, self._traces)
        return json_response(redact_texts(await request_facts(turn, sent, clock=self._services.runtime.clock)))

    async def usage(self, request: Request, caller: Credential | None) -> Response:
        """Tokens and cost by day, model, provider, session or cause, with the limits."""
        by: Any = request.query_params.get("by", "day")
        if by not in get_args(By):
            raise HttpError(400, f"`by` is one of {', '.join(get_args(By))}.")
        days = request.query_params.get("days", "30")
        if not days.isdigit() or not 0 < int(days) <= 3660:
            raise HttpError(400, "`days` is a number from 1 to 3660.")
        return json_response((await self._services.runtime.spending.report(by, int(days))).to_json())

    async def _recording(self, request: Request) -> Recording:
        key, runtime = request.path_params["key"], self._services.runtime
        await runtime.traces.flush()
        recording = await asyncio.to_thread(read_recording, key, runtime.sessions, self._traces)
        if recording is None:
            raise HttpError(404, f"The session {key!r} has no recorded turn.")
        return recording
