"""Chatting: sessions and their messages, new messages, stop, and answers to approval questions."""

import asyncio
import json
import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Literal

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.commands.help import TERMINAL_ONLY
from nanobot.agent.engine.interruption import is_continuation
from nanobot.agent.events import Answer
from nanobot.agent.tools.message import MessageTool
from nanobot.bus.events import WEB_CHANNEL, InboundMessage
from nanobot.channels.media import Attachment
from nanobot.config.paths import DataPaths
from nanobot.messages.shown import visible_text
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, ToolCall, text_of
from nanobot.security.credentials import Credential
from nanobot.security.http_access import Endpoint, HttpError, Requires, json_response, read_json
from nanobot.session.lines import parse_time
from nanobot.session.types import Session
from nanobot.usage.ledger import SCHEMA as LEDGER_SCHEMA
from nanobot.usage.sums import turn_sums
from nanobot.utils.database import reading
from nanobot.webui.files import FileEndpoints
from nanobot.webui.services import WebServices

_MAX_ROWS = 200
_MAX_FILES = 10
_TRANSCRIPTION = re.compile(r"^\[transcription: (.*)\]$", re.MULTILINE)


class _Branch(BaseModel):
    session: str
    before: int = Field(ge=0)
    """Number of the first message that the branch does not have."""
    model: str = Field("", max_length=200)
    """The model of the branch; empty for that of the session."""


class _NewMessage(BaseModel):
    id: str = Field(min_length=8, max_length=100)
    """The client's own id: a second message with it is dropped."""
    text: str = Field(max_length=1_000_000)
    files: list[str] = Field(default=[], max_length=_MAX_FILES)
    branch_from: _Branch | None = None
    """The session starts as a copy of that one, unless it exists."""


class _NewAnswer(BaseModel):
    answer: Literal["no", "once", "always"]


class ChatEndpoints:
    """The endpoints of a chat view."""

    def __init__(self, services: WebServices, files: FileEndpoints) -> None:
        self._services = services
        self._files = files
        self._database = DataPaths(services.runtime.data_dir).database

    def endpoints(self) -> list[Endpoint]:
        """The endpoints."""
        return [
            Endpoint("/api/sessions/{key:path}/messages", self.send, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/stop", self.stop, Requires.DEVICE, ("POST",)),
            Endpoint("/api/sessions/{key:path}/rows", self.rows, Requires.DEVICE),
            Endpoint("/api/approvals/{question}", self.answer, Requires.DEVICE, ("POST",)),
            Endpoint("/api/commands", self.commands, Requires.DEVICE),
        ]

    async def rows(self, request: Request, caller: Credential | None) -> Response:
        """Stored messages, the running turns, and the position in the feed from which to follow both."""
        key, query = request.path_params["key"], request.query_params
        try:
            limit = min(max(int(query.get("limit", "50")), 1), _MAX_ROWS)
            before = int(query["before"]) if "before" in query else None
        except ValueError as error:
            raise HttpError(400, "`limit` and `before` are numbers.") from error
        position = self._services.feed.cursor  # before the rows: what is stored meanwhile comes twice, not never
        live = [self._live(view.to_json()) for view in self._services.feed.views(key)]
        session = await asyncio.to_thread(self._services.runtime.sessions.get_or_create, key)
        first, rows = await asyncio.to_thread(session.page, before, limit)
        shown = await asyncio.to_thread(lambda: [self.row(first + at, row) for at, row in enumerate(rows)])
        turns = await asyncio.to_thread(self._turns, key, rows)
        return json_response(
            {
                "session": key,
                "answers_in": channel if (channel := key.partition(":")[0]) in self._chat_apps() else None,
                "branch_of": session.metadata.get("branch_of"),
                "rows": shown,
                "turns": turns,
                "live": live,
                "feed": position,
            }
        )

    async def send(self, request: Request, caller: Credential | None) -> Response:
        """Accept a message: it is on disk before the answer, and heard once however often it is sent."""
        key = request.path_params["key"]
        new = await read_json(request, _NewMessage)
        channel, _, chat_id = key.partition(":")
        if channel not in self._chat_apps():
            # No chat app takes the answer of a chat of the page, a terminal or a program: it is read in the feed.
            channel, chat_id = WEB_CHANNEL, key.removeprefix(f"{WEB_CHANNEL}:")
        if not new.text.strip() and not new.files:
            raise HttpError(400, "A message needs text or a file.")
        attachments: list[Attachment] = [await asyncio.to_thread(self._files.attachment, each) for each in new.files]
        if (branch := new.branch_from) is not None:
            await self._branch(branch, key)
        chat_id, thread_id = await asyncio.to_thread(self._chat_and_thread, key, chat_id)
        message = InboundMessage.from_owner(channel, chat_id, new.text, session_key=key, origin=Origin.USER)
        message = replace(message, message_id=new.id, thread_id=thread_id, attended=True)
        inbox = self._services.channel.inbox
        assert inbox is not None  # noqa: S101 the gateway has attached the channel
        accepted = await inbox.put(message, attachments)
        return json_response({"message_id": new.id, "accepted": accepted}, 202)

    async def _branch(self, branch: _Branch, key: str) -> None:
        """Make the session `key`, unless it exists. Raises ConfigError if there is no such model."""
        runtime = self._services.runtime
        if await asyncio.to_thread(runtime.sessions.find, key) is not None:
            return
        if branch.model:
            await runtime.models.choose(Session(key), branch.model)
        await asyncio.to_thread(lambda: runtime.sessions.branch(branch.session, before=branch.before, new_key=key))
        if branch.model:
            async with runtime.sessions.hold(key) as session:
                session.metadata["model"] = branch.model
                await runtime.sessions.append(session)

    def _chat_apps(self) -> Collection[str]:
        return self._services.runtime.config.channels.enabled

    def _chat_and_thread(self, key: str, chat_id: str) -> tuple[str, str | None]:
        """The chat and the thread of a session `channel:chat:thread`: ids may contain colons, so its messages tell."""
        rows = self._services.runtime.sessions.get_or_create(key).page(None, _MAX_ROWS)[1] if ":" in chat_id else ()
        for row in reversed(rows):
            chat = str(row.get("inbound", "")).rpartition(":")[0]
            if chat and key.startswith(f"{chat}:"):
                return chat.partition(":")[2], key.removeprefix(f"{chat}:")
        return chat_id, None

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

    async def commands(self, request: Request, caller: Credential | None) -> Response:
        """The slash commands, without those that only a terminal has."""
        names = self._services.runtime.loop.commands.names()
        commands = [{"name": name, "text": text} for name, text in names.items() if name not in TERMINAL_ONLY]
        return json_response({"commands": commands})

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """A turn event as the page shows it: its files have ids."""
        if "media" not in event:
            return event
        media = event.pop("media")
        return {**event, **_with_files(event.get("text", ""), media), "files": list(map(self._files.describe, media))}

    def _live(self, view: dict[str, Any]) -> dict[str, Any]:
        return {**view, "started": self.event(view["started"])}

    def _turns(self, key: str, rows: list[ChatMessage]) -> dict[str, dict[str, Any]]:
        """Model, tokens and cost of the turns of these rows, by turn id."""
        since = next((str(row["timestamp"])[:10] for row in rows if "timestamp" in row), None)
        if since is None:
            return {}
        with reading(self._database, LEDGER_SCHEMA) as db:
            sums = turn_sums(db, key, since)
        names = ("usd", "prompt_tokens", "completion_tokens")
        return {turn: {"model": model} | {n: getattr(total, n) for n in names} for turn, (model, total) in sums.items()}

    def row(self, number: int, row: ChatMessage) -> dict[str, Any]:
        """A stored message as the page shows it."""
        shown: dict[str, Any] = {"n": number, "role": row.get("role")}
        if (time := parse_time(row.get("timestamp"))) is not None:
            shown["timestamp"] = time.astimezone().isoformat()
        for name in ("turn_id", "inbound", "tool_call_id", "name", "failure", "sender_id", "origin"):
            if row.get(name) is not None:
                shown[name] = row.get(name)
        if row.get("role") == "tool":
            return {**shown, "text": text_of(row.get("content"))}
        error = row.get("error")
        if error is not None and error != INTERRUPTED:  # the content is a placeholder for the model
            return {**shown, "error": error, "reply": row.get("reply", "")}
        media = row.get("media", [])
        if is_continuation(row):
            shown["continues"] = True
        shown |= _with_files(visible_text(row), media)
        if media:
            shown["files"] = list(map(self._files.describe, media))
        if reasoning := row.get("reasoning_content"):
            shown["reasoning"] = reasoning
        if calls := row.get("tool_calls"):
            shown["calls"] = list(map(self._call, calls))
        return shown

    def _call(self, call: ToolCall) -> dict[str, Any]:
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"])
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"": function["arguments"]}
        shown = {"call_id": call["id"], "name": function["name"], "arguments": arguments}
        if function["name"] == MessageTool.name and not arguments.get("channel") and not arguments.get("chat_id"):
            shown["posted"] = self._posted(arguments)
        return shown

    def _posted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the message tool has sent to this chat. Only files of the workspace: a model wrote the paths."""
        workspace = self._services.runtime.workspace.resolve()
        media = arguments.get("media")
        paths = [(workspace / str(path)).resolve() for path in (media if isinstance(media, list) else ())]
        files = [self._files.describe(str(path)) for path in paths if path.is_relative_to(workspace)]
        return {"text": arguments.get("content"), "files": files}


def _with_files(text: str, media: list[str]) -> dict[str, Any]:
    """The text without what stands in it for its files, and the transcriptions of recordings."""
    if not media:
        return {"text": text}
    for path in media:
        text = re.sub(rf"^\[\w+: {re.escape(path)}\]\n?", "", text, flags=re.MULTILINE)
    transcripts = _TRANSCRIPTION.findall(text)
    text = _TRANSCRIPTION.sub("", text).strip()
    return {"text": text, "transcripts": transcripts} if transcripts else {"text": text}
