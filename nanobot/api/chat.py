"""`/v1/chat/completions`: platform.openai.com/docs/api-reference/chat, answered by turns of the agent."""

import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import Answer
from nanobot.agent.feed import TurnView
from nanobot.api.answers import AnswerReader, call_text
from nanobot.api.errors import error_object
from nanobot.api.prompts import ChatBody, ClientMessage, Prompt, UploadedFile, is_task_of_open_webui, marker_of
from nanobot.api.results import DONE, check_outcome, finish_reason, openai_usage, outcome_of, usage_of, wait_for
from nanobot.api.services import ApiServices
from nanobot.api.turns import ApiTurns, Following, ParsedRequest
from nanobot.net import sse
from nanobot.providers.base import CallContext, call_context_scope
from nanobot.security.credentials import Credential
from nanobot.security.http_access import HttpError, event_stream, json_response, read_body, validate

_APPROVAL_S = 120.0
"""How long a question to the owner may stay open while a program waits: chat completions cannot ask."""
_STEP_FIELDS = ("call_id", "name", "arguments", "ok", "content", "seconds")
_TASK_TOKENS = 300
_MAX_UPLOAD = 10 << 20


class ChatCompletions:
    """The endpoints of chat completions."""

    def __init__(self, services: ApiServices, turns: ApiTurns) -> None:
        self._services = services
        self._turns = turns

    async def create(self, request: Request, caller: Credential) -> Response:
        """Answer the new messages of the request."""
        config = self._services.runtime.config
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            body, raw, prompt = await _read_form(request)
        else:
            raw = await read_body(request, config.api.max_body_mb << 20)
            body = validate(ChatBody, raw)
            prompt = body.prompt(config)
        marker, steps = marker_of(body, request), _steps_of(request)
        options = body.request(config)
        if is_task_of_open_webui(body, request, prompt, marker):
            return await self._answer_task(body, prompt)
        following = await self._turns.start(
            request, caller, raw, ParsedRequest(prompt, marker, options, echo={"model": body.model})
        )
        headers = {"X-Nanobot-Session": following.request.session}
        if following.history:
            headers["X-Nanobot-History"] = following.history
        if body.stream:
            has_usage = bool(body.stream_options and body.stream_options.include_usage)
            return event_stream(self._stream(following, steps, has_usage=has_usage), headers)
        return await self._complete(request, following, headers, steps)

    async def get(self, request: Request, caller: Credential) -> Response:
        """A completion; with `stream=true` from where `starting_after` or Last-Event-ID says, else all of it."""
        following = await self._turns.find(caller, request.path_params["id"].removeprefix("chatcmpl-"))
        steps = _steps_of(request)
        if request.query_params.get("stream") != "true":
            return await self._complete(request, following, {}, steps)
        after = request.query_params.get("starting_after") or request.headers.get("last-event-id") or ""
        return event_stream(self._stream(following, steps, after=after, has_usage=True))

    async def _complete(self, request: Request, following: Following, headers: dict[str, str], steps: str) -> Response:
        view, record = following.view, following.request
        asked_at: dict[str, float] = {}
        with self._turns.listening(record):
            timeout_s = self._services.runtime.config.api.timeout
            await wait_for(request, self._turns, following, lambda: self._expire_approvals(view, asked_at), timeout_s)
        check_outcome(following)
        pieces = [piece for piece in _reader(following, steps).read() if piece.text]
        text = "".join(("\n\n" if piece.starts and at else "") + piece.text for at, piece in enumerate(pieces))
        self._services.requests.set_read(record.id)
        answer = json_response(
            {
                **_head(following, "chat.completion"),
                "choices": [_choice(text, finish_reason(view))],
                "usage": usage_of(view),
                "nanobot": outcome_of(following, self._services.runtime.workspace),
                "system_fingerprint": None,
            }
        )
        answer.headers.update(headers)
        return answer

    async def _stream(
        self, following: Following, steps: str, *, after: str = "", has_usage: bool
    ) -> AsyncIterator[bytes]:
        view, record = following.view, following.request
        head = _head(following, "chat.completion.chunk")
        usage = {"usage": None} if has_usage else {}
        position = _Position(record.turn_id, after)

        def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            return sse.event({**head, "choices": [choice], **usage}, event_id=position.event_id)

        with self._turns.listening(record):
            if not after:
                yield chunk({"role": "assistant", "content": ""})
            reader, asked_at, is_first = _reader(following, steps), dict[str, float](), True
            async for is_news in self._turns.changes(view):
                if not is_news:
                    self._expire_approvals(view, asked_at)
                    yield sse.PING
                    continue
                for piece in reader.read():
                    if piece.tool is not None and steps == "chunks":
                        step = {
                            "type": "tool_ended",
                            "turn_id": record.turn_id,
                            **{name: piece.tool.get(name) for name in _STEP_FIELDS},
                        }
                        yield sse.event({**head, "choices": [], **usage, "nanobot": {"event": step}})
                    elif piece.tool is not None:
                        yield sse.comment(_step(piece.tool))
                    elif piece.approval is not None:
                        if piece.approval["question"] not in asked_at:
                            yield sse.comment(f"waits for the owner's approval: {piece.approval['name']}")
                        self._expire_approvals(view, asked_at)
                    elif text := position.add(("\n\n" if piece.starts and not is_first else "") + piece.text):
                        yield chunk({"content": text})
                    is_first = is_first and not piece.text
            try:
                check_outcome(following)
            except HttpError as error:
                yield sse.event(error_object(error))
                return
            yield chunk({}, finish_reason(view))
            if has_usage:
                outcome = outcome_of(following, self._services.runtime.workspace)
                yield sse.event({**head, "choices": [], "usage": usage_of(view), "nanobot": outcome})
            yield DONE
            self._services.requests.set_read(record.id)

    def _expire_approvals(self, view: TurnView, asked_at: dict[str, float]) -> None:
        """Refuse what nobody has approved for too long."""
        now = time.monotonic()
        for part in [part for part in view.parts if part["type"] == "approval" and "answer" not in part]:
            if now - asked_at.setdefault(part["question"], now) > _APPROVAL_S:
                self._services.runtime.questions.answer(part["question"], Answer.EXPIRED)

    async def _answer_task(self, body: ChatBody, prompt: Prompt) -> Response:
        """One plain call of the background model."""
        models, defaults = self._services.runtime.models, self._services.runtime.config.agents.defaults
        model = await models.get(defaults.background_model)
        messages: list[Any] = [{"role": said.role, "content": said.text} for said in [*prompt.history, *prompt.new]]
        if prompt.instructions:
            messages.insert(0, {"role": "system", "content": prompt.instructions})
        with call_context_scope(CallContext("api task")):
            answer = await model.provider.chat(messages, None, model.name, _TASK_TOKENS, 0.1)
        head = {"id": f"chatcmpl-task-{time.time_ns()}", "created": int(time.time()), "model": body.model}
        if not body.stream:
            choice = _choice(answer.content or "", "stop")
            usage = openai_usage(answer.usage)
            return json_response({**head, "object": "chat.completion", "choices": [choice], "usage": usage})
        head["object"] = "chat.completion.chunk"
        deltas = [({"role": "assistant", "content": answer.content or ""}, None), ({}, "stop")]
        chunks = [
            sse.event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})
            for delta, finish in deltas
        ]
        return Response(b"".join([*chunks, DONE]), headers=sse.HEADERS, media_type=sse.CONTENT_TYPE)


class _Position:
    """How far a client has read the answer: `TURN.CHARACTERS-CHECKSUM` is the id of each event.

    The position means the same after a restart. The checksum tells whether the text before it is still what was sent.
    """

    def __init__(self, turn_id: str, after: str) -> None:
        """`after`: the id of the last event that the client has. Raises HttpError."""
        self._turn_id = turn_id
        self._sent = self._checksum = 0
        self._skip, self._expected = 0, 0
        self._skipped: list[str] = []
        if after:
            turn, _, place = after.rpartition(".")
            characters, _, checksum = place.partition("-")
            if turn.removeprefix("chatcmpl-") not in ("", turn_id) or not characters.isdigit():
                raise HttpError(
                    400, "starting_after is the id of the last event that you have.", param="starting_after"
                )
            self._skip, self._expected = int(characters), int(checksum or "0", 16)

    @property
    def event_id(self) -> str:
        return f"{self._turn_id}.{self._sent}-{self._checksum:08x}"

    def add(self, text: str) -> str:
        """Return the part of the next text that the client has not got."""
        known, new = text[: max(self._skip - self._sent, 0)], text[max(self._skip - self._sent, 0) :]
        for part in filter(None, (known, new)):
            self._sent += len(part)
            self._checksum = zlib.crc32(part.encode("utf-8", "replace"), self._checksum)
            if part is known:
                self._skipped.append(part)
                if self._sent == self._skip and self._checksum != self._expected:
                    new = f"\n\n[The answer was started again:]\n\n{''.join(self._skipped)}{new}"
        return new


def _choice(text: str, finish: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": 0, "message": message, "finish_reason": finish, "logprobs": None}


def _reader(following: Following, steps: str) -> AnswerReader:
    return AnswerReader(following.view, schema=following.request.echo.get("schema"), has_steps=steps == "text")


def _steps_of(request: Request) -> str:
    """How the client wants tool calls to be shown; empty: by comments. Raises HttpError."""
    steps = request.headers.get("x-nanobot-steps", "")
    if steps not in ("", "chunks", "text"):
        raise HttpError(400, "X-Nanobot-Steps is `chunks` or `text`.", code="invalid_value", param="X-Nanobot-Steps")
    return steps


def _head(following: Following, kind: str) -> dict[str, Any]:
    record = following.request
    return {
        "id": f"chatcmpl-{record.id}",
        "object": kind,
        "created": int(record.created_at),
        "model": record.echo.get("model", "nanobot"),
    }


def _step(tool: dict[str, Any]) -> str:
    state = f"{tool['seconds']:.1f} s" if tool.get("ok") else "failed"
    return f"step {call_text(tool)} {state}"


async def _read_form(request: Request) -> tuple[ChatBody, bytes, Prompt]:
    """The form of the original: `message`, `session_id`, `model`, `files`."""
    async with request.form(max_part_size=_MAX_UPLOAD) as form:
        files: list[UploadedFile] = []
        for value in (*form.getlist("files"), *form.getlist("files[]")):
            if isinstance(value, UploadFile):
                data = await value.read(_MAX_UPLOAD + 1)
                if len(data) > _MAX_UPLOAD:
                    raise HttpError(413, f"A file may have {_MAX_UPLOAD >> 20} MB.")
                files.append(UploadedFile(data, value.filename, value.content_type))
        text = str(form.get("message") or "")
        body = ChatBody(
            messages=[{"role": "user", "content": text}],
            model=str(form.get("model") or "nanobot"),
            session_id=str(form.get("session_id") or "") or None,
            stream=str(form.get("stream") or "").lower() == "true",
        )
    if not (text or files):
        raise HttpError(400, "Send a `message`, `files`, or both.", code="invalid_value", param="message")
    raw = b"\n".join([body.model_dump_json().encode(), *(file.data for file in files)])
    return body, raw, Prompt([ClientMessage("user", text, files)], [], "")
