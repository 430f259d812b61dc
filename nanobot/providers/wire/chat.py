"""OpenAI chat completions, the wire that most endpoints speak.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and the known deviations of its many
implementations. `chat_request` builds the body, `chat_response` reads the response, `exchange` sends it.
"""

import asyncio
from typing import Any

from nanobot.providers.base import Delta, Finished, call_context
from nanobot.providers.capabilities import EndpointCapabilities
from nanobot.providers.errors import ContentFilteredError, MalformedResponseError, StreamCutError
from nanobot.providers.wire import exchange
from nanobot.providers.wire.chat_request import RequestDialect, encode, has_images, request_body, wire_messages
from nanobot.providers.wire.chat_response import ChatAnswer

_WANT_REASONING = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that expect their reasoning back with their tool calls."""


class ChatCall(exchange.WireCall):
    """One chat completions call."""

    path = "/chat/completions"

    async def request(self, capabilities: EndpointCapabilities) -> tuple[bytes, list[str]]:
        """The body, and the names of the fields that may be dropped from it."""
        endpoint = self._endpoint
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
        if with_images:
            messages = await asyncio.to_thread(self._encode_messages, dialect)
        elif messages is None:
            messages = self._encode_messages(dialect)
        tools = endpoint.tools.encode(self._tools) if self._tools and "tools" not in capabilities.dropped else None
        droppable = [name for name in fields if name != "model"]
        droppable += (
            ["images"] * with_images + ["reasoning_content"] * dialect.reasoning + ["tools"] * (tools is not None)
        )
        return request_body(fields, tools, messages), droppable

    def _encode_messages(self, dialect: RequestDialect) -> bytes:
        return encode(wire_messages(self._messages, dialect))

    def _dialect(self, capabilities: EndpointCapabilities) -> RequestDialect:
        wants_reasoning = self._endpoint.returns_reasoning
        name = f"{self._model} {self._endpoint.api_base}".lower()
        if wants_reasoning is None:
            wants_reasoning = any(part in name for part in _WANT_REASONING)
        return RequestDialect(
            reasoning=(wants_reasoning or "reasoning_content" in capabilities.needs)
            and "reasoning_content" not in capabilities.dropped,
            extra_content="gemini" in name or "googleapis" in name,
            images="images" not in capabilities.dropped,
            merge_users="merged_users" in capabilities.needs,
        )

    def reader(self) -> "_StreamReader":
        return _StreamReader(self, self._endpoint.name)


class _StreamReader(exchange.Reader):
    """Reads a chat completions response, streamed or plain."""

    content_key = "choices"

    def __init__(self, call: ChatCall, provider_name: str) -> None:
        super().__init__(call)
        self._answer = ChatAnswer(provider=provider_name)

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

    def end(self) -> list[Delta]:
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
