"""`/v1/responses`: platform.openai.com/docs/api-reference/responses and .../responses-streaming.

The state of a response is the session of its turn. The number of an event means the same after a restart: the events
follow from what the turn shows, and each text delta has DELTA_CHARS characters.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from nanobot.agent.events import Answer, TurnOutcome
from nanobot.api.answers import AnswerReader, check_outcome, error_fields, openai_usage, outcome_of, part_count
from nanobot.api.prompts import ResponsesBody
from nanobot.api.requests import KEPT_S
from nanobot.api.turns import ApiView, Following
from nanobot.net import sse
from nanobot.security.credentials import Credential, HttpRole
from nanobot.security.http_access import HttpError, event_stream, json_response, read_body, route, validate

DELTA_CHARS = 8
_SERVER = "nanobot"
_CONSTANT: dict[str, Any] = {
    "parallel_tool_calls": True, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
    "tools": [], "top_p": None, "truncation": "disabled",
}  # fmt: skip
_Item = dict[str, Any]


class Responses(ApiView):
    @route("POST", "/v1/responses", guest_may=True)
    async def create(self, request: Request, caller: Credential) -> Response:
        """Answer the new input, or go on after an approval question."""
        raw = await read_body(request, self.runtime.config.api.max_body_mb << 20)
        body = validate(ResponsesBody, raw)
        asked, previous = body.parse(request, self.runtime.config), None
        if body.previous_response_id is not None:
            previous = await self._find(caller, body.previous_response_id)
        if asked.prompt.approvals:
            following = await self._answer_approvals(caller, previous, asked.prompt.approvals)
        else:
            asked.session = previous.request.session if previous is not None and not asked.marker else ""
            following = await self.turns.start(request, caller, raw, asked)
        if body.background:
            self.turns.detach(following.request)
        if body.stream:
            return event_stream(self._stream(following, after=-1))
        if not body.background:
            await self.turns.wait(request, following, lambda: _has_open_question(following))
            if _has_open_question(following):
                self.turns.detach(following.request)
        return self._answer(following, is_background=bool(body.background))

    @route("GET", "/v1/responses/{response}", guest_may=True)
    async def get(
        self,
        request: Request,
        caller: Credential,
        response: str,
        stream: bool = False,
        starting_after: Annotated[int | None, Field(ge=-1)] = None,
    ) -> Response:
        """A response as it is now; with `stream=true` its events after `starting_after`."""
        following = await self._find(caller, response)
        if not stream:
            return self._answer(following)
        last = request.headers.get("last-event-id", "")
        if starting_after is None:
            starting_after = int(last) if last.isdigit() else -1
        return event_stream(self._stream(following, starting_after))

    @route("DELETE", "/v1/responses/{response}", guest_may=True)
    async def delete(self, caller: Credential, response: str) -> Any:
        """Forget a response. A conversation that it belongs to stays."""
        record = (await self._find(caller, response)).request
        await self.services.requests.delete(record.id)
        return {"id": f"resp_{record.id}", "object": "response", "deleted": True}

    @route("POST", "/v1/responses/{response}/cancel", guest_may=True)
    async def cancel(self, caller: Credential, response: str) -> Response:
        """Stop the turn. What it has said stays."""
        following = await self._find(caller, response)
        if following.view.ended is None:
            await self.runtime.loop.stop_turn(following.request.session, following.request.turn_id)
        return self._answer(following)

    @route("GET", "/v1/responses/{response}/input_items", guest_may=True)
    async def input_items(self, caller: Credential, response: str) -> Any:
        """The message that a response answers."""
        following = await self._find(caller, response)
        item_id, content = f"msg_{following.request.turn_id}_in", following.view.started.text
        item = {"id": item_id, "type": "message", "role": "user", "status": "completed"}
        data = [{**item, "content": [{"type": "input_text", "text": content}]}]
        return {"object": "list", "data": data, "first_id": item_id, "last_id": item_id, "has_more": False}

    async def _find(self, caller: Credential, response_id: str) -> Following:
        return await self.turns.find(caller, response_id.removeprefix("resp_"))

    async def _answer_approvals(
        self, caller: Credential, previous: Following | None, approvals: dict[str, bool]
    ) -> Following:
        """Answer open questions and follow the turn that asked them."""
        if previous is None:
            text = "Send previous_response_id with an mcp_approval_response."
            raise HttpError(400, text, code="invalid_value", param="previous_response_id")
        if caller.role is not HttpRole.OWNER:
            raise HttpError(403, "Only an owner may approve that.")
        first_part, questions = part_count(previous.view), self.runtime.questions
        for item_id, approve in approvals.items():
            question, answer = item_id.removeprefix("mcpr_"), Answer.ONCE if approve else Answer.NO
            if not questions.answer(question, answer) and questions.settled_answer(question) is None:
                text = "This approval request is not open any more."
                raise HttpError(400, text, code="invalid_value", param="input")
        new_id = f"{previous.request.turn_id}-{'-'.join(sorted(approvals))}".replace("mcpr_", "")
        record = await self.services.requests.get(new_id)
        if record is None:
            new = replace(previous.request, id=new_id, idempotency=None, first_part=first_part)
            record = await self.services.requests.add(new, is_retry=False, kept_s=KEPT_S)
        return Following(record, previous.view)

    def _answer(self, following: Following, *, is_background: bool = False) -> Response:
        events = _Events(following, self.runtime.workspace)
        events.read()
        if not is_background and not following.request.echo.get("background"):
            check_outcome(following.view, following.schema)
        if following.view.ended is not None or _has_open_question(following):
            self.services.requests.set_read(following.request.id)
        return json_response(events.response())

    async def _stream(self, following: Following, after: int) -> AsyncIterator[bytes]:
        events, sent = _Events(following, self.runtime.workspace), after + 1
        with self.turns.listening(following.request):
            async for is_news in self.turns.changes(following.view):
                if not is_news:
                    yield sse.PING
                    continue
                events.read()
                if new := events.log[sent:]:
                    sent = len(events.log)
                    yield b"".join(sse.event(event, name=event["type"]) for event in new)
                if events.is_complete:
                    break
            if _has_open_question(following):
                self.turns.detach(following.request)
            self.services.requests.set_read(following.request.id)


class _Events:
    """The events of a response, and the response itself."""

    def __init__(self, following: Following, workspace: Path) -> None:
        self._following = following
        self._workspace = workspace
        record = following.request
        self._reader = AnswerReader(following.view, first_part=record.first_part, schema=following.schema)
        self._items: list[_Item] = []
        self._text: str | None = None
        """That of the last item, while it is a message in progress."""
        self._sent = 0
        """How much of it was sent."""
        self.log: list[dict[str, Any]] = []
        self.is_complete = False
        self._add("created", response=self.response("in_progress"))
        self._add("in_progress", response=self.response("in_progress"))

    def _add(self, kind: str, **fields: Any) -> None:
        self.log.append({"type": f"response.{kind}", **fields, "sequence_number": len(self.log)})

    def _add_of_item(self, kind: str, **fields: Any) -> None:
        self._add(kind, item_id=self._items[-1]["id"], output_index=len(self._items) - 1, **fields)

    def read(self) -> None:
        """Add the events of what the turn has shown since the last call."""
        is_asking = False
        for piece in self._reader.read() if not self.is_complete else ():
            if piece.tool is not None or piece.approval is not None or piece.starts:
                self._end_message()
            if piece.text:
                self._say(piece.text)
            elif piece.tool is not None:
                self._add_call(piece.tool)
            elif piece.approval is not None:
                is_asking = True
                self._begin(f"mcpr_{piece.approval['question']}", "mcp_approval_request", **_call(piece.approval))
                self._done()
        if not self.is_complete and (self._reader.is_complete or is_asking):
            self._end_message()
            self.is_complete = True
            response = self.response()
            self._add("incomplete" if response["status"] == "cancelled" else response["status"], response=response)

    def _begin(self, item_id: str, kind: str, **fields: Any) -> None:
        self._items.append({"id": item_id, "type": kind, **fields})
        self._add("output_item.added", output_index=len(self._items) - 1, item=dict(self._items[-1]))

    def _done(self) -> None:
        self._add("output_item.done", output_index=len(self._items) - 1, item=dict(self._items[-1]))

    def _new_id(self, kind: str) -> str:
        return f"{kind}_{self._following.request.id}_{len(self._items)}"

    def _say(self, text: str) -> None:
        if self._text is None:
            self._text, self._sent = "", 0
            self._begin(self._new_id("msg"), "message", role="assistant", status="in_progress", content=[])
            self._add_of_item("content_part.added", content_index=0, part=_part(""))
        self._text += text
        while len(self._text) - self._sent >= DELTA_CHARS:
            self._send(self._text)

    def _send(self, text: str) -> None:
        delta = text[self._sent : self._sent + DELTA_CHARS]
        self._sent += len(delta)
        self._add_of_item("output_text.delta", content_index=0, delta=delta, logprobs=[])

    def _end_message(self) -> None:
        text, self._text = self._text, None
        if text is None:
            return
        if self._sent < len(text):
            self._send(text)
        self._items[-1] |= {"status": "completed", "content": [_part(text)]}
        self._add_of_item("output_text.done", content_index=0, text=text, logprobs=[])
        self._add_of_item("content_part.done", content_index=0, part=_part(text))
        self._done()

    def _add_call(self, tool: dict[str, Any]) -> None:
        output, status = str(tool.get("content", "")), "completed" if tool.get("ok") else "failed"
        call = _call(tool)
        arguments, waiting = call["arguments"], {"output": None, "error": None, "status": "in_progress"}
        self._begin(self._new_id("mcp"), "mcp_call", **{**call, "arguments": ""}, **waiting)
        result = {"output": output} if tool.get("ok") else {"error": output or "stopped"}
        self._items[-1] |= {"arguments": arguments, **result, "status": status}
        self._add_of_item("mcp_call.in_progress")
        self._add_of_item("mcp_call_arguments.delta", delta=arguments)
        self._add_of_item("mcp_call_arguments.done", arguments=arguments)
        self._add_of_item(f"mcp_call.{status}")
        self._done()

    def response(self, status: str = "") -> dict[str, Any]:
        """The response object, as far as events were read."""
        record, view, schema = self._following.request, self._following.view, self._following.schema
        status, echo = status or self._status(), record.echo
        error, usage, outcome = None, None, {"turn_id": record.turn_id, "session": record.session}
        if view.ended is not None and status != "in_progress":
            usage = openai_usage(view.ended.usage, sent="input", received="output")
            outcome = outcome_of(view, self._workspace)
            try:
                check_outcome(view, schema)
            except HttpError as problem:
                error = {"code": error_fields(problem)["code"] or "server_error", "message": str(problem)}
        return {
            "id": f"resp_{record.id}",
            "object": "response",
            "created_at": int(record.created_at),
            "status": status,
            "background": bool(echo.get("background")),
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": echo.get("instructions"),
            "metadata": echo.get("metadata") or {},
            "model": echo.get("model", _SERVER),
            "output": [dict(item) for item in self._items],
            "previous_response_id": echo.get("previous_response_id"),
            "store": echo.get("store", True),
            "usage": usage,
            **_CONSTANT,
            "nanobot": outcome,
        }

    def _status(self) -> str:
        ended, view = self._following.view.ended, self._following.view
        if self._items and self._items[-1]["type"] == "mcp_approval_request":
            return "completed"
        if ended is None:
            return "in_progress" if view.parts or view.seq >= 0 else "queued"
        if ended.outcome is TurnOutcome.STOPPED:
            return "failed" if ended.later else "cancelled"
        return {TurnOutcome.ANSWERED: "completed", TurnOutcome.PARTIAL: "incomplete"}.get(ended.outcome, "failed")


def _has_open_question(following: Following) -> bool:
    """Whether the turn waits for an answer to an approval question."""
    return any(part["type"] == "approval" and "answer" not in part for part in following.view.parts)


def _call(part: dict[str, Any]) -> dict[str, Any]:
    arguments = json.dumps(part["arguments"], ensure_ascii=False)
    return {"server_label": _SERVER, "name": part["name"], "arguments": arguments}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
