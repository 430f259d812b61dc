"""`/v1/responses`: platform.openai.com/docs/api-reference/responses and .../responses-streaming.

The state of a response is the session of its turn. The number of an event means the same after a restart: the events
follow from what the turn shows, and each text delta has DELTA_CHARS characters.
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from nanobot.agent.events import Answer, TurnOutcome
from nanobot.agent.feed import TurnView
from nanobot.api.answers import AnswerReader
from nanobot.api.errors import error_object
from nanobot.api.prompts import ResponsesBody, marker_of
from nanobot.api.results import check_outcome, outcome_of, usage_of, wait_for
from nanobot.api.services import ApiServices
from nanobot.api.store import KEPT_S
from nanobot.api.turns import ApiTurns, Following, ParsedRequest, changes
from nanobot.net import sse
from nanobot.security.credentials import Credential, HttpRole
from nanobot.security.http_access import HttpError, json_response, read_body, validate

DELTA_CHARS = 8
_SERVER = "nanobot"
_Event = dict[str, Any]


class Responses:
    """The endpoints of responses."""

    def __init__(self, services: ApiServices, turns: ApiTurns) -> None:
        self._services = services
        self._turns = turns

    async def create(self, request: Request, caller: Credential) -> Response:
        """Answer the new input, or go on after an approval question."""
        config = self._services.runtime.config
        raw = await read_body(request, config.api.max_body_mb << 20)
        body = validate(ResponsesBody, raw)
        prompt = body.prompt(config)
        previous = None
        if body.previous_response_id is not None:
            previous = await self._turns.find(caller, _id_of(body.previous_response_id))
        if prompt.approvals:
            following = await self._answer_approvals(caller, previous, prompt.approvals, raw)
        else:
            marker = marker_of(body, request)
            session = previous.request.session if previous is not None and not marker else ""
            echo = body.model_dump(
                include={"model", "metadata", "instructions", "previous_response_id", "background", "store"},
                exclude_none=True,
            )
            asked = ParsedRequest(
                prompt, marker, body.request(config), session, echo, is_stored=body.store is not False
            )
            following = await self._turns.start(request, caller, raw, asked)
        if body.background:
            self._turns.detach(following.request)
        if body.stream:
            return self._streaming(following, after=-1)
        if not body.background:
            await self._wait(request, following)
        return self._answer(following, is_background=bool(body.background))

    async def get(self, request: Request, caller: Credential) -> Response:
        """A response as it is now; with `stream=true` its events after `starting_after`."""
        following = await self._find(request, caller)
        if request.query_params.get("stream") != "true":
            return self._answer(following)
        after = request.query_params.get("starting_after") or request.headers.get("last-event-id") or "-1"
        if not after.lstrip("-").isdigit():
            raise HttpError(400, "starting_after is the sequence_number of an event.", param="starting_after")
        return self._streaming(following, after=int(after))

    async def cancel(self, request: Request, caller: Credential) -> Response:
        """Stop the turn. What it has said stays."""
        following = await self._find(request, caller)
        if following.view.ended is None:
            record = following.request
            await self._services.runtime.loop.stop_turn(record.session, record.turn_id)
        return self._answer(following)

    async def delete(self, request: Request, caller: Credential) -> Response:
        """Forget a response. A conversation that it belongs to stays."""
        following = await self._find(request, caller)
        await self._services.requests.delete(following.request.id)
        return json_response({"id": f"resp_{following.request.id}", "object": "response", "deleted": True})

    async def input_items(self, request: Request, caller: Credential) -> Response:
        """The message that a response answers."""
        following = await self._find(request, caller)
        content = [{"type": "input_text", "text": following.view.started.text}]
        item = {"id": f"msg_{following.request.turn_id}_in", "type": "message", "role": "user", "status": "completed"}
        data = [{**item, "content": content}]
        return json_response(
            {"object": "list", "data": data, "first_id": item["id"], "last_id": item["id"], "has_more": False}
        )

    async def _find(self, request: Request, caller: Credential) -> Following:
        return await self._turns.find(caller, _id_of(request.path_params["id"]))

    async def _answer_approvals(
        self, caller: Credential, previous: Following | None, approvals: dict[str, bool], raw: bytes
    ) -> Following:
        """Answer open questions and follow the turn that asked them."""
        if previous is None:
            text = "Send previous_response_id with an mcp_approval_response."
            raise HttpError(400, text, code="invalid_value", param="previous_response_id")
        if caller.role is not HttpRole.OWNER:
            raise HttpError(403, "Only an owner may approve that.")
        first_part = AnswerReader(previous.view).part_count
        for item_id, approve in approvals.items():
            question, answer = item_id.removeprefix("mcpr_"), Answer.ONCE if approve else Answer.NO
            questions = self._services.runtime.questions
            if not questions.answer(question, answer) and questions.settled_answer(question) is None:
                text = "This approval request is not open any more."
                raise HttpError(400, text, code="invalid_value", param="input")
        new_id = f"{previous.request.turn_id}-{'-'.join(sorted(approvals))}".replace("mcpr_", "")
        record = replace(previous.request, id=new_id, idempotency=None, first_part=first_part)
        known = await self._services.requests.get(new_id)
        if known is None:
            known = await self._services.requests.add(record, is_retry=False, kept_s=KEPT_S)
        return Following(known, previous.view)

    async def _wait(self, request: Request, following: Following) -> None:
        timeout_s = self._services.runtime.config.api.timeout
        writer = _Events(following, self._services.runtime.workspace)
        with self._turns.listening(following.request):
            await wait_for(request, self._turns, following, lambda: writer.has_open_question, timeout_s)
            if writer.has_open_question:
                self._turns.detach(following.request)

    def _answer(self, following: Following, *, is_background: bool = False) -> Response:
        events = _Events(following, self._services.runtime.workspace)
        for _ in events.new():
            pass
        if following.view.ended is not None and not is_background and not following.request.echo.get("background"):
            check_outcome(following)
        if following.view.ended is not None or events.has_open_question:
            self._services.requests.set_read(following.request.id)
        return json_response(events.response())

    def _streaming(self, following: Following, *, after: int) -> Response:
        stream = self._stream(following, after)
        return StreamingResponse(stream, media_type=sse.CONTENT_TYPE, headers=sse.HEADERS)

    async def _stream(self, following: Following, after: int) -> AsyncIterator[bytes]:
        events = _Events(following, self._services.runtime.workspace)
        with self._turns.listening(following.request):
            async for is_news in changes(following.view):
                if not is_news:
                    yield sse.PING
                    continue
                frames = [
                    sse.event(event, name=event["type"]) for event in events.new() if event["sequence_number"] > after
                ]
                if frames:
                    yield b"".join(frames)
                if events.is_complete:
                    break
            if events.has_open_question:
                self._turns.detach(following.request)
            self._services.requests.set_read(following.request.id)


class _Events:
    """The events of a response, and the response itself."""

    def __init__(self, following: Following, workspace: Path) -> None:
        self._following = following
        self._workspace = workspace
        self._record = following.request
        self._view = following.view
        schema = following.request.echo.get("schema")
        self._reader = AnswerReader(following.view, first_part=following.request.first_part, schema=schema)
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._text = ""
        """Text of the message item in progress."""
        self._sent = 0
        """How much of it was sent."""
        self._is_open = False
        """Whether the last item is a message in progress."""
        self.is_complete = False
        self._approval: dict[str, Any] | None = None

    @property
    def has_open_question(self) -> bool:
        """Whether the turn waits for an answer to an approval question."""
        return any(part["type"] == "approval" and "answer" not in part for part in self._view.parts)

    def new(self) -> Iterator[_Event]:
        """The events since the last call, in order."""
        for event in self._new():
            yield {**event, "sequence_number": self._number}
            self._number += 1

    def _new(self) -> Iterator[_Event]:
        if not self._number and not self._items:
            yield {"type": "response.created", "response": self.response("in_progress")}
            yield {"type": "response.in_progress", "response": self.response("in_progress")}
        if self.is_complete:
            return
        for piece in self._reader.read():
            if piece.tool is not None:
                yield from self._end_message()
                yield from self._tool_call(piece.tool)
            elif piece.approval is not None:
                yield from self._end_message()
                yield from self._ask(piece.approval)
            else:
                if piece.starts:
                    yield from self._end_message()
                yield from self._add_text(piece.text)
        if self._reader.is_complete or self._approval is not None:
            yield from self._end_message()
            self.is_complete = True
            response = self.response()
            status = response["status"]
            yield {"type": f"response.{status if status != 'cancelled' else 'incomplete'}", "response": response}

    def _add_text(self, text: str) -> Iterator[_Event]:
        if not self._is_open:
            self._is_open, self._text, self._sent = True, "", 0
            item = {"id": self._item_id("msg"), "type": "message", "role": "assistant", "status": "in_progress"}
            self._items.append({**item, "content": []})
            yield self._of_item("response.output_item.added", item={**item, "content": []})
            yield self._of_text("response.content_part.added", part=_part(""))
        self._text += text
        while len(self._text) - self._sent >= DELTA_CHARS:
            yield self._delta(DELTA_CHARS)

    def _end_message(self) -> Iterator[_Event]:
        if not self._is_open:
            return
        self._is_open = False
        if self._sent < len(self._text):
            yield self._delta(DELTA_CHARS)
        item = self._items[-1]
        item |= {"status": "completed", "content": [_part(self._text)]}
        yield self._of_text("response.output_text.done", text=self._text, logprobs=[])
        yield self._of_text("response.content_part.done", part=_part(self._text))
        yield self._of_item("response.output_item.done", item=dict(item))

    def _delta(self, count: int) -> _Event:
        delta = self._text[self._sent : self._sent + count]
        self._sent += len(delta)
        return self._of_text("response.output_text.delta", delta=delta, logprobs=[])

    def _tool_call(self, tool: dict[str, Any]) -> Iterator[_Event]:
        arguments, ok = json.dumps(tool["arguments"], ensure_ascii=False), bool(tool.get("ok"))
        output = str(tool.get("content", ""))
        item: dict[str, Any] = {
            "id": self._item_id("mcp"), "type": "mcp_call", "server_label": _SERVER, "name": tool["name"],
            "arguments": arguments, "output": output if ok else None, "error": None if ok else output or "stopped",
            "status": "completed" if ok else "failed",
        }  # fmt: skip
        self._items.append(item)
        started = {**item, "arguments": "", "output": None, "error": None, "status": "in_progress"}
        yield self._of_item("response.output_item.added", item=started)
        of_call = {"item_id": item["id"], "output_index": len(self._items) - 1}
        yield {"type": "response.mcp_call.in_progress", **of_call}
        yield {"type": "response.mcp_call_arguments.delta", **of_call, "delta": arguments}
        yield {"type": "response.mcp_call_arguments.done", **of_call, "arguments": arguments}
        yield {"type": f"response.mcp_call.{item['status']}", **of_call}
        yield self._of_item("response.output_item.done", item=item)

    def _ask(self, approval: dict[str, Any]) -> Iterator[_Event]:
        self._approval = approval
        item = {
            "id": f"mcpr_{approval['question']}",
            "type": "mcp_approval_request",
            "server_label": _SERVER,
            "name": approval["name"],
            "arguments": json.dumps(approval["arguments"], ensure_ascii=False),
        }
        self._items.append(item)
        yield self._of_item("response.output_item.added", item=item)
        yield self._of_item("response.output_item.done", item=item)

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._record.id}_{len(self._items)}"

    def _of_item(self, kind: str, **fields: Any) -> _Event:
        return {"type": kind, "output_index": len(self._items) - 1, **fields}

    def _of_text(self, kind: str, **fields: Any) -> _Event:
        item_id, index = self._items[-1]["id"], len(self._items) - 1
        return {"type": kind, "item_id": item_id, "output_index": index, "content_index": 0, **fields}

    def response(self, status: str = "") -> dict[str, Any]:
        """The response object, as far as events were read."""
        record, view, ended = self._record, self._view, self._view.ended
        status = status or self._status()
        error, usage, outcome = None, None, {"turn_id": record.turn_id, "session": record.session}
        if ended is not None and status != "in_progress":
            usage = _usage(view)
            outcome = outcome_of(self._following, self._workspace)
            try:
                check_outcome(self._following)
            except HttpError as problem:
                details = error_object(problem)["error"]
                assert isinstance(details, dict)  # noqa: S101 made above
                error = {"code": details["code"] or "server_error", "message": str(problem)}
        return {
            "id": f"resp_{record.id}",
            "object": "response",
            "created_at": int(record.created_at),
            "status": status,
            "background": bool(record.echo.get("background")),
            "error": error,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": record.echo.get("instructions"),
            "metadata": record.echo.get("metadata") or {},
            "model": record.echo.get("model", _SERVER),
            "output": [dict(item) for item in self._items],
            "parallel_tool_calls": True,
            "previous_response_id": record.echo.get("previous_response_id"),
            "store": record.echo.get("store", True),
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": usage,
            "nanobot": outcome,
        }

    def _status(self) -> str:
        ended = self._view.ended
        if self._approval is not None:
            return "completed"
        if ended is None:
            has_begun = bool(self._view.parts) or self._view.seq >= 0
            return "in_progress" if has_begun else "queued"
        match ended.outcome:
            case TurnOutcome.ANSWERED:
                return "completed"
            case TurnOutcome.PARTIAL:
                return "incomplete"
            case TurnOutcome.STOPPED:
                return "failed" if ended.later else "cancelled"
            case _:
                return "failed"


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(view: TurnView) -> dict[str, Any]:
    usage = usage_of(view)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


def _id_of(response_id: str) -> str:
    return response_id.removeprefix("resp_")
