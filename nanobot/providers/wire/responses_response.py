"""Assembles a response from the events of a Responses stream, or from a plain response object.

Source: the public reference (platform.openai.com/docs/api-reference/responses-streaming). A stream ends in
`response.completed`, `response.incomplete` or `response.failed`; there is no `[DONE]`.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from nanobot.providers.base import (
    Delta,
    Finished,
    LLMResponse,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallRequest,
)
from nanobot.providers.error_patterns import error_response_of, parse_error_response
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire.chat_response import new_call_id, normal_usage
from nanobot.providers.wire.exchange import WireCall
from nanobot.providers.wire.responses_request import Item, is_encrypted_reasoning


@dataclass(slots=True)
class _OutputItem:
    """One output item under construction: the text emitted so far and, for a call, its identity."""

    index: int = -1
    call_id: str = ""
    name: str = ""
    emitted: str = ""


class ResponsesReader:
    """Reads the events of a stream, or the whole response object of a server that did not stream.

    Deltas are emitted as they arrive. Finished items and the final response fill in what was missing, so a server may
    omit either.
    """

    def __init__(self, call: WireCall) -> None:
        self._call = call
        self._items: dict[str, _OutputItem] = {}
        self._calls: list[_OutputItem] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._encrypted_reasoning: list[Item] = []
        self._response: Item | None = None
        self.done = False

    @property
    def began(self) -> bool:
        return bool(self._text or self._reasoning or self._calls)

    @property
    def finished(self) -> bool:
        return self._response is not None

    def event(self, data: bytes) -> list[Delta]:
        """One event. Invalid JSON and unknown event types are skipped."""
        try:
            event = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(event, dict):
            return []
        out: list[Delta] = []
        handler = self._EVENTS.get(str(event.get("type")))
        if handler is not None:
            handler(self, event, out)
        elif event.get("error"):
            raise self._call.error_of(error_response_of(event))
        return out

    def plain(self, body: bytes) -> list[Delta]:
        """The whole response object."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._call.error(StreamCutError, "the answer is incomplete") from None
            excerpt = parse_error_response(200, body).message
            raise self._call.error(MalformedResponseError, f"not JSON: {excerpt}") from None
        if isinstance(data, dict) and data.get("error"):
            raise self._call.error_of(error_response_of(data))
        if not isinstance(data, dict) or not isinstance(data.get("output"), list):
            raise self._call.error(MalformedResponseError, f"no output in the response: {json.dumps(data)[:200]}")
        out: list[Delta] = []
        self._set_response(data, out)
        return out

    def end(self) -> list[Delta]:
        """The Finished delta. Raises if the stream may not end here."""
        if self._response is None:
            raise self._call.error(StreamCutError, "the stream ended without response.completed")
        calls = [self._request_of(output_item) for output_item in self._calls]
        text = "".join(self._text)
        if not (text or calls or self._reasoning or self._encrypted_reasoning):
            if self._stop_reason() == "content_filter":
                raise self._call.error(ContentFilteredError, "")
            raise self._call.error(MalformedResponseError, "an empty answer")
        usage = self._response.get("usage")
        response = LLMResponse(
            content=text or None,
            tool_calls=calls,
            finish_reason=self._stop_reason() or ("tool_calls" if calls else "stop"),
            usage=normal_usage(usage) if isinstance(usage, dict) else {},
            reasoning_content="".join(self._reasoning) or None,
            thinking_blocks=self._encrypted_reasoning or None,
        )
        return [Finished(response)]

    def _stop_reason(self) -> str:
        """Why it ended early, as a finish_reason of chat completions; empty if it did not."""
        details = (self._response or {}).get("incomplete_details")
        reason = details.get("reason") if isinstance(details, dict) else None
        if reason in ("max_output_tokens", "max_tokens"):
            return "length"
        return "content_filter" if reason == "content_filter" else ""

    def _on_text(self, event: Item, out: list[Delta]) -> None:
        self._add_text(self._item_of(event), _text_or_empty(event, "delta"), out)

    def _on_reasoning(self, event: Item, out: list[Delta]) -> None:
        self._add_reasoning(self._item_of(event), _text_or_empty(event, "delta"), out)

    def _on_summary_part(self, event: Item, out: list[Delta]) -> None:
        self._separate_reasoning(self._item_of(event), out)

    def _on_arguments(self, event: Item, out: list[Delta]) -> None:
        self._add_arguments(self._item_of(event), _text_or_empty(event, "delta"), out)

    def _on_item_added(self, event: Item, out: list[Delta]) -> None:
        self._add_item(event.get("item"), self._item_of(event), out, done=False)

    def _on_item_done(self, event: Item, out: list[Delta]) -> None:
        self._add_item(event.get("item"), self._item_of(event), out, done=True)

    def _on_end(self, event: Item, out: list[Delta]) -> None:
        self._set_response(event.get("response"), out)

    def _on_failure(self, event: Item, _out: list[Delta]) -> None:
        response = event.get("response")
        raise self._call.error_of(error_response_of(response if isinstance(response, dict) else event))

    def _on_error(self, event: Item, _out: list[Delta]) -> None:
        """An error event wraps an error or is one; in the latter case `type` is not an error code."""
        error = {name: value for name, value in event.items() if name != "type"}
        raise self._call.error_of(error_response_of(event if event.get("error") else {"error": error}))

    _EVENTS: ClassVar[dict[str, Callable[[Any, Item, list[Delta]], None]]] = {
        "response.output_text.delta": _on_text,
        "response.refusal.delta": _on_text,
        "response.reasoning_summary_text.delta": _on_reasoning,
        "response.reasoning_text.delta": _on_reasoning,
        "response.reasoning_summary_part.added": _on_summary_part,
        "response.function_call_arguments.delta": _on_arguments,
        "response.output_item.added": _on_item_added,
        "response.output_item.done": _on_item_done,
        "response.completed": _on_end,
        "response.incomplete": _on_end,
        "response.done": _on_end,
        "response.failed": _on_failure,
        "error": _on_error,
    }
    """Handlers by event type. Other types carry nothing new."""

    def _item_of(self, event: Item) -> _OutputItem:
        """The item an event refers to, by its index in the output, or by its id if the server sends no index."""
        index = event.get("output_index")
        item = event.get("item")
        key = index if isinstance(index, int) else event.get("item_id") or (isinstance(item, dict) and item.get("id"))
        return self._items.setdefault(str(key or 0), _OutputItem())

    def _add_item(self, item: object, output_item: _OutputItem, out: list[Delta], *, done: bool) -> None:
        if not isinstance(item, dict):
            return
        kind = item.get("type")
        if kind == "function_call":
            self._add_call(output_item, item, out)
            if done:
                self._add_arguments(
                    output_item, _remainder(output_item.emitted, _text_or_empty(item, "arguments")), out
                )
        elif kind == "message" and done:
            self._add_text(
                output_item, _remainder(output_item.emitted, _join_texts(item.get("content"), "text", "refusal")), out
            )
        elif kind == "reasoning" and done:
            summary = _join_texts(item.get("summary"), "text", separator="\n\n") or _join_texts(
                item.get("content"), "text"
            )
            self._add_reasoning(output_item, "" if output_item.emitted else summary, out)
            if is_encrypted_reasoning(item) and not any(
                _is_same_reasoning(item, reasoning) for reasoning in self._encrypted_reasoning
            ):
                self._encrypted_reasoning.append(item)

    def _set_response(self, response: object, out: list[Delta]) -> None:
        self._response = response if isinstance(response, dict) else {}
        self.done = True
        output = self._response.get("output")
        for index, item in enumerate(output if isinstance(output, list) else []):
            if isinstance(item, dict):
                self._add_item(
                    item, self._streamed_item(item) or self._items.setdefault(str(index), _OutputItem()), out, done=True
                )

    def _streamed_item(self, item: Item) -> _OutputItem | None:
        """The item that was streamed, wherever it stands in the output now."""
        by_call = next(
            (
                output_item
                for output_item in self._calls
                if output_item.call_id and output_item.call_id == item.get("call_id")
            ),
            None,
        )
        return by_call or self._items.get(str(item.get("id")))

    def _add_call(self, output_item: _OutputItem, item: Item, out: list[Delta]) -> None:
        if output_item.index < 0:
            output_item.index = len(self._calls)
            self._calls.append(output_item)
        output_item.call_id = output_item.call_id or _text_or_empty(item, "call_id")
        if not output_item.name and (name := _text_or_empty(item, "name")):
            output_item.name = name
            out.append(ToolCallDelta(output_item.index, name))

    def _add_arguments(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if output_item.index < 0:
            output_item.index = len(self._calls)
            self._calls.append(output_item)
        output_item.emitted += text
        out.append(ToolCallDelta(output_item.index, "", text))

    def _add_text(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if self._text and not output_item.emitted:  # a further message of the same answer
            self._text.append("\n\n")
            out.append(TextDelta("\n\n"))
        output_item.emitted += text
        self._text.append(text)
        out.append(TextDelta(text))

    def _add_reasoning(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if not text:
            return
        if self._reasoning and not output_item.emitted:
            self._reasoning.append("\n\n")
            out.append(ReasoningDelta("\n\n"))
        output_item.emitted += text
        self._reasoning.append(text)
        out.append(ReasoningDelta(text))

    def _separate_reasoning(self, output_item: _OutputItem, out: list[Delta]) -> None:
        """The next part of a summary begins."""
        if output_item.emitted:
            output_item.emitted += "\n\n"
            self._reasoning.append("\n\n")
            out.append(ReasoningDelta("\n\n"))

    def _request_of(self, output_item: _OutputItem) -> ToolCallRequest:
        same_id = [other for other in self._calls if other.call_id == output_item.call_id]
        if not output_item.call_id or same_id[0] is not output_item:
            output_item.call_id = new_call_id()
        return ToolCallRequest.from_text(output_item.call_id, output_item.name, output_item.emitted)


def _is_same_reasoning(first: Item, second: Item) -> bool:
    return bool(first["encrypted_content"] == second["encrypted_content"])


def _text_or_empty(holder: Item, name: str) -> str:
    value = holder.get(name)
    return value if isinstance(value, str) else ""


def _remainder(emitted: str, whole: str) -> str:
    """The part of `whole` not emitted yet; empty if they do not match, since emitted text cannot be taken back."""
    return whole[len(emitted) :] if whole.startswith(emitted) else ""


def _join_texts(blocks: object, *names: str, separator: str = "") -> str:
    texts: Iterable[str] = (
        next((block[name] for name in names if isinstance(block.get(name), str)), "")
        for block in (blocks if isinstance(blocks, list) else [])
        if isinstance(block, dict)
    )
    return separator.join(texts)
