"""OpenAI chat completions, the wire that most endpoints speak.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and the known deviations of its many
implementations. Servers deviate wherever it is vague; handled here: missing, empty or repeated ids, arguments as an
object, `function_call`, reasoning under three names or in `<think>` tags, tool calls with finish_reason "stop".
"""

import json
from typing import Any

from nanobot.config.provider_table import REPORTS_COST
from nanobot.providers.base import LLMResponse, ReasoningDelta, TextDelta, call_context
from nanobot.providers.endpoint import Endpoint, Facts
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire.rows import RequestDialect, encode, has_images, read_messages, request_body
from nanobot.providers.wire.stream import PartialCall, Reader, WireCall, dicts_in, is_count, normal_usage, text_or_empty

_WANT_REASONING = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that expect their reasoning back with their tool calls."""
_REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")

_OPEN = ("<think>", "<thinking>", "<thought>")


class ThinkSplitter:
    """Separates reasoning in tags at the start of an answer from its text, however the stream is split."""

    def __init__(self) -> None:
        self._held = ""
        self._close = ""
        """The tag that ends the reasoning; empty outside of it."""
        self._has_reasoning = False
        self._is_answering = False

    def feed(self, text: str) -> list[TextDelta | ReasoningDelta]:
        """The deltas that are certain so far."""
        if self._is_answering:
            return [TextDelta(text)] if text else []
        self._held += text
        out: list[TextDelta | ReasoningDelta] = []
        while self._held:
            if self._close:
                reasoning, tag, rest = self._held.partition(self._close)
                ends = range(len(self._close) - 1, 0, -1) if not tag else ()
                keep = next((length for length in ends if reasoning.endswith(self._close[:length])), 0)
                out.append(ReasoningDelta(reasoning[: len(reasoning) - keep]))
                self._held = rest if tag else reasoning[len(reasoning) - keep :]
                if not tag:
                    break
                self._close = ""
                continue
            bare = self._held.lstrip()
            tag = next((tag for tag in _OPEN if bare.startswith(tag)), "")
            rest = bare[len(tag) :].lstrip("\n")  # the line break after the tag is not part of the reasoning
            if tag and rest:
                self._held, self._close, self._has_reasoning = rest, tag.replace("<", "</"), True
                continue
            if not tag and not any(tag.startswith(bare) for tag in _OPEN):
                out.append(TextDelta(bare if self._has_reasoning else self._held))
                self._held, self._is_answering = "", True
            break
        return out

    def end(self) -> list[TextDelta | ReasoningDelta]:
        """The rest: unclosed reasoning, or text that looked like the start of a tag."""
        held, self._held = self._held, ""
        if held.strip() in _OPEN:
            return []  # reasoning that never began
        held = held.lstrip() if self._has_reasoning and not self._close else held
        kind = ReasoningDelta if self._close else TextDelta
        return [kind(held)] if held else []


class ChatReader(Reader):
    """Reads chat completions chunks, or a whole response."""

    content_key = "choices"

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        super().__init__(endpoint, model)
        self._by_index: dict[int, int] = {}
        self._splitter = ThinkSplitter()
        self._usage: dict[str, int] = {}
        self._cost: float | None = None
        self._finish_reason: str | None = None
        self._is_plain = False
        """Whether it was not streamed; then a missing finish_reason means nothing."""

    @property
    def finished(self) -> bool:
        """Whether the server sent a finish_reason."""
        return self._finish_reason is not None

    @property
    def has_usage(self) -> bool:
        """Whether the server reported token counts."""
        return bool(self._usage)

    def is_error(self, data: dict[str, Any]) -> bool:
        """Whether a chunk reports a failure. Some servers do so next to `choices`, with a finish_reason."""
        choices = data.get("choices")
        if not data.get("error") or not isinstance(choices, list):
            return bool(data.get("error")) and not choices
        return not choices or "error" in [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]

    def _read_response(self, response: dict[str, Any]) -> None:
        self._is_plain = True
        self._read_event(response)

    def _read_event(self, event: dict[str, Any]) -> None:
        if self.is_error(event):
            raise self.failure(event)
        usage = event.get("usage")
        if isinstance(usage, dict):
            self._usage = normal_usage(usage) or self._usage
            if self._endpoint.name == REPORTS_COST and is_count(cost := usage.get("cost")):
                self._cost = float(cost)
        for choice in dicts_in(event.get("choices")):
            if not choice.get("index"):
                self._add_choice(choice)

    def _finish(self) -> LLMResponse:
        if not self.began:
            raise self.error(MalformedResponseError, "an empty answer")
        if not (self.finished or self.done or self._is_plain):
            raise self.error(StreamCutError, "the stream ended without a finish_reason")
        self.add_text(*self._splitter.end())
        response = self.response(self._finish_reason or "stop", self._usage, self._cost)
        if response.finish_reason == "content_filter" and not response.content and not response.tool_calls:
            raise self.error(ContentFilteredError)
        if response.finish_reason == "error":
            raise self.error(StreamCutError, "the server ended the stream with an error")
        return response

    def _add_choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            self.began = True
            reasoning = next((delta[name] for name in _REASONING_FIELDS if isinstance(delta.get(name), str)), "")
            self.add_text(ReasoningDelta(reasoning))
            self._add_content(delta.get("content"))
            self.add_text(TextDelta(text_or_empty(delta.get("refusal"))))
            self._add_thinking(delta.get("thinking_blocks"))
            for position, call in enumerate(dicts_in(delta.get("tool_calls"))):
                self._add_call(call, position)
            if isinstance(delta.get("function_call"), dict):
                self._add_call({"index": 0, "function": delta["function_call"]}, 0)
        if choice.get("finish_reason"):
            self._finish_reason = str(choice["finish_reason"])

    def _add_content(self, content: object) -> None:
        if isinstance(content, str):
            self.add_text(*self._splitter.feed(content))
        for block in dicts_in(content):  # Mistral sends blocks, thinking among them
            self.add_text(*self._splitter.feed(text_or_empty(block.get("text"))))
            inner = block.get("thinking")
            for part in dicts_in(inner if isinstance(inner, list) else [{"text": inner}]):
                self.add_text(ReasoningDelta(text_or_empty(part.get("text"))))

    def _add_call(self, call: dict[str, Any], position: int) -> None:
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        call_id, name = text_or_empty(call.get("id")), text_or_empty(function.get("name"))
        index = call.get("index")
        slot = self._slot(
            index if isinstance(index, int) else self._infer_index(call_id, name, position), call_id, name
        )
        if isinstance(call.get("extra_content"), dict):
            self.calls[slot].extra_content = call["extra_content"]
        arguments = function.get("arguments")
        if isinstance(arguments, dict | list):
            arguments = json.dumps(arguments, ensure_ascii=False)
        self.add_to_call(slot, call_id, name, text_or_empty(arguments))

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
        for block in dicts_in(blocks):
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


class ChatCall(WireCall):
    path = "/chat/completions"
    reader = ChatReader

    async def body(self, facts: Facts) -> tuple[bytes, list[str]]:
        endpoint, request = self.endpoint, self._request
        limit = "max_completion_tokens" if "need max_completion_tokens" in facts else "max_tokens"
        fields = {
            "model": request.model,
            limit: None if "drop max_tokens" in facts else self._max_tokens,
            "temperature": self._temperature,
            "reasoning_effort": call_context().reasoning_effort or endpoint.reasoning_effort,
            "stream": True,
            "stream_options": None if "drop stream" in facts else {"include_usage": True},
            **endpoint.extra_body,
        }
        fields = {name: value for name, value in fields.items() if value is not None and f"drop {name}" not in facts}
        dialect = self._dialect(facts)
        messages = endpoint.rows.encode(request.messages, dialect)
        with_images = messages is None and dialect.images and has_images(request.messages)
        if messages is None:
            messages = encode(await read_messages(request.messages, dialect))
        tools = endpoint.tools.encode(request.tools) if request.tools and "drop tools" not in facts else None
        droppable = [name for name in fields if name != "model"]
        droppable += ["images"] * with_images + ["reasoning_content"] * dialect.reasoning
        droppable += ["tools"] * (tools is not None)
        return request_body(fields, tools, messages), droppable

    def _dialect(self, facts: Facts) -> RequestDialect:
        name = f"{self._request.model} {self.endpoint.api_base}".lower()
        wants_reasoning = any(part in name for part in _WANT_REASONING)
        return RequestDialect(
            reasoning=(wants_reasoning or "need reasoning_content" in facts) and "drop reasoning_content" not in facts,
            extra_content="gemini" in name or "googleapis" in name,
            images="drop images" not in facts,
            merge_users="need merged_users" in facts,
        )
