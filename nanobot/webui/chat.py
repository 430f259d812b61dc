"""Chatting: sessions and their messages, new messages, stop, and answers to approval questions."""

import asyncio
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import Answer
from nanobot.bus.events import InboundMessage
from nanobot.messages.types import ChatMessage, Origin, text_of
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.webui.services import WebServices

_MAX_ROWS = 200


class _NewMessage(BaseModel):
    id: str = Field(min_length=8, max_length=100)
    """The client's own id: a second message with it is dropped."""
    text: str = Field(max_length=1_000_000)


class _NewAnswer(BaseModel):
    answer: Literal["no", "once", "always"]


class ChatEndpoints:
    """The endpoints of a chat view."""

    def __init__(self, services: WebServices) -> None:
        self._services = services

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/sessions/{key:path}/messages", self.send, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/stop", self.stop, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/rows", self.rows, Requires.DEVICE),
            Endpoint("/api/approvals/{question}", self.answer, Requires.DEVICE, ("POST",)),
        ]

    async def rows(self, request: Request, caller: Credential | None) -> Response:
        """Stored messages, the running turns, and the position in the feed from which to follow both."""
        key, query = request.path_params["key"], request.query_params
        try:
            limit = min(max(int(query.get("limit", "50")), 1), _MAX_ROWS)
            before = int(query["before"]) if "before" in query else None
        except ValueError as error:
            raise HttpError(400, "`limit` and `before` are numbers.") from error
        position = self._position()  # before the rows: what is stored meanwhile comes twice, and never not at all
        live = [view.to_json() for view in self._services.feed.views(key)]
        session = await asyncio.to_thread(self._services.runtime.sessions.get_or_create, key)
        first, rows = await asyncio.to_thread(session.page, before, limit)
        return json_response(
            {
                "session": key,
                "rows": [_row(first + index, row) for index, row in enumerate(rows)],
                "live": live,
                "feed": position,
            }
        )

    async def send(self, request: Request, caller: Credential | None) -> Response:
        """Accept a message: it is on disk before the answer, and heard once however often it is sent."""
        key = request.path_params["key"]
        new = await read_json(request, _NewMessage)
        channel, _, chat_id = key.partition(":")
        if not chat_id:
            raise HttpError(400, "A session key reads channel:chat, such as web:notes.")
        message = InboundMessage.from_owner(channel, chat_id, new.text, session_key=key, origin=Origin.USER)
        message = replace(message, message_id=new.id, attended=True)
        inbox = self._services.channel.inbox
        assert inbox is not None  # noqa: S101 the gateway has attached the channel
        accepted = await inbox.put(message)
        return json_response({"message_id": new.id, "accepted": accepted}, 202)

    async def stop(self, request: Request, caller: Credential | None) -> Response:
        stopped = await self._services.runtime.loop.stop_turn(request.path_params["key"])
        return json_response({"stopped": stopped})

    async def answer(self, request: Request, caller: Credential | None) -> Response:
        """Answer an approval question. 409 if it was answered already, with that answer."""
        questions, question = self._services.runtime.questions, request.path_params["question"]
        new = await read_json(request, _NewAnswer)
        if questions.answer(question, Answer(new.answer)):
            return json_response({"answer": new.answer})
        settled = questions.settled_answer(question)
        return json_response({"error": "This question is no longer open.", "answer": settled}, 409)

    def _position(self) -> str:
        return f"{self._services.feed.epoch}.{self._services.feed.position}"


def _row(number: int, row: ChatMessage) -> dict[str, Any]:
    shown: dict[str, Any] = {"n": number, "role": row.get("role"), "text": text_of(row.get("content"))}
    for name in ("timestamp", "message_id", "turn_id", "name", "tool_call_id", "tool_calls", "sender_id", "origin"):
        if row.get(name) is not None:
            shown[name] = row.get(name)
    return shown
