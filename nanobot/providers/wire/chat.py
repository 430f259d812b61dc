"""OpenAI chat completions, the wire that most endpoints speak.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and the known deviations of its many
implementations. `chat_request` builds the body, `chat_response` reads the response, `exchange` sends it.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import Delta, Finished
from nanobot.providers.capabilities import EndpointCapabilities
from nanobot.providers.error_patterns import error_response_of, parse_error_response
from nanobot.providers.errors import (
    ContentFilteredError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
    TryElsewhere,
)
from nanobot.providers.wire import exchange
from nanobot.providers.wire.chat_request import RequestDialect, encode, has_images, request_body, wire_messages
from nanobot.providers.wire.chat_response import ChatAnswer
from nanobot.providers.wire.exchange import Endpoint, FixupCallback

_WANT_REASONING = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that expect their reasoning back with their tool calls."""


class ChatCall(exchange.WireCall):
    """One chat completions call."""

    path = "/chat/completions"

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
        on_fixup: FixupCallback | None = None,
    ) -> None:
        super().__init__(endpoint, messages, tools, model, on_fixup)
        self._sampling = {"max_tokens": max_tokens, "temperature": temperature}

    async def request(self, capabilities: EndpointCapabilities) -> tuple[bytes, list[str]]:
        """The body, and the names of the fields that may be dropped from it."""
        endpoint = self._endpoint
        fields = {
            "model": self._model,
            **self._sampling,
            "reasoning_effort": endpoint.reasoning_effort,
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


class _StreamReader:
    """Reads a chat completions response, streamed or plain."""

    def __init__(self, call: ChatCall, provider_name: str) -> None:
        self._call = call
        self._answer = ChatAnswer(provider=provider_name)
        self.done = False

    @property
    def began(self) -> bool:
        return self._answer.began

    @property
    def finished(self) -> bool:
        return self._answer.finished

    def event(self, data: bytes) -> list[Delta]:
        """One event. Invalid JSON is skipped: what is missing shows at the end."""
        if data.strip() == b"[DONE]":
            self.done = True
            return []
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(chunk, dict):
            return []
        if _is_error_chunk(chunk):
            raise self._failure(chunk)
        return self._answer.feed(chunk)

    def plain(self, body: bytes) -> list[Delta]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            excerpt = parse_error_response(200, body).message
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._call.error(StreamCutError, "the answer is incomplete") from None
            raise self._call.error(MalformedResponseError, f"not JSON: {excerpt}") from None
        if isinstance(data, dict) and _is_error_chunk(data):
            raise self._failure(data)  # an error with status 200
        if not isinstance(data, dict) or not data.get("choices"):
            raise self._call.error(MalformedResponseError, f"no choices in the response: {json.dumps(data)[:200]}")
        deltas = self._answer.feed(data)
        self._answer.plain = True
        return deltas

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

    def _failure(self, data: dict[str, Any]) -> ModelCallError:
        """The error that arrived instead of an answer. In the middle of an answer, a transient one is a cut stream."""
        error = self._call.error_of(error_response_of(data))
        if self.began and error.try_elsewhere is TryElsewhere.OTHER_MODEL:
            return self._call.error(StreamCutError, error.detail)
        return error


def _is_error_chunk(data: dict[str, Any]) -> bool:
    """Whether a chunk reports a failure. Some servers do so next to `choices`, with a finish_reason."""
    choices = data.get("choices")
    if not data.get("error") or not isinstance(choices, list):
        return bool(data.get("error")) and not choices
    return not choices or "error" in [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
