"""Chatting: the messages of a session and their files, new ones, stop, and answers to approval questions."""

import asyncio
import hashlib
import mimetypes
import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from nanobot.agent.commands.table import TERMINAL_ONLY
from nanobot.agent.engine.transcript import is_continuation
from nanobot.agent.events import Answer
from nanobot.agent.tools.message import MessageTool
from nanobot.bus.events import WEB_CHANNEL, InboundMessage
from nanobot.channels.media import Attachment, MediaKind, MediaLimits, detect_file_kind, kind_by_suffix
from nanobot.messages.types import INTERRUPTED, ChatMessage, Origin, ToolCall, text_of, visible_text
from nanobot.providers.base import parse_arguments
from nanobot.security.http_access import HttpError, json_response, route
from nanobot.session.file_format import parse_time
from nanobot.session.types import Session
from nanobot.usage.ledger import SCHEMA as LEDGER_SCHEMA
from nanobot.usage.ledger import turn_sums
from nanobot.utils.bounded_dict import put_bounded
from nanobot.utils.database import reading
from nanobot.utils.text import human_size
from nanobot.webui.services import WebServices
from nanobot.webui.view import WebView

_MAX_KNOWN = 20_000
_DAY_S = 86_400
INLINE_PICTURES = (".avif", ".bmp", ".gif", ".jpg", ".jpeg", ".png", ".webp")
"""Pictures that a browser may show. An SVG can hold scripts."""
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


class ChatView(WebView):
    """A chat. Only files that a message names, or that were uploaded, have an id."""

    def __init__(self, services: WebServices) -> None:
        super().__init__(services)
        self._known: dict[str, Path] = {}
        """Files by their ids."""
        self._unused: dict[Path, float] = {}
        """Uploads that no message has named yet, and when they came."""

    @route("GET", "/api/sessions/{key:path}/rows")
    async def rows(
        self, key: str, limit: Annotated[int, Field(ge=1, le=_MAX_ROWS)] = 50, before: int | None = None
    ) -> Any:
        """Stored messages, the running turns, and the position in the feed from which to follow both."""
        position = self.feed.cursor  # before the rows: what is stored meanwhile comes twice, not never
        live = [view.to_json() for view in self.feed.views(key)]
        for turn in live:
            turn["started"] = self.event(turn["started"])
        channel = key.partition(":")[0]
        stored = await asyncio.to_thread(self._stored, key, limit, before)
        return {
            "session": key,
            "answers_in": channel if channel in self.runtime.config.channels.enabled else None,
            **stored,
            "live": live,
            "feed": position,
        }

    def _stored(self, key: str, limit: int, before: int | None) -> dict[str, Any]:
        """Messages as the page shows them; model, tokens and cost of their turns, by turn id."""
        session = self.sessions.get_or_create(key)
        first, rows = session.page(before, limit)
        turns: dict[str, dict[str, Any]] = {}
        if since := next((str(row["timestamp"])[:10] for row in rows if "timestamp" in row), None):
            with reading(self.paths.database, LEDGER_SCHEMA) as db:
                for turn, (model, total) in turn_sums(db, key, since).items():
                    turns[turn] = {"model": model, "usd": total.usd, "prompt_tokens": total.prompt_tokens,
                                   "completion_tokens": total.completion_tokens}  # fmt: skip
        shown = [self.row(first + at, row) for at, row in enumerate(rows)]
        return {"branch_of": session.metadata.get("branch_of"), "rows": shown, "turns": turns}

    @route("POST", "/api/sessions/{key:path}/messages", status=202)
    async def send(self, key: str, body: _NewMessage) -> Any:
        """Accept a message: it is on disk before the answer, and heard once however often it is sent."""
        if not body.text.strip() and not body.files:
            raise HttpError(400, "A message needs text or a file.")
        attachments = [await asyncio.to_thread(self._attachment, each) for each in body.files]
        if (branch := body.branch_from) is not None:
            await self._branch(branch, key)
        address = await asyncio.to_thread(self._address, key)
        message = InboundMessage.from_owner(*address[:2], body.text, session_key=key, origin=Origin.USER)
        message = replace(message, message_id=body.id, thread_id=address[2], attended=True)
        inbox = self.services.channel.inbox
        assert inbox is not None  # noqa: S101 the gateway has attached the channel
        return {"message_id": body.id, "accepted": await inbox.put(message, attachments)}

    def _address(self, key: str) -> tuple[str, str, str | None]:
        """Channel, chat and thread that answer a session. Ids may contain colons, so its messages tell them apart."""
        channel, _, chat_id = key.partition(":")
        if channel not in self.runtime.config.channels.enabled:
            # No chat app takes the answer of a chat of the page, a terminal or a program: it is read in the feed.
            channel, chat_id = WEB_CHANNEL, key.removeprefix(f"{WEB_CHANNEL}:")
        rows = self.sessions.get_or_create(key).page(None, _MAX_ROWS)[1] if ":" in chat_id else ()
        for row in reversed(rows):
            chat = str(row.get("inbound", "")).rpartition(":")[0]
            if chat and key.startswith(f"{chat}:"):
                return channel, chat.partition(":")[2], key.removeprefix(f"{chat}:")
        return channel, chat_id, None

    async def _branch(self, branch: _Branch, key: str) -> None:
        """Make the session `key`, unless it exists. Raises ConfigError if there is no such model."""
        if await asyncio.to_thread(self.sessions.find, key) is not None:
            return
        if branch.model:
            await self.runtime.models.choose(Session(key), branch.model)
        await asyncio.to_thread(self.sessions.branch, branch.session, before=branch.before, new_key=key)
        if branch.model:
            async with self.sessions.hold(key) as session:
                session.metadata["model"] = branch.model
                await self.sessions.append(session)

    @route("POST", "/api/sessions/{key:path}/stop")
    async def stop(self, key: str) -> Any:
        return {"stopped": await self.runtime.loop.stop_turn(key)}

    @route("POST", "/api/approvals/{question}")
    async def answer(self, question: str, body: _NewAnswer) -> Any:
        """Answer an approval question. 409 if it was answered already, with that answer."""
        questions = self.runtime.questions
        if questions.answer(question, Answer(body.answer)):
            return {"answer": body.answer}
        settled = questions.settled_answer(question)
        return json_response({"error": "This question is no longer open.", "answer": settled}, 409)

    @route("GET", "/api/commands")
    async def commands(self) -> Any:
        """The slash commands, without those that only a terminal has."""
        names = self.runtime.loop.commands.names()
        return {"commands": [{"name": name, "text": text} for name, text in names.items() if name not in TERMINAL_ONLY]}

    def event(self, event: dict[str, Any]) -> dict[str, Any]:
        """A turn event as the page shows it: its files have ids."""
        if "media" not in event:
            return event
        media = event.pop("media")
        return {**event, **_with_files(event.get("text", ""), media), "files": list(map(self._describe, media))}

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
            shown["files"] = list(map(self._describe, media))
        if reasoning := row.get("reasoning_content"):
            shown["reasoning"] = reasoning
        if calls := row.get("tool_calls"):
            shown["calls"] = list(map(self._call, calls))
        return shown

    def _call(self, call: ToolCall) -> dict[str, Any]:
        name, text = call["function"]["name"], call["function"]["arguments"]
        arguments, problem = parse_arguments(text)
        shown: dict[str, Any] = {"call_id": call["id"], "name": name, "arguments": {"": text} if problem else arguments}
        if name == MessageTool.name and not arguments.get("channel") and not arguments.get("chat_id"):
            shown["posted"] = self._posted(arguments)
        return shown

    def _posted(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """What the message tool has sent to this chat. Only files of the workspace: a model wrote the paths."""
        workspace = self.runtime.workspace.resolve()
        media = arguments.get("media")
        paths = [(workspace / str(path)).resolve() for path in (media if isinstance(media, list) else ())]
        files = [self._describe(str(path)) for path in paths if path.is_relative_to(workspace)]
        return {"text": arguments.get("content"), "files": files}

    def _describe(self, path: str) -> dict[str, Any]:
        """A file as the page shows it: `{id, name, kind, size}`, or `{url, name}` for a file elsewhere."""
        if path.startswith(("https://", "http://")):
            return {"url": path, "name": path.rpartition("/")[2] or path}
        file = Path(path)
        file_id = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        put_bounded(self._known, file_id, file, _MAX_KNOWN)
        shown = {"name": file.name, "kind": kind_by_suffix(file.suffix.lower()) or MediaKind.FILE}
        try:
            return {"id": file_id, **shown, "size": file.stat().st_size}
        except OSError:
            return {**shown, "is_gone": True}

    def _attachment(self, file_id: str) -> Attachment:
        """The file of this id, as an attachment. Raises HttpError."""
        path = self._path(file_id)
        self._unused.pop(path, None)
        kind = detect_file_kind(path, kind_by_suffix(path.suffix.lower()) or MediaKind.FILE)
        return Attachment(kind, is_here=True, path=str(path))

    def _path(self, file_id: str) -> Path:
        path = self._known.get(file_id)
        if path is None or not path.is_file():
            raise HttpError(404, "This file is not kept any more. Attach it again.")
        return path

    @route("POST", "/api/files", status=201)
    async def upload(self, request: Request) -> Any:
        """Store the body of the request as a file."""
        headers, largest = request.headers, MediaLimits().largest
        name, content_type = unquote(headers.get("x-file-name", ""))[:200] or None, headers.get("content-type", "")
        size = int(length) if (length := headers.get("content-length", "")).isdecimal() else None
        if size is not None and size > largest:
            raise HttpError(413, f"A file may have at most {human_size(largest)}.")
        attachment = Attachment(MediaKind.of_type(content_type), name=name, content_type=content_type, size=size)
        stored = await self.services.channel.services.media.store(attachment, request.stream)
        if stored.path is None:
            raise HttpError(400, "The file could not be stored: it is empty, too large, or the disk refuses it.")
        await asyncio.to_thread(self._add_unused, stored.path)
        return {**self._describe(str(stored.path)), "kind": stored.kind}

    def _add_unused(self, path: Path) -> None:
        """Note an upload, and delete those that were not used for a day."""
        now = self.runtime.clock.now().timestamp()
        for old in [each for each, came_at in self._unused.items() if now - came_at > _DAY_S]:
            old.unlink(missing_ok=True)
            del self._unused[old]
        self._unused[path] = now

    @route("GET", "/api/files/{file}")
    def download(self, file: str) -> Response:
        """A file. What could run scripts in the page's origin is only offered for saving."""
        path = self._path(file)
        content_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        is_inline = path.name.lower().endswith(INLINE_PICTURES) or content_type.startswith(("audio/", "video/"))
        return FileResponse(
            path,
            filename=path.name,
            media_type=content_type if is_inline else "application/octet-stream",
            content_disposition_type="inline" if is_inline else "attachment",
            headers={
                "Cache-Control": "private, max-age=86400",
                "Content-Security-Policy": "sandbox; default-src 'none'",
                "X-Content-Type-Options": "nosniff",
                "Cross-Origin-Resource-Policy": "same-origin",
            },
        )


def _with_files(text: str, media: list[str]) -> dict[str, Any]:
    """The text without what stands in it for its files, and the transcriptions of recordings."""
    if not media:
        return {"text": text}
    for path in media:
        text = re.sub(rf"^\[\w+: {re.escape(path)}\]\n?", "", text, flags=re.MULTILINE)
    transcripts = _TRANSCRIPTION.findall(text)
    text = _TRANSCRIPTION.sub("", text).strip()
    return {"text": text, "transcripts": transcripts} if transcripts else {"text": text}
