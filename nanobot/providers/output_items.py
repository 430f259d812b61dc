"""Putting an answer together from the events of a Responses stream, or from the one object of a plain answer.

Source: the public reference (platform.openai.com/docs/api-reference/responses-streaming). A stream ends in
`response.completed`, `response.incomplete` or `response.failed`; there is no `[DONE]`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from nanobot.providers.answer import new_call_id, normal_usage
from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
)
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.exchange import Call
from nanobot.providers.failures import read_refusal, refusal_of
from nanobot.providers.input_items import Item, is_thought


@dataclass(slots=True)
class _Slot:
    """One output item as it grows: what of its text was handed out, and, of a call, whose it is."""

    index: int = -1
    call_id: str = ""
    name: str = ""
    told: str = ""


class ResponsesReader:
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
        self._thoughts: list[Item] = []
        self._response: Item | None = None
        self.done = False

    @property
    def began(self) -> bool:
        """Whether there was a sign of an answer."""
        return bool(self._text or self._reasoning or self._calls)

    @property
    def finished(self) -> bool:
        """Whether the server gave the whole."""
        return self._response is not None

    def event(self, data: bytes) -> list[Delta]:
        """One event. What is not JSON, or of a kind we do not know, is passed over."""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(event, dict):
            return []
        out: list[Delta] = []
        meet = self._EVENTS.get(str(event.get("type")))
        if meet is not None:
            meet(self, event, out)
        elif event.get("error"):
            raise self._call.error_of(refusal_of(event))
        return out

    def plain(self, body: bytes) -> list[Delta]:
        """A whole response object."""
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
        """The end, if it may end here."""
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

    def _meet_text(self, event: Item, out: list[Delta]) -> None:
        self._say(self._slot(event), _word(event, "delta"), out)

    def _meet_thought(self, event: Item, out: list[Delta]) -> None:
        self._think(self._slot(event), _word(event, "delta"), out)

    def _meet_part(self, event: Item, out: list[Delta]) -> None:
        self._pause(self._slot(event), out)

    def _meet_arguments(self, event: Item, out: list[Delta]) -> None:
        self._argue(self._slot(event), _word(event, "delta"), out)

    def _meet_item(self, event: Item, out: list[Delta]) -> None:
        self._item(event.get("item"), self._slot(event), out, done=False)

    def _meet_done_item(self, event: Item, out: list[Delta]) -> None:
        self._item(event.get("item"), self._slot(event), out, done=True)

    def _meet_end(self, event: Item, out: list[Delta]) -> None:
        self._close(event.get("response"), out)

    def _meet_failure(self, event: Item, _out: list[Delta]) -> None:
        response = event.get("response")
        raise self._call.error_of(refusal_of(response if isinstance(response, dict) else event))

    def _meet_error(self, event: Item, _out: list[Delta]) -> None:
        """An error event holds an error, or is one: then its type says only that."""
        inside = {name: value for name, value in event.items() if name != "type"}
        raise self._call.error_of(refusal_of(event if event.get("error") else {"error": inside}))

    _EVENTS: ClassVar[dict[str, Callable[[Any, Item, list[Delta]], None]]] = {
        "response.output_text.delta": _meet_text,
        "response.refusal.delta": _meet_text,
        "response.reasoning_summary_text.delta": _meet_thought,
        "response.reasoning_text.delta": _meet_thought,
        "response.reasoning_summary_part.added": _meet_part,
        "response.function_call_arguments.delta": _meet_arguments,
        "response.output_item.added": _meet_item,
        "response.output_item.done": _meet_done_item,
        "response.completed": _meet_end,
        "response.incomplete": _meet_end,
        "response.done": _meet_end,
        "response.failed": _meet_failure,
        "error": _meet_error,
    }
    """What each kind of event means. Those that are not here say nothing new."""

    def _slot(self, event: Item) -> _Slot:
        """The item an event is about, by its place in the output; servers that give none name its id."""
        place = event.get("output_index")
        item = event.get("item")
        key = place if isinstance(place, int) else event.get("item_id") or (isinstance(item, dict) and item.get("id"))
        return self._slots.setdefault(str(key or 0), _Slot())

    def _item(self, item: object, slot: _Slot, out: list[Delta], *, done: bool) -> None:
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
            if is_thought(item) and not any(_same_thought(item, known) for known in self._thoughts):
                self._thoughts.append(item)

    def _close(self, response: object, out: list[Delta]) -> None:
        self._response = response if isinstance(response, dict) else {}
        self.done = True
        output = self._response.get("output")
        for place, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict):
                self._item(item, self._known(item) or self._slots.setdefault(str(place), _Slot()), out, done=True)

    def _known(self, item: Item) -> _Slot | None:
        """The slot of an item that was streamed, wherever it stands in the output now."""
        by_call = next((slot for slot in self._calls if slot.call_id and slot.call_id == item.get("call_id")), None)
        return by_call or self._slots.get(str(item.get("id")))

    def _name(self, slot: _Slot, item: Item, out: list[Delta]) -> None:
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


def _same_thought(one: Item, other: Item) -> bool:
    return bool(one["encrypted_content"] == other["encrypted_content"])


def _word(holder: Item, name: str) -> str:
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
