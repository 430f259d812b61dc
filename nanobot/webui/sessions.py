"""The conversations of all channels: list, search, rename, pin, archive, delete, export, import."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.scope import OWNERS
from nanobot.agent.trace.store import TraceStore
from nanobot.config.paths import DataPaths
from nanobot.runtime.deletion import delete_session
from nanobot.security.credentials import Credential
from nanobot.security.http_access import HEADERS, Endpoint, HttpError, Requires, json_response, read_body, read_json
from nanobot.session.conversation import format_markdown, to_jsonl
from nanobot.session.imported import read_conversations
from nanobot.session.reader import session_title
from nanobot.webui.services import WebServices

_BUSY_S = 5.0
"""How long a change waits for the session's turn."""
_LARGEST_IMPORT = 64 * 1024 * 1024


class _Changes(BaseModel):
    title: str | None = Field(None, max_length=200)
    """An empty one brings the first words of the conversation back."""
    pinned: bool | None = None


class SessionEndpoints:
    """The endpoints of the session list."""

    def __init__(self, services: WebServices) -> None:
        self._services = services
        self._sessions = services.runtime.sessions
        self._traces = TraceStore(DataPaths(services.runtime.data_dir).traces)
        self._titles: dict[tuple[str, str, str], str] = {}
        """First words by file and time of the last change; reading them takes a moment for each file."""

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/sessions", self.list_all, Requires.DEVICE),
            Endpoint("/api/sessions/{key:path}/archive", self.archive, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/export", self.export, Requires.DEVICE),
            Endpoint("/api/sessions/{key:path}", self.change, Requires.DEVICE, ("PATCH",)),
            Endpoint("/api/sessions/{key:path}", self.delete, Requires.DEVICE, ("DELETE",)),
            Endpoint("/api/import", self.import_, Requires.DEVICE, ("POST",)),
            Endpoint("/api/search", self.search, Requires.DEVICE),
        ]

    async def list_all(self, request: Request, caller: Credential | None) -> Response:
        """All sessions, newest first. `name` is what the other endpoints take: archived ones share their key."""
        feed = self._services.feed
        position = f"{feed.epoch}.{feed.position}"
        running = {view.session for view in feed.views()}
        sessions = await asyncio.to_thread(self._list)
        for session in sessions:
            session["running"] = session["key"] in running and not session["archived"]
        return json_response({"sessions": sessions, "feed": position})

    async def search(self, request: Request, caller: Credential | None) -> Response:
        """Messages and memory entries that contain the words."""
        text = request.query_params.get("q", "").strip()
        if not text:
            raise HttpError(400, "Give the words to search for as `q`.")
        result = await asyncio.to_thread(self._services.runtime.archive.search, OWNERS, text, limit=50)
        hits = [
            {"session": hit.name, "time": hit.time, "role": hit.role, "text": hit.text, "number": hit.number}
            for hit in result.hits
        ]
        return json_response({"hits": hits, "is_loose": result.is_loose, "is_whole": result.is_whole})

    async def change(self, request: Request, caller: Credential | None) -> Response:
        """Rename or pin a session; waits a moment for its turn."""
        changes = await read_json(request, _Changes)
        key = self._existing(request)
        try:
            async with asyncio.timeout(_BUSY_S), self._sessions.hold(key) as session:
                for name, value in changes.model_dump(exclude_none=True).items():
                    session.metadata[name] = value
                await self._sessions.append(session)
        except TimeoutError as error:
            raise HttpError(409, "A turn runs in this session. Try again when it has ended.") from error
        self._services.feed.changed("sessions")
        return json_response({"changed": key})

    async def archive(self, request: Request, caller: Credential | None) -> Response:
        """Move the session to the archive, as `/new` does: its messages go into the memory, and a new one starts."""
        key = self._existing(request)
        try:
            async with asyncio.timeout(_BUSY_S), self._sessions.hold(key):
                file = await asyncio.to_thread(self._sessions.archive, key)
        except TimeoutError as error:
            raise HttpError(409, "A turn runs in this session. Stop it first.") from error
        if file is not None:
            await self._services.runtime.memory.on_session_archived(key, file)
        self._services.feed.changed("sessions")
        return json_response({"archived": file.stem if file is not None else None})

    async def delete(self, request: Request, caller: Credential | None) -> Response:
        """Delete a session for good, with the traces of its turns; waits for the one that runs."""
        name, runtime = self._existing(request), self._services.runtime
        async with runtime.loop.lane(name):
            await asyncio.to_thread(delete_session, self._sessions, self._traces, runtime.archive.index, name)
        self._services.feed.changed("sessions")
        return json_response({"deleted": name})

    async def export(self, request: Request, caller: Credential | None) -> Response:
        """The session as a file: Markdown to read, or JSON lines to import elsewhere."""
        as_markdown = request.query_params.get("format", "markdown") == "markdown"
        session = await asyncio.to_thread(self._sessions.read, self._existing(request))
        assert session is not None  # noqa: S101 `_existing` found it
        data = await asyncio.to_thread(lambda: format_markdown(session).encode() if as_markdown else to_jsonl(session))
        name = f"{session.key.replace(':', '-')}.{'md' if as_markdown else 'jsonl'}"
        disposition = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
        return Response(data, headers={**HEADERS, **disposition}, media_type="application/octet-stream")

    async def import_(self, request: Request, caller: Credential | None) -> Response:
        """Import a session file or a JSON list of chat messages as `as`. An existing session is never changed."""
        body = await read_body(request, _LARGEST_IMPORT)
        key = await asyncio.to_thread(self._import, body, request.query_params.get("as", ""))
        self._services.feed.changed("sessions")
        return json_response({"session": key}, 201)

    def _list(self) -> list[dict[str, Any]]:
        shown = []
        for row in self._sessions.list_sessions():
            metadata = row["metadata"]
            identity = (row["path"], row["updated_at"], str(metadata.get("title")))
            title = self._titles.get(identity) or session_title(Path(row["path"]), metadata)
            self._titles[identity] = title
            shown.append(
                {
                    "name": row["name"],
                    "key": row["key"],
                    "channel": row["key"].partition(":")[0] if ":" in row["key"] else "cli",
                    "title": title,
                    "updated_at": row["updated_at"],
                    "messages": row["messages"],
                    "archived": row["archived"],
                    "pinned": metadata.get("pinned") is True,
                }
            )
        return shown

    def _import(self, body: bytes, key: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "import.jsonl"
            file.write_bytes(body)
            conversation = read_conversations(file)[0][0]
        name = key or conversation.key
        if self._sessions.find(name) is not None:
            raise HttpError(409, f"There is a session {name!r} already; it was not changed. Choose another name.")
        self._sessions.save(conversation.as_session(name))
        return name

    def _existing(self, request: Request) -> str:
        name: str = request.path_params["key"]
        if self._sessions.find(name) is None:
            raise HttpError(404, f"There is no session {name!r}.")
        return name
