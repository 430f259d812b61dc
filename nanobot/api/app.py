"""The endpoints of the API: chat completions, responses, models, sessions, turns, approvals, files and the feed."""

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot import __version__
from nanobot.agent.events import Answer
from nanobot.agent.trace.store import TraceStore
from nanobot.api.answers import sent_files
from nanobot.api.chat import ChatCompletions
from nanobot.api.prompts import unknown_model
from nanobot.api.requests import ApiServices
from nanobot.api.responses import Responses
from nanobot.api.turns import ApiTurns, ApiView, session_key
from nanobot.config.paths import DataPaths
from nanobot.messages.types import ChatMessage, text_of
from nanobot.net import sse
from nanobot.runtime.archive import delete_session
from nanobot.runtime.sandbox import path_policy
from nanobot.security.credentials import Credential, HttpRole
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError
from nanobot.security.http_access import HEADERS, Endpoint, HttpError, Requires, event_stream, json_response, route

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_FOREIGN_HEADERS = re.compile(
    r"authorization|content-type|idempotency-key|last-event-id|x-(?:nanobot|openwebui|stainless)-[a-z0-9-]+"
)
"""What pages of other sites may send."""
_MAX_MESSAGES = 200


class NewAnswer(BaseModel):
    answer: Literal["no", "once", "always"]


class NewBranch(BaseModel):
    name: str = Field(pattern=r"^[A-Za-z0-9._-]{1,120}$")
    messages: int | None = Field(default=None, ge=0)
    """How many messages the branch keeps; all of them by default."""


def endpoints(services: ApiServices) -> list[Endpoint]:
    """All endpoints of the API, in the order in which they are tried."""
    turns = ApiTurns(services)
    views = ChatCompletions(services, turns), Responses(services, turns), _Rest(services, turns)
    return [endpoint for view in views for endpoint in view.endpoints()]


class _Rest(ApiView):
    """All endpoints but chat completions and responses."""

    @route("GET", "/v1/models", guest_may=True)
    async def models(self) -> Response:
        """`nanobot`, and a model for each preset."""
        return _list([_model(name) for name in self._model_names()])

    @route("GET", "/v1/models/{name:path}", guest_may=True)
    async def model(self, name: str) -> Any:
        """One of the models."""
        if name not in self._model_names():
            raise unknown_model(name)
        return _model(name)

    def _model_names(self) -> list[str]:
        return ["nanobot", *(f"nanobot:{name}" for name in self.runtime.config.model_presets)]

    @route("GET", "/v1/sessions", guest_may=True)
    async def sessions(self, caller: Credential) -> Response:
        """The sessions that this key may see, newest first."""
        rows = await asyncio.to_thread(self.runtime.sessions.list_sessions)
        running = {view.session for view in self.services.feed.views()}
        data = [
            {
                "id": key,
                "object": "session",
                "updated_at": _unix_time(str(row["updated_at"])),
                "messages": row["messages"],
                "running": key in running,
            }
            for row in rows
            if _may_see(caller, key := str(row["key"])) and not row["archived"]
        ]
        return _list(data)

    @route("GET", "/v1/sessions/{key}/messages", guest_may=True)
    async def messages(
        self, key: str, caller: Credential, limit: Annotated[int, Field(ge=1)] = 50, before: int | None = None
    ) -> Response:
        """The stored messages of a session, the newest last; earlier ones with `before`."""
        session = await asyncio.to_thread(self.runtime.sessions.get_or_create, _visible(caller, key))
        first, rows = await asyncio.to_thread(session.page, before, min(limit, _MAX_MESSAGES))
        return _list([_message(first + index, row) for index, row in enumerate(rows)], has_more=first > 0)

    @route("GET", "/v1/sessions/{key}", guest_may=True)
    async def session(self, key: str, caller: Credential) -> Any:
        """A session, and what its running turn has shown so far."""
        key = _visible(caller, key)
        session = await asyncio.to_thread(self.runtime.sessions.get_or_create, key)
        live = [view.to_json() for view in self.services.feed.views(key)]
        if not session.message_count and not live:
            raise _no_session(key)
        return {"id": key, "object": "session", "messages": session.message_count, "live": live}

    @route("DELETE", "/v1/sessions/{key}", guest_may=True)
    async def delete_session(self, key: str, caller: Credential) -> Any:
        """Delete a session, its traces and what is found of it in a search."""
        key, runtime = _visible(caller, key), self.runtime
        async with runtime.loop.lane(key):
            if deleted := runtime.sessions.find(key) is not None:
                traces = TraceStore(DataPaths(runtime.data_dir).traces)
                await asyncio.to_thread(delete_session, runtime.sessions, traces, runtime.archive.index, key)
        return {"id": key, "object": "session", "deleted": deleted}

    @route("POST", "/v1/sessions/{key}/branch", status=201, guest_may=True)
    async def branch(self, key: str, caller: Credential, body: NewBranch) -> Any:
        """Copy the beginning of a session into a new one."""
        key, sessions, target = _visible(caller, key), self.runtime.sessions, session_key(caller, body.name)
        source = await asyncio.to_thread(sessions.read, key)
        branch = await asyncio.to_thread(sessions.get_or_create, target)
        if source is None:
            raise _no_session(key)
        if branch.message_count:
            raise HttpError(409, f"There is already a session {target}.")
        await sessions.append(branch, *source.messages[: body.messages])
        return {"id": target, "object": "session", "messages": branch.message_count}

    @route("POST", "/v1/turns/{turn}/stop", guest_may=True)
    async def stop(self, turn: str, caller: Credential) -> Any:
        """Stop a turn. What it has said stays."""
        following = await self.turns.find(caller, turn)
        record, is_running = following.request, following.view.ended is None
        stopped = is_running and await self.runtime.loop.stop_turn(record.session, record.turn_id)
        return {"stopped": bool(stopped)}

    @route("GET", "/v1/turns/{turn}/events", guest_may=True)
    async def turn_events(self, turn: str, caller: Credential, seen: str = "") -> Response:
        """The events of a turn until it ends; for a client that comes back, from where `seen` says."""
        following = await self.turns.find(caller, turn)
        view = following.view

        async def stream() -> AsyncIterator[bytes]:
            with self.turns.listening(following.request):
                async for frame in self.services.feed.follow_turn(view, seen, ping_s=sse.PING_S):
                    yield sse.PING if frame["type"] == "ping" else sse.event(frame)

        return event_stream(stream())

    @route("POST", "/v1/approvals/{question}")
    async def approve(self, question: str, body: NewAnswer) -> Any:
        """Answer an approval question of any chat. 409 with the answer if it was answered already."""
        question = question.removeprefix("mcpr_")
        if self.runtime.questions.answer(question, Answer(body.answer)):
            return {"id": question, "answer": body.answer}
        settled = self.runtime.questions.settled_answer(question)
        text = f"This question is no longer open; its answer was: {settled or 'unknown'}."
        raise HttpError(409 if settled is not None else 404, text, code="approval_not_open")

    @route("GET", "/v1/files/{file}/content", guest_may=True)
    async def file(self, file: str, caller: Credential) -> Response:
        """A file that the agent sent with an answer."""
        turn_id, _, index = file.rpartition("-")
        following = await self.turns.find(caller, turn_id)
        files = sent_files(following.view)
        if not index.isdigit() or int(index) >= len(files):
            raise HttpError(404, "There is no such file.", code="file_not_found")
        try:
            name, content = await asyncio.to_thread(self._read_file, files[int(index)])
        except (OSError, PathDeniedError) as error:
            raise HttpError(404, f"The file cannot be read any more: {error}", code="file_not_found") from error
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        headers = {**HEADERS, "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}"}
        return Response(content, media_type=kind, headers=headers)

    def _read_file(self, path: str) -> tuple[str, bytes]:
        """The name and the content of a file, if it may be sent still: it may be another one by now."""
        files = Opener(path_policy(self.runtime.config, self.runtime.data_dir, self.runtime.workspace))
        real, file = files.open(files.resolve_sendable(path))
        with file:
            return real.name, file.read()

    @route("GET", "/v1/feed", guest_may=True)
    async def feed(self, request: Request, caller: Credential, starting_after: str = "") -> Response:
        """The turn events of the sessions that this key may see, from now on or after Last-Event-ID."""
        after, feed = request.headers.get("last-event-id") or starting_after, self.services.feed

        async def stream() -> AsyncIterator[bytes]:
            yield sse.PING
            async for items in feed.follow(after, ping_s=sse.PING_S):
                events = [
                    sse.event(
                        {"session": item.session, "event": item.event.to_json()}, event_id=feed.cursor_at(item.position)
                    )
                    for item in items or ()
                    if _may_see(caller, item.session)
                ]
                yield b"".join(events) or sse.PING

        return event_stream(stream())

    @route("GET", "/v1/capabilities", guest_may=True)
    async def capabilities(self, caller: Credential) -> Any:
        """What this server can do."""
        return {
            "object": "capabilities",
            "version": __version__,
            "role": caller.role,
            "chat_completions": {"stream": True, "resume": True, "tools": False, "response_format": True},
            "responses": {"stream": True, "background": True, "approvals": True},
            "transcription": bool(self.runtime.config.channels.transcription_provider),
            "idempotency": True,
        }

    @route("OPTIONS", "/v1/{path:path}", requires=Requires.NOTHING)
    async def preflight(self, request: Request) -> Response:
        """Tell a browser what a page of another site may send (fetch.spec.whatwg.org, CORS)."""
        if request.headers.get("origin") not in self.runtime.config.api.allow_origins:
            raise HttpError(403, "This site may not call the API; api.allowOrigins lists those that may.")
        asked = [name.strip() for name in request.headers.get("access-control-request-headers", "").lower().split(",")]
        headers = {
            "Access-Control-Allow-Methods": ", ".join(_METHODS),
            "Access-Control-Allow-Headers": ", ".join(name for name in asked if _FOREIGN_HEADERS.fullmatch(name)),
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers={**HEADERS, **headers})

    @route(" ".join(_METHODS), "/v1/{path:path}", guest_may=True)
    async def unknown(self, request: Request, path: str) -> Response:
        text = f"nanobot has no {request.method} /v1/{path}. See GET /v1/capabilities."
        raise HttpError(404, text, code="unknown_url")


def _visible(caller: Credential, name: str) -> str:
    """The session that a path names, by its whole key or by the name of the conversation. Raises HttpError."""
    key = name if ":" in name else session_key(caller, name)
    if not _may_see(caller, key):
        raise _no_session(key)
    return key


def _list(data: list[dict[str, Any]], **fields: Any) -> Response:
    return json_response({"object": "list", "data": data, **fields})


def _model(name: str) -> dict[str, Any]:
    modalities = {"input_modalities": ["text", "image", "file", "audio"], "output_modalities": ["text"]}
    return {"id": name, "object": "model", "created": 0, "owned_by": "nanobot", "architecture": modalities}


def _no_session(key: str) -> HttpError:
    return HttpError(404, f"There is no session {key}.", code="session_not_found")


def _may_see(caller: Credential, key: str) -> bool:
    """An owner sees all sessions, a guest those of its own key."""
    return caller.role is HttpRole.OWNER or key.startswith(f"api:{caller.name}:")


def _message(number: int, row: ChatMessage) -> dict[str, Any]:
    names = ("timestamp", "turn_id", "name", "tool_call_id", "tool_calls")
    extra = {name: row.get(name) for name in names if row.get(name) is not None}
    return {"n": number, "role": row["role"], "content": text_of(row["content"]), **extra}


def _unix_time(text: str) -> int:
    try:
        return int(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return 0
