"""Assembles a response from the events of a Responses stream, or from a plain response object.

Source: the public reference (platform.openai.com/docs/api-reference/responses-streaming). A stream ends in
`response.completed`, `response.incomplete` or `response.failed`; there is no `[DONE]`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from nanobot.providers.base import Delta, Finished, ReasoningDelta, TextDelta, ToolCallDelta
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire.chat_response import Answer, PartialCall, normal_usage
from nanobot.providers.wire.exchange import Reader, WireCall
from nanobot.providers.wire.responses_request import Item, is_encrypted_reasoning


@dataclass(slots=True)
class _OutputItem:
    """One output item under construction: the text emitted so far and, for a call, the call and its index."""

    emitted: str = ""
    call: PartialCall | None = None
    index: int = 0


class ResponsesReader(Reader):
    """Reads the events of a stream, or the whole response object of a server that did not stream.

    Deltas are emitted as they arrive. Finished items and the final response fill in what was missing, so a server may
    omit either.
    """

    content_key = "output"

    def __init__(self, call: WireCall) -> None:
        super().__init__(call)
        self._answer = Answer()
        self._items: dict[str, _OutputItem] = {}
        self._response: Item | None = None

    @property
    def began(self) -> bool:
        return bool(self._answer.text or self._answer.reasoning or self._answer.calls)

    @property
    def finished(self) -> bool:
        return self._response is not None

    def read_event(self, event: Item) -> list[Delta]:
        """Unknown event types are skipped."""
        out: list[Delta] = []
        handler = self._EVENTS.get(str(event.get("type")))
        if handler is not None:
            handler(self, event, out)
        elif self.is_error(event):
            raise self.failure(event)
        return out

    def read_response(self, response: Item) -> list[Delta]:
        out: list[Delta] = []
        self._set_response(response, out)
        return out

    def end(self) -> list[Delta]:
        if self._response is None and self.began:
            raise self._call.error(StreamCutError, "the stream ended without response.completed")
        if self._response is None or not (self.began or self._answer.thinking):
            if self._stop_reason() == "content_filter":
                raise self._call.error(ContentFilteredError, "")
            raise self._call.error(MalformedResponseError, "an empty answer")
        usage = self._response.get("usage")
        counts = normal_usage(usage) if isinstance(usage, dict) else {}
        return [Finished(self._answer.response(self._stop_reason() or "stop", counts))]

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
        raise self.failure(response if isinstance(response, dict) else event)

    def _on_error(self, event: Item, _out: list[Delta]) -> None:
        """An error event wraps an error or is one; in the latter case `type` is not an error code."""
        error = {name: value for name, value in event.items() if name != "type"}
        raise self.failure(event if event.get("error") else {"error": error})

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
            seen = [reasoning["encrypted_content"] for reasoning in self._answer.thinking]
            if is_encrypted_reasoning(item) and item["encrypted_content"] not in seen:
                self._answer.thinking.append(item)

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
        call_id = _text_or_empty(item, "call_id")
        by_call = (
            streamed for streamed in self._items.values() if call_id and streamed.call and streamed.call.id == call_id
        )
        return next(by_call, None) or self._items.get(str(item.get("id")))

    def _call_of(self, output_item: _OutputItem) -> PartialCall:
        if output_item.call is None:
            output_item.call, output_item.index = PartialCall(), len(self._answer.calls)
            self._answer.calls.append(output_item.call)
        return output_item.call

    def _add_call(self, output_item: _OutputItem, item: Item, out: list[Delta]) -> None:
        call = self._call_of(output_item)
        call.id = call.id or _text_or_empty(item, "call_id")
        if not call.name and (name := _text_or_empty(item, "name")):
            call.name = name
            out.append(ToolCallDelta(output_item.index, name))

    def _add_arguments(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if text:
            self._call_of(output_item).arguments.append(text)
            output_item.emitted += text
            out.append(ToolCallDelta(output_item.index, "", text))

    def _add_text(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if text:
            is_further = self._answer.text and not output_item.emitted  # a further message of the same answer
            self._answer.emit([TextDelta("\n\n")] * bool(is_further) + [TextDelta(text)], out)
            output_item.emitted += text

    def _add_reasoning(self, output_item: _OutputItem, text: str, out: list[Delta]) -> None:
        if text:
            is_further = self._answer.reasoning and not output_item.emitted
            self._answer.emit([ReasoningDelta("\n\n")] * bool(is_further) + [ReasoningDelta(text)], out)
            output_item.emitted += text

    def _separate_reasoning(self, output_item: _OutputItem, out: list[Delta]) -> None:
        """The next part of a summary begins."""
        if output_item.emitted:
            output_item.emitted += "\n\n"
            self._answer.emit([ReasoningDelta("\n\n")], out)


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
