"""`/v1/chat/completions`: platform.openai.com/docs/api-reference/chat, answered by turns of the agent."""

import time
import zlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import Answer, TurnOutcome
from nanobot.agent.feed import TurnView
from nanobot.api.answers import AnswerReader, call_text, check_outcome, error_fields, openai_usage, outcome_of
from nanobot.api.prompts import ChatBody, ClientMessage, Prompt, UploadedFile
from nanobot.api.turns import ApiView, Following
from nanobot.net import sse
from nanobot.providers.base import CallContext, call_context_scope
from nanobot.security.credentials import Credential
from nanobot.security.http_access import HttpError, event_stream, json_response, read_body, route, validate

_APPROVAL_S = 120.0
"""How long a question to the owner may stay open while a program waits: chat completions cannot ask."""
_STEP_FIELDS = ("call_id", "name", "arguments", "ok", "content", "seconds")
_TASK_TOKENS = 300
_MAX_UPLOAD = 10 << 20
_AGAIN = "\n\n[The answer was started again:]\n\n"
_DONE = sse.event("[DONE]")


class ChatCompletions(ApiView):
    @route("POST", "/v1/chat/completions", guest_may=True)
    async def create(self, request: Request, caller: Credential) -> Response:
        """Answer the new messages of the request."""
        config, form = self.runtime.config, None
        if request.headers.get("content-type", "").startswith("multipart/form-data"):
            body, raw, form = await _read_form(request)
        else:
            raw = await read_body(request, config.api.max_body_mb << 20)
            body = validate(ChatBody, raw)
        asked, steps = body.parse(request, config, form), _steps_of(request)
        if body.is_task(request, asked):
            return await self._answer_task(body, asked.prompt)
        following = await self.turns.start(request, caller, raw, asked)
        headers = {"X-Nanobot-Session": following.request.session}
        if following.history:
            headers["X-Nanobot-History"] = following.history
        if body.stream:
            has_usage = bool(body.stream_options and body.stream_options.include_usage)
            return event_stream(self._stream(following, steps, has_usage=has_usage), headers)
        answer = await self._complete(request, following, steps)
        answer.headers.update(headers)
        return answer

    @route("GET", "/v1/chat/completions/{completion}", guest_may=True)
    async def get(
        self, request: Request, caller: Credential, completion: str, stream: bool = False, starting_after: str = ""
    ) -> Response:
        """A completion; with `stream=true` from where `starting_after` or Last-Event-ID says, else all of it."""
        following, steps = await self.turns.find(caller, completion.removeprefix("chatcmpl-")), _steps_of(request)
        if not stream:
            return await self._complete(request, following, steps)
        after = starting_after or request.headers.get("last-event-id") or ""
        skipped = _read_position(following.request.turn_id, after) if after else None
        return event_stream(self._stream(following, steps, skipped=skipped, has_usage=True))

    async def _complete(self, request: Request, following: Following, steps: str) -> Response:
        view, asked_at = following.view, dict[str, float]()
        await self.turns.wait(request, following, lambda: self._expire_approvals(view, asked_at))
        check_outcome(view, following.schema)
        pieces = [piece for piece in _reader(following, steps).read() if piece.text]
        text = "".join(("\n\n" if piece.starts and at else "") + piece.text for at, piece in enumerate(pieces))
        self.services.requests.set_read(following.request.id)
        return json_response(
            {
                **_head(following, "chat.completion"),
                "choices": [_choice({"role": "assistant", "content": text, "refusal": None}, view, "message")],
                **self._figures(view),
                "system_fingerprint": None,
            }
        )

    async def _stream(
        self, following: Following, steps: str, *, skipped: tuple[int, int] | None = None, has_usage: bool
    ) -> AsyncIterator[bytes]:
        """`skipped`: how many characters the client has, and their checksum."""
        view, turn_id, head = following.view, following.request.turn_id, _head(following, "chat.completion.chunk")
        head |= {"usage": None} if has_usage else {}
        sent, checksum, known, (skip, expected) = 0, 0, "", skipped or (0, 0)

        def chunk(delta: dict[str, Any], ended: TurnView | None = None) -> bytes:
            event_id = f"{turn_id}.{sent}-{checksum:08x}"
            return sse.event({**head, "choices": [_choice(delta, ended, "delta")]}, event_id=event_id)

        with self.turns.listening(following.request):
            if skipped is None:
                yield chunk({"role": "assistant", "content": ""})
            reader, asked_at = _reader(following, steps), dict[str, float]()
            async for is_news in self.turns.changes(view):
                if not is_news:
                    self._expire_approvals(view, asked_at)
                    yield sse.PING
                    continue
                for piece in reader.read():
                    if piece.approval is not None:
                        if piece.approval["question"] not in asked_at:
                            yield sse.comment(f"waits for the owner's approval: {piece.approval['name']}")
                        self._expire_approvals(view, asked_at)
                    elif (tool := piece.tool) is not None and steps == "chunks":
                        step = {
                            "type": "tool_ended",
                            "turn_id": turn_id,
                            **{name: tool.get(name) for name in _STEP_FIELDS},
                        }
                        yield sse.event({**head, "choices": [], "nanobot": {"event": step}})
                    elif tool is not None:
                        state = f"{tool['seconds']:.1f} s" if tool.get("ok") else "failed"
                        yield sse.comment(f"step {call_text(tool)} {state}")
                    else:
                        added = ("\n\n" if piece.starts and sent else "") + piece.text
                        before, sent = sent, sent + len(added)
                        checksum = zlib.crc32(added.encode("utf-8", "replace"), checksum)
                        if before >= skip:
                            yield chunk({"content": added})
                            continue
                        known += added
                        if sent >= skip:  # what the client has may be of an answer that was given up
                            is_same = zlib.crc32(known[:skip].encode("utf-8", "replace")) == expected
                            if new := known[skip:] if is_same else _AGAIN + known:
                                yield chunk({"content": new})
            try:
                check_outcome(view, following.schema)
            except HttpError as error:
                yield sse.event({"error": error_fields(error)})
                return
            if sent < skip:
                yield chunk({"content": _AGAIN + known})
            yield chunk({}, view)
            if has_usage:
                yield sse.event({**head, "choices": [], **self._figures(view)})
            yield _DONE
            self.services.requests.set_read(following.request.id)

    def _figures(self, view: TurnView) -> dict[str, Any]:
        usage = view.ended.usage if view.ended is not None else {}
        return {"usage": openai_usage(usage), "nanobot": outcome_of(view, self.runtime.workspace)}

    def _expire_approvals(self, view: TurnView, asked_at: dict[str, float]) -> None:
        """Refuse what nobody has approved for too long."""
        now = time.monotonic()
        for part in [part for part in view.parts if part["type"] == "approval" and "answer" not in part]:
            if now - asked_at.setdefault(part["question"], now) > _APPROVAL_S:
                self.runtime.questions.answer(part["question"], Answer.EXPIRED)

    async def _answer_task(self, body: ChatBody, prompt: Prompt) -> Response:
        """One plain call of the background model."""
        model = await self.runtime.models.get(self.runtime.config.agents.defaults.background_model)
        messages: list[Any] = [{"role": said.role, "content": said.text} for said in [*prompt.history, *prompt.new]]
        if prompt.instructions:
            messages.insert(0, {"role": "system", "content": prompt.instructions})
        with call_context_scope(CallContext("api task")):
            answer = await model.provider.chat(messages, None, model.name, _TASK_TOKENS, 0.1)
        head = {"id": f"chatcmpl-task-{time.time_ns()}", "created": int(time.time()), "model": body.model}
        choice = {"index": 0, "finish_reason": "stop", "logprobs": None}
        message = {"role": "assistant", "content": answer.content or ""}
        if not body.stream:
            usage, choices = openai_usage(answer.usage), [{**choice, "message": {**message, "refusal": None}}]
            return json_response({**head, "object": "chat.completion", "choices": choices, "usage": usage})
        chunk = {**head, "object": "chat.completion.chunk", "choices": [{**choice, "delta": message}]}
        return Response(sse.event(chunk) + _DONE, headers=sse.HEADERS, media_type=sse.CONTENT_TYPE)


def _read_position(turn_id: str, after: str) -> tuple[int, int]:
    """The number and the checksum of the characters that a client has, by the id of its last event:
    `TURN.CHARACTERS-CHECKSUM`, which means the same after a restart. Raises HttpError.
    """
    turn, _, place = after.rpartition(".")
    characters, _, checksum = place.partition("-")
    if turn.removeprefix("chatcmpl-") in ("", turn_id) and characters.isdigit():
        try:
            return int(characters), int(checksum or "0", 16)
        except ValueError:
            pass
    raise HttpError(400, "starting_after is the id of the last event that you have.", param="starting_after")


def _choice(content: dict[str, Any], ended: TurnView | None, name: str) -> dict[str, Any]:
    """A choice; with the view of its turn the last one."""
    finish = None
    if ended is not None:
        is_partial = ended.ended is not None and ended.ended.outcome is TurnOutcome.PARTIAL
        finish = "length" if is_partial else "stop"
    return {"index": 0, name: content, "finish_reason": finish, "logprobs": None}


def _reader(following: Following, steps: str) -> AnswerReader:
    return AnswerReader(following.view, schema=following.schema, has_steps=steps == "text")


def _steps_of(request: Request) -> str:
    """How the client wants tool calls to be shown; empty: by comments. Raises HttpError."""
    steps = request.headers.get("x-nanobot-steps", "")
    if steps not in ("", "chunks", "text"):
        raise HttpError(400, "X-Nanobot-Steps is `chunks` or `text`.", code="invalid_value", param="X-Nanobot-Steps")
    return steps


def _head(following: Following, kind: str) -> dict[str, Any]:
    record = following.request
    model, created = record.echo.get("model", "nanobot"), int(record.created_at)
    return {"id": f"chatcmpl-{record.id}", "object": kind, "created": created, "model": model}


async def _read_form(request: Request) -> tuple[ChatBody, bytes, Prompt]:
    """The form of the original: `message`, `session_id`, `model`, `files`."""
    async with request.form(max_part_size=_MAX_UPLOAD) as form:
        texts = {name: value for name, value in form.items() if isinstance(value, str) and value}
        uploads = [file for name in ("files", "files[]") for file in form.getlist(name) if isinstance(file, UploadFile)]
        files = [UploadedFile(await file.read(_MAX_UPLOAD + 1), file.filename, file.content_type) for file in uploads]
    if any(len(file.data) > _MAX_UPLOAD for file in files):
        raise HttpError(413, f"A file may have {_MAX_UPLOAD >> 20} MB.")
    text = texts.get("message", "")
    if not (text or files):
        raise HttpError(400, "Send a `message`, `files`, or both.", code="invalid_value", param="message")
    body = ChatBody(
        messages=[{"role": "user", "content": text}],
        model=texts.get("model", "nanobot"),
        session_id=texts.get("session_id"),
        stream=texts.get("stream", "").lower() == "true",
    )
    raw = b"\n".join([body.model_dump_json().encode(), *(file.data for file in files)])
    return body, raw, Prompt([ClientMessage("user", text, files)], [], "")
