"""The wire that most endpoints speak: OpenAI chat completions.

Follows the public reference (platform.openai.com/docs/api-reference/chat) and what its many speakers do differently:
`wire` makes the request, `answer` reads what comes, `failures` what is refused, `capabilities` remembers. How a call
goes there and back: `exchange`.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers import exchange
from nanobot.providers.answer import Answer
from nanobot.providers.base import Delta, Finished
from nanobot.providers.capabilities import Learned
from nanobot.providers.errors import (
    ContentFilteredError,
    MalformedResponseError,
    ModelCallError,
    StreamCutError,
    TryElsewhere,
)
from nanobot.providers.exchange import Endpoint, Mended
from nanobot.providers.failures import read_refusal, refusal_of
from nanobot.providers.wire import Dialect, encode, has_images, request_body, wire_messages

_THINKERS = ("deepseek", "kimi", "moonshot", "mimo")
"""Names of models that want their thinking back beside their tool calls."""


class Call(exchange.Call):
    """One call in chat completions."""

    path = "/chat/completions"

    def __init__(
        self,
        endpoint: Endpoint,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema],
        model: str,
        max_tokens: int,
        temperature: float,
        mended: Mended | None = None,
    ) -> None:
        super().__init__(endpoint, messages, tools, model, mended)
        self._sampling = {"max_tokens": max_tokens, "temperature": temperature}

    async def request(self, learned: Learned) -> tuple[bytes, list[str]]:
        """The body, and the names of what may be left out of it."""
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
            learned.renamed.get(name, name): value
            for name, value in fields.items()
            if value is not None and name not in learned.dropped
        }
        if "stream" not in fields:
            fields.pop("stream_options", None)
        dialect = self._dialect(learned)
        messages = endpoint.rows.encode(self._messages, dialect)
        with_pictures = messages is None and dialect.images and has_images(self._messages)
        if with_pictures:
            messages = await asyncio.to_thread(self._encoded, dialect)
        elif messages is None:
            messages = self._encoded(dialect)
        tools = endpoint.tools.encode(self._tools) if self._tools and "tools" not in learned.dropped else None
        sent = [name for name in fields if name != "model"]
        sent += ["images"] * with_pictures + ["reasoning_content"] * dialect.reasoning + ["tools"] * (tools is not None)
        return request_body(fields, tools, messages), sent

    def _encoded(self, dialect: Dialect) -> bytes:
        """All messages, with the pictures they name."""
        return encode(wire_messages(self._messages, dialect))

    def _dialect(self, learned: Learned) -> Dialect:
        wanted = self._endpoint.returns_reasoning
        words = f"{self._model} {self._endpoint.api_base}".lower()
        if wanted is None:
            wanted = any(word in words for word in _THINKERS)
        return Dialect(
            reasoning=(wanted or "reasoning_content" in learned.needs) and "reasoning_content" not in learned.dropped,
            extra_content="gemini" in words or "googleapis" in words,
            images="images" not in learned.dropped,
            merge_users="merged_users" in learned.needs,
        )

    def reader(self) -> "_Reader":
        """What reads the answer."""
        return _Reader(self, self._endpoint.name)


class _Reader:
    """Reads an answer of chat completions, streamed or plain."""

    def __init__(self, call: Call, provider_name: str) -> None:
        self._call = call
        self._answer = Answer(of=provider_name)
        self.done = False

    @property
    def began(self) -> bool:
        return self._answer.began

    @property
    def finished(self) -> bool:
        return self._answer.finished

    def event(self, data: bytes) -> list[Delta]:
        """One event. A line that is not JSON is passed over: what is missing then shows at the end."""
        if data.strip() == b"[DONE]":
            self.done = True
            return []
        try:
            chunk = json.loads(data)
        except (ValueError, RecursionError):
            return []
        if not isinstance(chunk, dict):
            return []
        if _has_failed(chunk):
            raise self._failure(chunk)
        return self._answer.feed(chunk)

    def plain(self, body: bytes) -> list[Delta]:
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            said = read_refusal(200, body).message
            if body.lstrip().startswith(b"{") and not body.rstrip().endswith(b"}"):
                raise self._call.error(StreamCutError, "the answer is not whole") from None
            raise self._call.error(MalformedResponseError, f"not JSON: {said}") from None
        if isinstance(data, dict) and _has_failed(data):
            raise self._failure(data)  # with status 200
        if not isinstance(data, dict) or not data.get("choices"):
            raise self._call.error(MalformedResponseError, f"no choices in it: {json.dumps(data)[:200]}")
        deltas = self._answer.feed(data)
        self._answer.plain = True
        return deltas

    def end(self) -> list[Delta]:
        answer = self._answer
        if not answer.began:
            raise self._call.error(MalformedResponseError, "an empty answer")
        if not (answer.finished or self.done or answer.plain):
            raise self._call.error(StreamCutError, "it ended without a finish_reason")
        deltas, response = answer.end()
        if response.finish_reason == "content_filter" and not response.content and not response.tool_calls:
            raise self._call.error(ContentFilteredError, "")
        if response.finish_reason == "error":
            raise self._call.error(StreamCutError, "the server ended it with an error")
        return [*deltas, Finished(response)]

    def _failure(self, data: dict[str, Any]) -> ModelCallError:
        """What an error means that came instead of an answer, or in the middle of one: then the answer broke off."""
        error = self._call.error_of(refusal_of(data))
        if self.began and error.try_elsewhere is TryElsewhere.OTHER_MODEL:
            return self._call.error(StreamCutError, error.detail)
        return error


def _has_failed(data: dict[str, Any]) -> bool:
    """Whether this says that the answer failed; some servers say so beside choices, in a finish_reason."""
    choices = data.get("choices")
    if not data.get("error") or not isinstance(choices, list):
        return bool(data.get("error")) and not choices
    return not choices or "error" in [choice.get("finish_reason") for choice in choices if isinstance(choice, dict)]
