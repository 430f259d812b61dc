"""The conversations of all channels: list, search, rename, pin, archive, delete, export, import; their past turns step
by step with what the model was sent; and usage.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.scope import OWNERS
from nanobot.agent.trace.reader import Recording, read_recording
from nanobot.agent.trace.replay import request_facts
from nanobot.agent.trace.store import TraceStore
from nanobot.runtime.archive import delete_session
from nanobot.security.http_access import HEADERS, HttpError, read_body, route
from nanobot.security.secrets import redact_texts, redact_value
from nanobot.session.file import session_title
from nanobot.session.import_export import format_markdown, read_conversations, to_jsonl
from nanobot.session.types import Session
from nanobot.usage.ledger import By
from nanobot.webui.chat import ChatView
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

_BUSY_S = 5.0
"""How long a change waits for the session's turn."""
_LARGEST_IMPORT = 64 * 1024 * 1024
_BUSY = "A turn runs in this session. Try again when it has ended, or stop it first."


class _Changes(BaseModel):
    title: str | None = Field(None, max_length=200)
    """An empty one brings the first words of the conversation back."""
    pinned: bool | None = None


class SessionsView(WebView):
    def __init__(self, services: WebServices, chat: ChatView) -> None:
        super().__init__(services)
        self._chat = chat
        self._traces = TraceStore(self.paths.traces)
        self._titles: dict[tuple[str, str, str], str] = {}
        """First words by file and time of the last change; reading them takes a moment for each file."""

    @route("GET", "/api/sessions")
    async def list_all(self) -> Any:
        """All sessions, newest first. `name` is what the other endpoints take: archived ones share their key."""
        position, running = self.feed.cursor, {view.session for view in self.feed.views()}
        sessions = await asyncio.to_thread(self._list)
        for session in sessions:
            session["running"] = session["key"] in running and not session["archived"]
        return {"sessions": sessions, "feed": position}

    def _list(self) -> list[dict[str, Any]]:
        shown = []
        for row in self.sessions.list_sessions():
            metadata = row["metadata"]
            identity = (row["path"], row["updated_at"], str(metadata.get("title")))
            if identity not in self._titles:
                self._titles[identity] = session_title(Path(row["path"]), metadata)
            shown.append(
                {name: row[name] for name in ("name", "key", "updated_at", "messages", "archived")}
                | {
                    "channel": row["key"].partition(":")[0] if ":" in row["key"] else "cli",
                    "title": self._titles[identity],
                    "pinned": metadata.get("pinned") is True,
                }
            )
        return shown

    @route("POST", "/api/sessions/{key:path}/archive", changed="sessions")
    async def archive(self, key: str) -> Any:
        """Move the session to the archive, as `/new` does: its messages go into the memory, and a new one starts."""
        self._check(key)
        try:
            async with asyncio.timeout(_BUSY_S), self.sessions.hold(key):
                file = await asyncio.to_thread(self.sessions.archive, key)
        except TimeoutError as error:
            raise HttpError(409, _BUSY) from error
        if file is not None:
            await self.runtime.memory.on_session_archived(key, file)
        return {"archived": file.stem if file is not None else None}

    @route("GET", "/api/sessions/{key:path}/export")
    def export(self, key: str, format: Literal["markdown", "jsonl"] = "markdown") -> Any:  # noqa: A002
        """The session as a file: Markdown to read, or JSON lines to import elsewhere."""
        if (session := self.sessions.read(key)) is None:
            raise _missing(key)
        is_markdown = format == "markdown"
        data = format_markdown(session).encode() if is_markdown else to_jsonl(session)
        name = quote(f"{session.key.replace(':', '-')}.{'md' if is_markdown else 'jsonl'}", safe="")
        headers = {**HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        return Response(data, headers=headers, media_type="application/octet-stream")

    @route("PATCH", "/api/sessions/{key:path}", changed="sessions")
    async def change(self, key: str, body: _Changes) -> Any:
        """Rename or pin a session; waits a moment for its turn."""
        self._check(key)
        try:
            async with asyncio.timeout(_BUSY_S), self.sessions.hold(key) as session:
                session.metadata.update(body.model_dump(exclude_none=True))
                await self.sessions.append(session)
        except TimeoutError as error:
            raise HttpError(409, _BUSY) from error
        return {"changed": key}

    @route("DELETE", "/api/sessions/{key:path}", changed="sessions")
    async def delete(self, key: str) -> Any:
        """Delete a session for good, with the traces of its turns; waits for the one that runs."""
        self._check(key)
        async with self.runtime.loop.lane(key):
            index = self.runtime.archive.index
            await asyncio.to_thread(delete_session, self.sessions, self._traces, index, key)
        return {"deleted": key}

    @route("POST", "/api/import", status=201, changed="sessions")
    async def import_file(self, request: Request) -> Any:
        """Import a session file or a JSON list of chat messages as `as`. An existing session is never changed."""
        body, name = await read_body(request, _LARGEST_IMPORT), request.query_params.get("as", "")
        return {"session": await asyncio.to_thread(self._import, body, name)}

    def _import(self, body: bytes, name: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "import.jsonl"
            file.write_bytes(body)
            conversation = read_conversations(file)[0][0]
        name = name or conversation.key
        if self.sessions.find(name) is not None:
            raise HttpError(409, f"There is a session {name!r} already; it was not changed. Choose another name.")
        self.sessions.save(conversation.as_session(name))
        return name

    @route("GET", "/api/search")
    async def search(self, q: str = "") -> Any:
        """Messages and memory entries that contain the words."""
        if not q.strip():
            raise HttpError(400, "Give the words to search for as `q`.")
        result = await asyncio.to_thread(self.runtime.archive.search, OWNERS, q.strip(), limit=50)
        hits = [
            {"session": hit.name, "time": hit.time, "role": hit.role, "text": hit.text, "number": hit.number}
            for hit in result.hits
        ]
        return {"hits": hits, "is_loose": result.is_loose, "is_whole": result.is_whole}

    async def _recording(self, key: str) -> Recording:
        await self.runtime.traces.flush()
        recording = await asyncio.to_thread(read_recording, key, self.sessions, self._traces)
        if recording is None:
            raise HttpError(404, f"The session {key!r} has no recorded turn.")
        return recording

    @route("GET", "/api/sessions/{key:path}/turns")
    async def turns(self, key: str) -> Any:
        """The turns of a session, oldest first, without their steps."""
        recording = await self._recording(key)
        return {"turns": redact_value([{**each.to_json(), "steps": len(each.steps)} for each in recording.turns])}

    @route("GET", "/api/sessions/{key:path}/turns/{turn}")
    async def turn(self, key: str, turn: str) -> Any:
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
        return redact_texts(request_facts(recorded, sent))

    @route("GET", "/api/models")
    async def models(self) -> Any:
        """The names that choose a model: those that `/model` accepts in a new session."""
        return {"models": await self.runtime.models.choices(Session(""))}

    @route("GET", "/api/usage")
    async def usage(self, by: By = "day", days: Annotated[int, Field(ge=1, le=3660)] = 30) -> Any:
        """Tokens and cost by day, model, provider, session or cause, with the limits."""
        return (await self.runtime.spending.report(by, days)).to_json()

    def _check(self, key: str) -> None:
        """Raises HttpError if there is no such session."""
        if self.sessions.find(key) is None:
            raise _missing(key)


def _missing(key: str) -> HttpError:
    return HttpError(404, f"There is no session {key!r}.")
