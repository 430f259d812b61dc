"""The OpenAI Responses wire: input items go out, typed events come back.

Sources. The public reference (platform.openai.com/docs/api-reference/responses and .../responses-streaming) for items,
tools and events; the published source of OpenAI's own client (github.com/openai/codex: codex-rs/codex-api, the request
in common.rs, the events in sse/responses.rs) for what the ChatGPT backend requires: `instructions`, `store` false and
`stream` true.

The server stores nothing, so every request carries everything, including the reasoning as the server encrypted it
(`include: ["reasoning.encrypted_content"]`), without item ids, which refer to stored items.

A stream ends in `response.completed`, `response.incomplete` or `response.failed`; there is no `[DONE]`.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.providers.base import LLMResponse, ReasoningDelta, TextDelta, call_context
from nanobot.providers.endpoint import Endpoint, Facts
from nanobot.providers.error_patterns import ErrorResponse
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire.rows import (
    RequestDialect,
    ToolsEncoder,
    encode,
    has_images,
    image_blocks,
    request_body,
    text_for_model,
    wire_text,
)
from nanobot.providers.wire.stream import PartialCall, Reader, WireCall, dicts_in, normal_usage, text_or_empty

INSTRUCTIONS = "You are nanobot, a helpful assistant."
"""Used if a request has no system prompt: the backend requires instructions."""
MIN_OUTPUT_TOKENS = 16
"""The API rejects a smaller `max_output_tokens`."""
MAX_CALL_ID_LENGTH = 64
Item = dict[str, Any]


def flat_tool(schema: ToolSchema) -> Item:
    """A tool in this wire's shape: flat, and not strict (strict is the default here, but few schemas qualify)."""
    function = schema.get("function", {})
    fields = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", **fields, "strict": False}


def build_input(
    rows: Sequence[ChatMessage], *, images: bool = True, undecryptable: Iterable[int] = ()
) -> tuple[str, list[Item]]:
    """The instructions and the input items. Reads the image files that the rows name: call it in a thread if there are
    any. `undecryptable`: hashes of the reasoning to leave out.
    """
    head = list(takewhile(lambda row: row["role"] == "system", rows))
    instructions = "\n\n".join(filter(None, map(wire_text, head)))
    dialect = RequestDialect(images=images)
    items: list[Item] = []
    for row in rows[len(head) :]:
        items += _items_of(row, dialect, undecryptable)
    return instructions or INSTRUCTIONS, items


def _items_of(row: ChatMessage, dialect: RequestDialect, undecryptable: Iterable[int]) -> list[Item]:
    role = row["role"]
    if role == "assistant":
        return _assistant_items(row, undecryptable)
    text = {"type": "input_text", "text": text_for_model(row, dialect)}
    images = [
        {"type": "input_image", "image_url": block["image_url"]["url"]}
        if block["type"] == "image_url"
        else {"type": "input_text", "text": block["text"]}
        for block in image_blocks(row, dialect)
    ]
    if role == "tool":
        output = [text, *images] if images else text["text"]
        return [
            {"type": "function_call_output", "call_id": short_call_id(row.get("tool_call_id", "")), "output": output}
        ]
    input_role = "developer" if role == "system" else "user"
    return [{"type": "message", "role": input_role, "content": [text, *images]}]


def _assistant_items(row: ChatMessage, undecryptable: Iterable[int]) -> list[Item]:
    """The items of an assistant row; none if it has neither text nor calls, since reasoning alone is rejected.

    Reasoning goes back without server-side ids, which refer to stored items, and without empty fields.
    """
    text = text_of(row["content"])
    output: list[Item] = []
    if text:
        output.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    for call in row.get("tool_calls") or ():
        function = {name: call["function"][name] for name in ("name", "arguments")}
        output.append({"type": "function_call", "call_id": short_call_id(call["id"]), **function})
    reasoning = [
        {"summary": []}
        | {name: value for name, value in block.items() if name not in ("id", "status") and value is not None}
        for block in encrypted_reasoning(row)
        if hash(block["encrypted_content"]) not in undecryptable
    ]
    return [*reasoning, *output] if output else []


def encrypted_reasoning(row: ChatMessage) -> list[Item]:
    """The thinking blocks of a row that belong to this wire, encrypted by the server so that they can go back."""
    return [block for block in row.get("thinking_blocks") or () if _is_encrypted_reasoning(block)]


def _is_encrypted_reasoning(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") == "reasoning" and bool(block.get("encrypted_content"))


def short_call_id(call_id: str) -> str:
    """The call id, shortened by hashing if it exceeds this wire's limit."""
    if len(call_id) <= MAX_CALL_ID_LENGTH:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:48]}"


def conversation_key(session_key: str) -> str:
    """An opaque key shared by all requests of a session, for the server's prompt cache."""
    return hashlib.sha256(f"nanobot:{session_key}".encode()).hexdigest()[:32]


@dataclass(slots=True)
class _OutputItem:
    """One output item under construction: the text emitted so far and, for a call, the call and its index."""

    emitted: str = ""
    call: PartialCall = field(default_factory=PartialCall)
    index: int | None = None


class ResponsesReader(Reader):
    """Reads the events of a stream, or the whole response object of a server that did not stream.

    Deltas are emitted as they arrive. Finished items and the final response fill in what was missing, so a server may
    omit either.
    """

    content_key = "output"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._items: dict[str, _OutputItem] = {}
        self._response: Item | None = None

    @property
    def finished(self) -> bool:
        return self._response is not None

    def _read_event(self, event: Item) -> None:
        """Unknown event types are skipped: they carry nothing new."""
        text = text_or_empty(event.get("delta"))
        match event.get("type"):
            case "response.output_text.delta" | "response.refusal.delta":
                self._add_text(self._item_of(event), text)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_text(self._item_of(event), text, ReasoningDelta)
            case "response.reasoning_summary_part.added":
                item = self._item_of(event)
                if item.emitted:
                    self._add_text(item, "\n\n", ReasoningDelta)
            case "response.function_call_arguments.delta" if text:
                self._add_call(self._item_of(event), arguments=text)
            case "response.output_item.added" | "response.output_item.done" as kind:
                self._add_item(event.get("item"), self._item_of(event), done=kind.endswith("done"))
            case "response.completed" | "response.incomplete" | "response.done":
                self._read_response(event.get("response"))
            case "response.failed":
                response = event.get("response")
                raise self.failure(response if isinstance(response, dict) else event)
            case "error":  # it wraps an error or is one; in the latter case `type` is not an error code
                error = {name: value for name, value in event.items() if name != "type"}
                raise self.failure(event if event.get("error") else {"error": error})
            case _ if self.is_error(event):
                raise self.failure(event)

    def _read_response(self, response: object) -> None:
        self._response = response if isinstance(response, dict) else {}
        self.done = True
        output = self._response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict):
                known = self._streamed_item(item) or self._items.setdefault(str(index), _OutputItem())
                self._add_item(item, known, done=True)

    def _finish(self) -> LLMResponse:
        if self._response is None and self.began:
            raise self.error(StreamCutError, "the stream ended without response.completed")
        response = self._response or {}
        details = response.get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if self._response is None or not (self.began or self.thinking):
            if reason == "content_filter":
                raise self.error(ContentFilteredError)
            raise self.error(MalformedResponseError, "an empty answer")
        finish_reasons = {"max_output_tokens": "length", "max_tokens": "length", "content_filter": "content_filter"}
        usage = response.get("usage")
        counts = normal_usage(usage) if isinstance(usage, dict) else {}
        return self.response(finish_reasons.get(str(reason), "stop"), counts)

    def _item_of(self, event: Item) -> _OutputItem:
        """The item an event refers to, by its index in the output, or by its id if the server sends no index."""
        index = event.get("output_index")
        item = event.get("item")
        key = index if isinstance(index, int) else event.get("item_id") or (isinstance(item, dict) and item.get("id"))
        return self._items.setdefault(str(key or 0), _OutputItem())

    def _streamed_item(self, item: Item) -> _OutputItem | None:
        """The item that was streamed, wherever it stands in the output now."""
        call_id = text_or_empty(item.get("call_id"))
        by_call = (streamed for streamed in self._items.values() if call_id and streamed.call.id == call_id)
        return next(by_call, None) or self._items.get(str(item.get("id")))

    def _add_item(self, item: object, known: _OutputItem, *, done: bool) -> None:
        """Add what an output item has beyond the text that was emitted of it."""
        if not isinstance(item, dict):
            return
        match item.get("type"):
            case "function_call":
                arguments = _remainder(known.emitted, text_or_empty(item.get("arguments"))) if done else ""
                self._add_call(known, text_or_empty(item.get("call_id")), text_or_empty(item.get("name")), arguments)
            case "message" if done:
                text = _join_texts(item.get("content"), "text", "refusal")
                self._add_text(known, _remainder(known.emitted, text))
            case "reasoning" if done:
                summary = _join_texts(item.get("summary"), "text", separator="\n\n")
                summary = summary or _join_texts(item.get("content"), "text")
                self._add_text(known, "" if known.emitted else summary, ReasoningDelta)
                seen = [block["encrypted_content"] for block in self.thinking]
                if _is_encrypted_reasoning(item) and item["encrypted_content"] not in seen:
                    self.thinking.append(item)

    def _add_call(self, known: _OutputItem, call_id: str = "", name: str = "", arguments: str = "") -> None:
        if known.index is None:
            known.index = len(self.calls)
            self.calls.append(known.call)
        known.emitted += arguments
        self.add_to_call(known.index, call_id, name, arguments)

    def _add_text(self, known: _OutputItem, text: str, kind: type[TextDelta | ReasoningDelta] = TextDelta) -> None:
        if text:
            before = self.text if kind is TextDelta else self.reasoning
            is_further = before and not known.emitted  # a further message of the same answer
            self.add_text(kind("\n\n" if is_further else ""), kind(text))
            known.emitted += text


def _remainder(emitted: str, whole: str) -> str:
    """The part of `whole` not emitted yet; empty if they do not match, since emitted text cannot be taken back."""
    return whole[len(emitted) :] if whole.startswith(emitted) else ""


def _join_texts(blocks: object, *names: str, separator: str = "") -> str:
    return separator.join(
        next((block[name] for name in names if isinstance(block.get(name), str)), "") for block in dicts_in(blocks)
    )


class ResponsesCall(WireCall):
    path = "/responses"
    reader = ResponsesReader
    _tools_encoder = ToolsEncoder(flat_tool)

    async def body(self, facts: Facts) -> tuple[bytes, list[str]]:
        endpoint, request, context = self.endpoint, self._request, call_context()
        effort = context.reasoning_effort or endpoint.reasoning_effort
        summary = None if "drop reasoning.summary" in facts else "auto"
        reasoning = {name: value for name, value in (("effort", effort), ("summary", summary)) if value}
        with_tools = bool(request.tools) and "drop tools" not in facts
        fields: dict[str, Any] = {
            "model": request.model,
            "max_output_tokens": self._max_tokens and max(self._max_tokens, MIN_OUTPUT_TOKENS),
            "temperature": self._temperature,
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "reasoning": reasoning or None,
            "tool_choice": "auto" if with_tools else None,
            "parallel_tool_calls": True if with_tools else None,
            "prompt_cache_key": conversation_key(context.session_key) if context.session_key else None,
            **endpoint.extra_body,
        }
        fields = {name: value for name, value in fields.items() if value is not None and f"drop {name}" not in facts}
        images = "drop images" not in facts and has_images(request.messages)
        build = partial(build_input, request.messages, images=images, undecryptable=endpoint.undecryptable)
        instructions, items = await asyncio.to_thread(build) if images else build()
        tools = self._tools_encoder.encode(request.tools) if with_tools else None
        droppable = [name for name in fields if name not in ("model", "store", "stream")]
        droppable += ["reasoning.summary"] * bool(summary) + ["images"] * images + ["tools"] * with_tools
        return request_body({**fields, "instructions": instructions}, tools, encode(items), "input"), droppable

    def learn(self, response: ErrorResponse, droppable: list[str]) -> bool:
        """As above; and reasoning that this server cannot decrypt is left out from now on: all of these rows, since no
        server says which item failed.
        """
        error_text = f"{response.message} {' '.join(response.codes)}"
        if response.status == 400 and re.search(r"encrypted[_ ]content", error_text, re.IGNORECASE):
            blocks = [block for row in self._request.messages for block in encrypted_reasoning(row)]
            new = {hash(block["encrypted_content"]) for block in blocks} - self.endpoint.undecryptable
            self.endpoint.undecryptable.update(new)
            if new:
                return True
        return super().learn(response, droppable)
