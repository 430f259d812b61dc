"""The Responses wire of OpenAI, as the ChatGPT backend speaks it: input items go out, typed events come back.

Sources. The public reference (platform.openai.com/docs/api-reference/responses and .../responses-streaming) for items,
tools and events; the published source of OpenAI's own client (github.com/openai/codex: codex-rs/codex-api, the request
in common.rs, the events in sse/responses.rs) for what this backend wants of it:

- `instructions` must be there, `store` is false and `stream` true; nothing is kept on the server, so everything goes
  out with each request, and what the model thought goes out as the server encrypted it
  (`include: ["reasoning.encrypted_content"]`), without the ids of items that nobody stored.
- `temperature` and `max_output_tokens` are refused by name ("Unsupported parameter: ..."): they stay home.
- A stream ends in `response.completed`, `response.incomplete` or `response.failed`; there is no `[DONE]`.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema, text_of
from nanobot.providers import exchange
from nanobot.providers.answer import new_call_id, normal_usage
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
    call_context,
)
from nanobot.providers.capabilities import Learned
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, ModelCallError, StreamCutError
from nanobot.providers.exchange import Endpoint
from nanobot.providers.failures import Refusal, read_refusal, refusal_of
from nanobot.providers.wire import Dialect, has_images, pictures_of, request_body, wire_text

INSTRUCTIONS = "You are nanobot, a helpful assistant."
"""For a request without a system prompt: the backend takes none without instructions."""
LONGEST_CALL_ID = 64
_ENDS = frozenset({"response.completed", "response.incomplete", "response.done"})
_Item = dict[str, Any]


def tool_of(schema: ToolSchema) -> _Item:
    """A tool in this wire's shape: flat, and not strict (which is the default here, and few schemas are fit for it)."""
    function = schema.get("function", {})
    named = {name: function[name] for name in ("name", "description", "parameters") if name in function}
    return {"type": "function", **named, "strict": False}


@dataclass(frozen=True, slots=True)
class Input:
    """A conversation in this wire's shape."""

    instructions: str
    items: list[_Item]


class SealedThoughts:
    """Thoughts that a server could not open: another account's, or another vendor's. They are not sent to it again."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __contains__(self, block: _Item) -> bool:
        return hash(block["encrypted_content"]) in self._seen

    def add(self, rows: Iterable[ChatMessage]) -> bool:
        """Take all thoughts of these rows for sealed: which of them it is, no server says. False if none is new."""
        blocks = (block for row in rows for block in row.get("thinking_blocks") or () if is_thought(block))
        found = {hash(block["encrypted_content"]) for block in blocks} - self._seen
        self._seen |= found
        return bool(found)


_NONE_SEALED = SealedThoughts()


def input_of(rows: Sequence[ChatMessage], *, images: bool = True, sealed: SealedThoughts = _NONE_SEALED) -> Input:
    """The rows as input items. Reads the images they name: not for the event loop if there are any."""
    head = list(takewhile(lambda row: row["role"] == "system", rows))
    instructions = "\n\n".join(filter(None, map(wire_text, head)))
    dialect = Dialect(images=images)
    items: list[_Item] = []
    for row in rows[len(head) :]:
        items += _items_of(row, dialect, sealed)
    return Input(instructions or INSTRUCTIONS, items)


def _items_of(row: ChatMessage, dialect: Dialect, sealed: SealedThoughts) -> list[_Item]:
    role = row["role"]
    if role == "assistant":
        return _assistant(row, sealed)
    text = {"type": "input_text", "text": wire_text(row)}
    pictures = [_picture(block) for block in pictures_of(row, dialect)]
    if role == "tool":
        output = [text, *pictures] if pictures else text["text"]
        return [{"type": "function_call_output", "call_id": call_id_of(row.get("tool_call_id", "")), "output": output}]
    role_here = "developer" if role == "system" else "user"
    return [{"type": "message", "role": role_here, "content": [text, *pictures]}]


def _assistant(row: ChatMessage, sealed: SealedThoughts) -> list[_Item]:
    """What was thought, said and called. A row with nothing in it is left out: a thought must lead to something."""
    text = text_of(row["content"])
    said: list[_Item] = []
    if text:
        said.append({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
    for call in row.get("tool_calls") or ():
        function = call["function"]
        said.append(
            {
                "type": "function_call",
                "call_id": call_id_of(call["id"]),
                "name": function["name"],
                "arguments": function["arguments"],
            }
        )
    blocks = [block for block in row.get("thinking_blocks") or () if is_thought(block) and block not in sealed]
    return [*map(_thought, blocks), *said] if said else []


def is_thought(block: object) -> bool:
    """Whether a thinking block is this wire's: encrypted by the server, so that it can go back. Others stay home."""
    return isinstance(block, dict) and block.get("type") == "reasoning" and bool(block.get("encrypted_content"))


def _thought(block: _Item) -> _Item:
    """As it came, less what names an item that the server did not keep, and less what is empty."""
    kept = {name: value for name, value in block.items() if name not in ("id", "status") and value is not None}
    return {"summary": [], **kept}


def _picture(block: _Item) -> _Item:
    if block["type"] == "image_url":
        return {"type": "input_image", "image_url": block["image_url"]["url"]}
    return {"type": "input_text", "text": block["text"]}


def call_id_of(call_id: str) -> str:
    """The id of a call as this wire takes it: other models' may be longer."""
    if len(call_id) <= LONGEST_CALL_ID:
        return call_id
    return f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:48]}"


def conversation_key(session_key: str) -> str:
    """What the requests of one session have in common, so that the server finds its cache; tells nothing of the key."""
    return hashlib.sha256(f"nanobot:{session_key}".encode()).hexdigest()[:32]


class Call(exchange.Call):
    """One call in Responses."""

    path = "/responses"

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        sealed: SealedThoughts,
    ) -> None:
        super().__init__(endpoint, messages, tools, model)
        self._sealed = sealed

    async def request(self, learned: Learned) -> tuple[bytes, list[str]]:
        """The body, and the names of what may be left out of it."""
        endpoint = self._endpoint
        effort = {"effort": endpoint.reasoning_effort} if endpoint.reasoning_effort else {}
        session_key = call_context().session_key
        with_tools = bool(self._tools) and "tools" not in learned.dropped
        fields: dict[str, Any] = {
            "model": self._model,
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {**effort, "summary": "auto"},
            "tool_choice": "auto" if with_tools else None,
            "parallel_tool_calls": True if with_tools else None,
            "prompt_cache_key": conversation_key(session_key) if session_key else None,
            **endpoint.extra_body,
        }
        fields = {name: value for name, value in fields.items() if value is not None and name not in learned.dropped}
        images = "images" not in learned.dropped and has_images(self._messages)
        make = partial(input_of, self._messages, images=images, sealed=self._sealed)
        asked = await asyncio.to_thread(make) if images else make()
        tools = endpoint.tools.encode(self._tools) if with_tools else None
        sent = [name for name in fields if name not in ("model", "store", "stream")]
        sent += ["images"] * images + ["tools"] * with_tools
        return request_body({**fields, "instructions": asked.instructions}, tools, asked.items, "input"), sent

    def mend(self, refusal: Refusal, sent: list[str]) -> bool:
        """Learn from the refusal; thoughts that this server cannot open are left out from now on."""
        words = f"{refusal.message} {' '.join(refusal.codes)}"
        if refusal.status == 400 and re.search(r"encrypted[_ ]content", words, re.IGNORECASE):
            return self._sealed.add(self._messages)
        return super().mend(refusal, sent)

    def error_of(self, refusal: Refusal) -> ModelCallError:
        """The failure that a refusal is. "Try again in 1.5s" is taken at its word; a long wait is told."""
        wait_s = refusal.retry_after_s if refusal.retry_after_s is not None else _asked_to_wait(refusal.message)
        told = f"{refusal.message} (again in {_long(wait_s)})" if wait_s and wait_s > 90 else refusal.message
        return super().error_of(replace(refusal, message=told, retry_after_s=wait_s))

    def reader(self) -> "_Reader":
        """What reads the answer."""
        return _Reader(self)


def _asked_to_wait(text: str) -> float | None:
    found = re.search(r"try again in\s*(\d+(?:\.\d+)?)\s*(ms|s\b|seconds?)", text, re.IGNORECASE)
    return None if found is None else float(found[1]) / (1000 if found[2].lower() == "ms" else 1)


def _long(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"


@dataclass(slots=True)
class _Slot:
    """One output item as it grows: what of its text was handed out, and, of a call, whose it is."""

    index: int = -1
    call_id: str = ""
    name: str = ""
    told: str = ""


class _Reader:
    """Reads the events of an answer, or a whole response object of a server that did not stream.

    Deltas are handed out as they come; an item that is done, and the response at the end, fill up what was missing, so
    that a server may leave out either.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._slots: dict[str, _Slot] = {}
        self._calls: list[_Slot] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._thoughts: list[_Item] = []
        self._response: _Item | None = None
        self.done = False

    @property
    def began(self) -> bool:
        return bool(self._text or self._reasoning or self._calls)

    @property
    def finished(self) -> bool:
        return self._response is not None

    def event(self, data: bytes) -> list[Delta]:
        """One event. What is not JSON, or of a kind we do not know, is passed over."""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(event, dict):
            return []
        kind = event.get("type")
        out: list[Delta] = []
        if kind in ("response.output_text.delta", "response.refusal.delta"):
            self._say(self._slot(event), _word(event, "delta"), out)
        elif kind in ("response.reasoning_summary_text.delta", "response.reasoning_text.delta"):
            self._think(self._slot(event), _word(event, "delta"), out)
        elif kind == "response.reasoning_summary_part.added":
            self._pause(self._slot(event), out)
        elif kind == "response.function_call_arguments.delta":
            self._argue(self._slot(event), _word(event, "delta"), out)
        elif kind in ("response.output_item.added", "response.output_item.done"):
            self._item(event, self._slot(event), out, done=kind.endswith("done"))
        elif kind in _ENDS:
            self._close(event.get("response"), out)
        elif kind == "response.failed":
            response = event.get("response")
            raise self._call.error_of(refusal_of(response if isinstance(response, dict) else event))
        elif kind == "error" or (kind is None and event.get("error")):
            raise self._call.error_of(refusal_of(event if event.get("error") else {"error": _less_type(event)}))
        return out

    def plain(self, body: bytes) -> list[Delta]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._call.error(StreamCutError, "the answer is not whole") from None
            said = read_refusal(200, body).message
            raise self._call.error(MalformedResponseError, f"not JSON: {said}") from None
        if isinstance(data, dict) and data.get("error"):
            raise self._call.error_of(refusal_of(data))
        if not isinstance(data, dict) or not isinstance(data.get("output"), list):
            raise self._call.error(MalformedResponseError, f"no output in it: {json.dumps(data)[:200]}")
        out: list[Delta] = []
        self._close(data, out)
        return out

    def end(self) -> list[Delta]:
        if self._response is None:
            raise self._call.error(StreamCutError, "it ended without response.completed")
        calls = [self._request_of(slot) for slot in self._calls]
        text = "".join(self._text)
        if not (text or calls or self._reasoning or self._thoughts):
            if self._stopped_by() == "content_filter":
                raise self._call.error(ContentFilteredError, "")
            raise self._call.error(MalformedResponseError, "an empty answer")
        usage = self._response.get("usage")
        response = LLMResponse(
            content=text or None,
            tool_calls=calls,
            finish_reason=self._stopped_by() or ("tool_calls" if calls else "stop"),
            usage=normal_usage(usage) if isinstance(usage, dict) else {},
            reasoning_content="".join(self._reasoning) or None,
            thinking_blocks=self._thoughts or None,
        )
        return [Finished(response)]

    def _stopped_by(self) -> str:
        """Why it ended before its end, in the words of chat completions; empty where it did not."""
        details = (self._response or {}).get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason in ("max_output_tokens", "max_tokens"):
            return "length"
        return "content_filter" if reason == "content_filter" else ""

    def _slot(self, event: _Item) -> _Slot:
        """The item an event is about, by its place in the output; servers that give none name its id."""
        place = event.get("output_index")
        item = event.get("item")
        key = place if isinstance(place, int) else event.get("item_id") or (isinstance(item, dict) and item.get("id"))
        return self._slots.setdefault(str(key or 0), _Slot())

    def _item(self, event: _Item, slot: _Slot, out: list[Delta], *, done: bool) -> None:
        item = event.get("item")
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind == "function_call":
            self._name(slot, item, out)
            if done:
                self._argue(slot, _rest(slot.told, _word(item, "arguments")), out)
        elif kind == "message" and done:
            self._say(slot, _rest(slot.told, _texts(item.get("content"), "text", "refusal")), out)
        elif kind == "reasoning" and done:
            summary = _texts(item.get("summary"), "text", between="\n\n") or _texts(item.get("content"), "text")
            self._think(slot, "" if slot.told else summary, out)
            if is_thought(item) and item not in self._thoughts:
                self._thoughts.append(item)

    def _close(self, response: object, out: list[Delta]) -> None:
        self._response = response if isinstance(response, dict) else {}
        self.done = True
        output = self._response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict):
                slot = self._known(item) or self._slots.setdefault(str(place), _Slot())
                self._item({"item": item}, slot, out, done=True)

    def _known(self, item: _Item) -> _Slot | None:
        """A call we have met, wherever it stands in the output now."""
        call_id = item.get("call_id")
        return next((slot for slot in self._calls if call_id and slot.call_id == call_id), None)

    def _name(self, slot: _Slot, item: _Item, out: list[Delta]) -> None:
        if slot.index < 0:
            slot.index = len(self._calls)
            self._calls.append(slot)
        slot.call_id = slot.call_id or _word(item, "call_id")
        if not slot.name and (name := _word(item, "name")):
            slot.name = name
            out.append(ToolCallDelta(slot.index, name))

    def _argue(self, slot: _Slot, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if slot.index < 0:
            slot.index = len(self._calls)
            self._calls.append(slot)
        slot.told += text
        out.append(ToolCallDelta(slot.index, "", text))

    def _say(self, slot: _Slot, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if self._text and not slot.told:  # another message of the same answer
            self._text.append("\n\n")
            out.append(TextDelta("\n\n"))
        slot.told += text
        self._text.append(text)
        out.append(TextDelta(text))

    def _think(self, slot: _Slot, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if self._reasoning and not slot.told:
            self._reasoning.append("\n\n")
            out.append(ReasoningDelta("\n\n"))
        slot.told += text
        self._reasoning.append(text)
        out.append(ReasoningDelta(text))

    def _pause(self, slot: _Slot, out: list[Delta]) -> None:
        """The next part of a summary begins."""
        if slot.told:
            slot.told += "\n\n"
            self._reasoning.append("\n\n")
            out.append(ReasoningDelta("\n\n"))

    def _request_of(self, slot: _Slot) -> ToolCallRequest:
        twins = [other for other in self._calls if other.call_id == slot.call_id]
        if not slot.call_id or twins[0] is not slot:
            slot.call_id = new_call_id()
        return ToolCallRequest.from_text(slot.call_id, slot.name, slot.told)


def _word(holder: _Item, name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _rest(told: str, whole: str) -> str:
    """What of the whole was not told yet; nothing where they do not agree, for what was told was seen."""
    return whole[len(told) :] if whole.startswith(told) else ""


def _texts(blocks: object, *names: str, between: str = "") -> str:
    found: Iterable[str] = (
        next((block[name] for name in names if isinstance(block.get(name), str)), "")
        for block in (blocks if isinstance(blocks, list) else [])
        if isinstance(block, dict)
    )
    return between.join(found)


def _less_type(event: _Item) -> _Item:
    """An error event that is the error itself: its type says only that."""
    return {name: value for name, value in event.items() if name != "type"}
