"""The endpoints of the API: chat completions, responses, models, sessions, turns, approvals, files and the feed."""

import asyncio
import mimetypes
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Literal
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
from nanobot.api.responses import Responses
from nanobot.api.services import ApiServices
from nanobot.api.turns import ApiTurns, session_key
from nanobot.config.paths import DataPaths
from nanobot.messages.types import ChatMessage, text_of
from nanobot.net import sse
from nanobot.runtime.deletion import delete_session
from nanobot.runtime.sandbox import path_policy
from nanobot.security.credentials import Credential, HttpRole
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError
from nanobot.security.http_access import (
    HEADERS,
    Endpoint,
    HttpError,
    Requires,
    event_stream,
    json_response,
    read_json,
)

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
    chat, responses, rest = ChatCompletions(services, turns), Responses(services, turns), _Rest(services, turns)

    def endpoint(path: str, handler: Any, *methods: str, guest_may: bool = True) -> Endpoint:
        return Endpoint(f"/v1/{path}", handler, Requires.API_KEY, methods or ("GET",), guest_may)

    return [
        endpoint("chat/completions", chat.create, "POST"),
        endpoint("chat/completions/{id}", chat.get),
        endpoint("responses", responses.create, "POST"),
        endpoint("responses/{id}", responses.get),
        endpoint("responses/{id}", responses.delete, "DELETE"),
        endpoint("responses/{id}/cancel", responses.cancel, "POST"),
        endpoint("responses/{id}/input_items", responses.input_items),
        endpoint("models", rest.models),
        endpoint("models/{id:path}", rest.model),
        endpoint("sessions", rest.sessions),
        endpoint("sessions/{key}/messages", rest.messages),
        endpoint("sessions/{key}/branch", rest.branch, "POST"),
        endpoint("sessions/{key}", rest.session),
        endpoint("sessions/{key}", rest.delete_session, "DELETE"),
        endpoint("turns/{id}/stop", rest.stop, "POST"),
        endpoint("turns/{id}/events", rest.turn_events),
        endpoint("approvals/{id}", rest.approve, "POST", guest_may=False),
        endpoint("files/{id}/content", rest.file),
        endpoint("feed", rest.feed),
        endpoint("capabilities", rest.capabilities),
        Endpoint("/v1/{path:path}", rest.preflight, Requires.NOTHING, ("OPTIONS",)),
        endpoint("{path:path}", rest.unknown, *_METHODS),
    ]


class _Rest:
    """All endpoints but chat completions and responses."""

    def __init__(self, services: ApiServices, turns: ApiTurns) -> None:
        self._services = services
        self._runtime = services.runtime
        self._turns = turns

    async def models(self, request: Request, caller: Credential) -> Response:
        """`nanobot`, and a model for each preset."""
        return _list([_model(name) for name in self._model_names()])

    async def model(self, request: Request, caller: Credential) -> Response:
        """One of the models."""
        name = request.path_params["id"]
        if name not in self._model_names():
            raise unknown_model(name)
        return json_response(_model(name))

    def _model_names(self) -> list[str]:
        return ["nanobot", *(f"nanobot:{name}" for name in self._runtime.config.model_presets)]

    async def sessions(self, request: Request, caller: Credential) -> Response:
        """The sessions that this key may see, newest first."""
        rows = await asyncio.to_thread(self._runtime.sessions.list_sessions)
        running = {view.session for view in self._services.feed.views()}
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

    async def session(self, request: Request, caller: Credential) -> Response:
        """A session, and what its running turn has shown so far."""
        key = self._key(request, caller)
        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, key)
        live = [view.to_json() for view in self._services.feed.views(key)]
        if not session.message_count and not live:
            raise _no_session(key)
        return json_response({"id": key, "object": "session", "messages": session.message_count, "live": live})

    async def messages(self, request: Request, caller: Credential) -> Response:
        """The stored messages of a session, the newest last; earlier ones with `before`."""
        key, query = self._key(request, caller), request.query_params
        try:
            limit = min(max(int(query.get("limit", "50")), 1), _MAX_MESSAGES)
            before = int(query["before"]) if "before" in query else None
        except ValueError as error:
            raise HttpError(400, "`limit` and `before` are numbers.") from error
        session = await asyncio.to_thread(self._runtime.sessions.get_or_create, key)
        first, rows = await asyncio.to_thread(session.page, before, limit)
        return _list([_message(first + index, row) for index, row in enumerate(rows)], has_more=first > 0)

    async def delete_session(self, request: Request, caller: Credential) -> Response:
        """Delete a session, its traces and what is found of it in a search."""
        key, runtime = self._key(request, caller), self._runtime
        async with runtime.loop.lane(key):
            if deleted := runtime.sessions.find(key) is not None:
                traces = TraceStore(DataPaths(runtime.data_dir).traces)
                await asyncio.to_thread(delete_session, runtime.sessions, traces, runtime.archive.index, key)
        return json_response({"id": key, "object": "session", "deleted": deleted})

    async def branch(self, request: Request, caller: Credential) -> Response:
        """Copy the beginning of a session into a new one."""
        key, new = self._key(request, caller), await read_json(request, NewBranch)
        sessions, target = self._runtime.sessions, session_key(caller, new.name)
        source = await asyncio.to_thread(sessions.read, key)
        branch = await asyncio.to_thread(sessions.get_or_create, target)
        if source is None:
            raise _no_session(key)
        if branch.message_count:
            raise HttpError(409, f"There is already a session {target}.")
        await sessions.append(branch, *source.messages[: new.messages])
        return json_response({"id": target, "object": "session", "messages": branch.message_count}, 201)

    async def stop(self, request: Request, caller: Credential) -> Response:
        """Stop a turn. What it has said stays."""
        following = await self._turns.find(caller, request.path_params["id"])
        record, is_running = following.request, following.view.ended is None
        stopped = is_running and await self._runtime.loop.stop_turn(record.session, record.turn_id)
        return json_response({"stopped": bool(stopped)})

    async def turn_events(self, request: Request, caller: Credential) -> Response:
        """The events of a turn until it ends; for a client that comes back, from where `seen` says."""
        following = await self._turns.find(caller, request.path_params["id"])
        view, seen = following.view, request.query_params.get("seen", "")

        async def stream() -> AsyncIterator[bytes]:
            with self._turns.listening(following.request):
                async for frame in self._services.feed.follow_turn(view, seen, ping_s=sse.PING_S):
                    yield sse.PING if frame["type"] == "ping" else sse.event(frame)

        return event_stream(stream())

    async def approve(self, request: Request, caller: Credential) -> Response:
        """Answer an approval question of any chat. 409 with the answer if it was answered already."""
        question, new = request.path_params["id"].removeprefix("mcpr_"), await read_json(request, NewAnswer)
        if self._runtime.questions.answer(question, Answer(new.answer)):
            return json_response({"id": question, "answer": new.answer})
        settled = self._runtime.questions.settled_answer(question)
        text = f"This question is no longer open; its answer was: {settled or 'unknown'}."
        raise HttpError(409 if settled is not None else 404, text, code="approval_not_open")

    async def file(self, request: Request, caller: Credential) -> Response:
        """A file that the agent sent with an answer."""
        turn_id, _, index = request.path_params["id"].rpartition("-")
        following = await self._turns.find(caller, turn_id)
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
        files = Opener(path_policy(self._runtime.config, self._runtime.data_dir, self._runtime.workspace))
        real, file = files.open(files.resolve_sendable(path))
        with file:
            return real.name, file.read()

    async def feed(self, request: Request, caller: Credential) -> Response:
        """The turn events of the sessions that this key may see, from now on or after Last-Event-ID."""
        after = request.headers.get("last-event-id") or request.query_params.get("starting_after", "")
        feed = self._services.feed

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

    async def capabilities(self, request: Request, caller: Credential) -> Response:
        """What this server can do."""
        fields = {
            "object": "capabilities",
            "version": __version__,
            "role": caller.role,
            "chat_completions": {"stream": True, "resume": True, "tools": False, "response_format": True},
            "responses": {"stream": True, "background": True, "approvals": True},
            "transcription": bool(self._runtime.config.channels.transcription_provider),
            "idempotency": True,
        }
        return json_response(fields)

    async def preflight(self, request: Request, caller: Credential | None) -> Response:
        """Tell a browser what a page of another site may send (fetch.spec.whatwg.org, CORS)."""
        if request.headers.get("origin") not in self._runtime.config.api.allow_origins:
            raise HttpError(403, "This site may not call the API; api.allowOrigins lists those that may.")
        asked = [name.strip() for name in request.headers.get("access-control-request-headers", "").lower().split(",")]
        headers = {
            "Access-Control-Allow-Methods": ", ".join(_METHODS),
            "Access-Control-Allow-Headers": ", ".join(name for name in asked if _FOREIGN_HEADERS.fullmatch(name)),
            "Access-Control-Max-Age": "600",
        }
        return Response(status_code=204, headers={**HEADERS, **headers})

    async def unknown(self, request: Request, caller: Credential) -> Response:
        path = request.path_params["path"]
        raise HttpError(
            404, f"nanobot has no {request.method} /v1/{path}. See GET /v1/capabilities.", code="unknown_url"
        )

    def _key(self, request: Request, caller: Credential) -> str:
        """The session that a path names, by its whole key or by the name of the conversation. Raises HttpError."""
        name = request.path_params["key"]
        key = name if ":" in name else session_key(caller, name)
        if not _may_see(caller, key):
            raise _no_session(key)
        return str(key)


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
