"""OpenAI chat completions, the wire that most endpoints speak.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and the known deviations of its many
implementations. Servers deviate wherever it is vague; handled here: missing, empty or repeated ids, arguments as an
object, `function_call`, reasoning under three names or in `<think>` tags, tool calls with finish_reason "stop".
"""

import asyncio
import json
from functools import partial
from typing import Any

from nanobot.providers.base import Delta, Finished, LLMResponse, ReasoningDelta, TextDelta, ToolCallDelta, call_context
from nanobot.providers.capabilities import EndpointCapabilities
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire.answer import (
    REPORTS_COST,
    Answer,
    PartialCall,
    ThinkSplitter,
    is_count,
    normal_usage,
    text_or_empty,
)
from nanobot.providers.wire.rows import RequestDialect, encode, has_images, request_body, wire_messages
from nanobot.providers.wire.stream import Reader, WireCall

_WANT_REASONING = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that expect their reasoning back with their tool calls."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")


class ChatAnswer(Answer):
    """An answer made of chat completions chunks."""

    def __init__(self, *, provider: str = "") -> None:
        """`provider` is the provider's name: only one provider reports the cost in dollars."""
        super().__init__()
        self._reports_cost = provider == REPORTS_COST
        self._by_index: dict[int, int] = {}
        self._splitter = ThinkSplitter()
        self._usage: dict[str, int] = {}
        self._cost: float | None = None
        self._finish_reason: str | None = None
        self.began = False
        self.plain = False
        """Whether it was not streamed; then a missing finish_reason means nothing."""

    @property
    def finished(self) -> bool:
        """Whether the server sent a finish_reason."""
        return self._finish_reason is not None

    def feed(self, chunk: dict[str, Any]) -> list[Delta]:
        """Add one chunk, or a whole plain response."""
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self._usage = normal_usage(usage) or self._usage
            cost = usage.get("cost")
            self._cost = float(cost) if self._reports_cost and is_count(cost) else self._cost
        out: list[Delta] = []
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict) and not choice.get("index"):
                self._add_choice(choice, out)
        return out

    def _add_choice(self, choice: dict[str, Any], out: list[Delta]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            self.began = True
            reasoning = next((delta[name] for name in _REASONING_FIELDS if isinstance(delta.get(name), str)), "")
            if reasoning:
                self.emit([ReasoningDelta(reasoning)], out)
            self._add_content(delta.get("content"), out)
            if isinstance(delta.get("refusal"), str):
                self.emit([TextDelta(delta["refusal"])], out)
            self._add_thinking(delta.get("thinking_blocks"))
            calls = delta.get("tool_calls")
            for position, call in enumerate(calls if isinstance(calls, list) else []):
                if isinstance(call, dict):
                    self._add_call(call, position, out)
            if isinstance(delta.get("function_call"), dict):
                self._add_call({"index": 0, "function": delta["function_call"]}, 0, out)
        elif isinstance(choice.get("text"), str):
            self.began = True
            self.emit(self._splitter.feed(choice["text"]), out)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def _add_content(self, content: object, out: list[Delta]) -> None:
        if isinstance(content, str):
            self.emit(self._splitter.feed(content), out)
        elif isinstance(content, list):  # Mistral sends blocks, thinking among them
            for block in content:
                if not isinstance(block, dict):
                    continue
                if isinstance(block.get("text"), str):
                    self.emit(self._splitter.feed(block["text"]), out)
                inner = block.get("thinking")
                for part in inner if isinstance(inner, list) else [{"text": inner}]:
                    if isinstance(part, dict) and isinstance(part.get("text"), str):
                        self.emit([ReasoningDelta(part["text"])], out)

    def _add_call(self, call: dict[str, Any], position: int, out: list[Delta]) -> None:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = text_or_empty(call.get("id")), text_or_empty(function.get("name"))
        index = call.get("index")
        index = index if isinstance(index, int) else self._infer_index(call_id, name, position)
        slot = self._slot(index, call_id, name)
        pending = self.calls[slot]
        pending.id = pending.id or call_id
        if isinstance(call.get("extra_content"), dict):
            pending.extra_content = call["extra_content"]
        new_name = name if not pending.name else ""
        pending.name = pending.name or name
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        arguments = arguments if isinstance(arguments, str) else ""
        if arguments:
            pending.arguments.append(arguments)
        if new_name or arguments:
            out.append(ToolCallDelta(slot, new_name, arguments))

    def _infer_index(self, call_id: str, name: str, position: int) -> int:
        """The index of a fragment without one: a new id or a name starts a call, anything else continues the last."""
        known = next((slot for slot, call in enumerate(self.calls) if call_id and call.id == call_id), None)
        if known is not None and not (name and self.calls[known].arguments):
            return next((index for index, slot in self._by_index.items() if slot == known), known)
        if name or (call_id and known is None):
            return max(self._by_index, default=-1) + 1
        return max(self._by_index, default=position)

    def _slot(self, index: int, call_id: str, name: str) -> int:
        slot = self._by_index.get(index)
        # Some servers number every call 0: a different id together with a name means another call.
        if slot is not None and call_id and name and self.calls[slot].id not in ("", call_id):
            slot = None
        if slot is None:
            slot = len(self.calls)
            self.calls.append(PartialCall())
            self._by_index[index] = slot
        return slot

    def _add_thinking(self, blocks: object) -> None:
        """Collect Anthropic's thinking blocks, which must go back unchanged. Fragments of a block are joined until its
        signature.
        """
        for block in blocks if isinstance(blocks, list) else []:
            if not isinstance(block, dict):
                continue
            last = self.thinking[-1] if self.thinking else None
            if (
                block.get("type") == "thinking"
                and last
                and last.get("type") == "thinking"
                and not last.get("signature")
            ):
                last["thinking"] = (last.get("thinking") or "") + (block.get("thinking") or "")
                if block.get("signature"):
                    last["signature"] = block["signature"]
            else:
                self.thinking.append({name: value for name, value in block.items() if value is not None})

    def end(self) -> tuple[list[Delta], LLMResponse]:
        """The last deltas, and the response."""
        out: list[Delta] = []
        self.emit(self._splitter.end(), out)
        return out, self.response(self._finish_reason or "stop", self._usage, self._cost)


class ChatReader(Reader):
    """Reads a chat completions response, streamed or plain."""

    content_key = "choices"

    def __init__(self, call: WireCall) -> None:
        super().__init__(call)
        self._answer = ChatAnswer(provider=call.endpoint.name)

    @property
    def began(self) -> bool:
        return self._answer.began

    @property
    def finished(self) -> bool:
        return self._answer.finished

    def is_error(self, data: dict[str, Any]) -> bool:
        """Whether a chunk reports a failure. Some servers do so next to `choices`, with a finish_reason."""
        choices = data.get("choices")
        if not data.get("error") or not isinstance(choices, list):
            return bool(data.get("error")) and not choices
        return not choices or "error" in [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]

    def read_event(self, event: dict[str, Any]) -> list[Delta]:
        if self.is_error(event):
            raise self.failure(event)
        return self._answer.feed(event)

    def read_response(self, response: dict[str, Any]) -> list[Delta]:
        self._answer.plain = True
        return self._answer.feed(response)

    def read_end(self) -> list[Delta]:
        answer = self._answer
        if not answer.began:
            raise self._call.error(MalformedResponseError, "an empty answer")
        if not (answer.finished or self.done or answer.plain):
            raise self._call.error(StreamCutError, "the stream ended without a finish_reason")
        deltas, response = answer.end()
        if response.finish_reason == "content_filter" and not response.content and not response.tool_calls:
            raise self._call.error(ContentFilteredError, "")
        if response.finish_reason == "error":
            raise self._call.error(StreamCutError, "the server ended the stream with an error")
        return [*deltas, Finished(response)]


class ChatCall(WireCall):
    """One chat completions call."""

    path = "/chat/completions"
    reader = ChatReader

    async def request(self, capabilities: EndpointCapabilities) -> tuple[bytes, list[str]]:
        """The body, and the names of the fields that may be dropped from it."""
        endpoint = self.endpoint
        fields = {
            "model": self._model,
            "max_tokens": self._max_tokens,
            "temperature": self._temperature,
            "reasoning_effort": call_context().reasoning_effort or endpoint.reasoning_effort,
            "stream": True,
            "stream_options": {"include_usage": True},
            **endpoint.extra_body,
        }
        fields = {
            capabilities.renamed.get(name, name): value
            for name, value in fields.items()
            if value is not None and name not in capabilities.dropped
        }
        if "stream" not in fields:
            fields.pop("stream_options", None)
        dialect = self._dialect(capabilities)
        messages = endpoint.rows.encode(self._messages, dialect)
        with_images = messages is None and dialect.images and has_images(self._messages)
        if messages is None:
            build = partial(wire_messages, self._messages, dialect)
            messages = encode(await asyncio.to_thread(build) if with_images else build())
        tools = endpoint.tools.encode(self._tools) if self._tools and "tools" not in capabilities.dropped else None
        droppable = [name for name in fields if name != "model"]
        droppable += (
            ["images"] * with_images + ["reasoning_content"] * dialect.reasoning + ["tools"] * (tools is not None)
        )
        return request_body(fields, tools, messages), droppable

    def _dialect(self, capabilities: EndpointCapabilities) -> RequestDialect:
        wants_reasoning = self.endpoint.returns_reasoning
        name = f"{self._model} {self.endpoint.api_base}".lower()
        if wants_reasoning is None:
            wants_reasoning = any(part in name for part in _WANT_REASONING)
        return RequestDialect(
            reasoning=(wants_reasoning or "reasoning_content" in capabilities.needs)
            and "reasoning_content" not in capabilities.dropped,
            extra_content="gemini" in name or "googleapis" in name,
            images="images" not in capabilities.dropped,
            merge_users="merged_users" in capabilities.needs,
        )
