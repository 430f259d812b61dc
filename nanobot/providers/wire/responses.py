"""The OpenAI Responses wire: input items go out, typed events come back.

Sources. The public reference (platform.openai.com/docs/api-reference/responses and .../responses-streaming) for items,
tools and events; the published source of OpenAI's own client (github.com/openai/codex: codex-rs/codex-api, the request
in common.rs, the events in sse/responses.rs) for what the ChatGPT backend requires: `instructions`, `store` false and
`stream` true.

The server stores nothing, so every request carries everything, including the reasoning as the server encrypted it
(`include: ["reasoning.encrypted_content"]`), without item ids, which refer to stored items.

`responses_request` builds the request, `responses_response` reads the events, `exchange` sends the call.
"""

import asyncio
import re
from dataclasses import replace
from functools import partial
from typing import Any

from nanobot.providers.base import call_context
from nanobot.providers.capabilities import EndpointCapabilities
from nanobot.providers.error_patterns import ErrorResponse
from nanobot.providers.errors import ModelCallError
from nanobot.providers.wire import exchange
from nanobot.providers.wire.chat_request import encode, has_images, request_body
from nanobot.providers.wire.responses_request import build_input, conversation_key
from nanobot.providers.wire.responses_response import ResponsesReader

MIN_OUTPUT_TOKENS = 16
"""The API rejects a smaller `max_output_tokens`."""


class ResponsesCall(exchange.WireCall):
    """One Responses call."""

    path = "/responses"

    async def request(self, capabilities: EndpointCapabilities) -> tuple[bytes, list[str]]:
        """The body, and the names of the fields that may be dropped from it."""
        endpoint = self._endpoint
        wanted = call_context().reasoning_effort or endpoint.reasoning_effort
        effort = {"effort": wanted} if wanted else {}
        session_key = call_context().session_key
        with_tools = bool(self._tools) and "tools" not in capabilities.dropped
        summary = {} if "reasoning.summary" in capabilities.dropped else {"summary": "auto"}
        fields: dict[str, Any] = {
            "model": self._model,
            "max_output_tokens": self._max_tokens and max(self._max_tokens, MIN_OUTPUT_TOKENS),
            "temperature": self._temperature,
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "reasoning": {**effort, **summary} or None,
            "tool_choice": "auto" if with_tools else None,
            "parallel_tool_calls": True if with_tools else None,
            "prompt_cache_key": conversation_key(session_key) if session_key else None,
            **endpoint.extra_body,
        }
        fields = {
            name: value for name, value in fields.items() if value is not None and name not in capabilities.dropped
        }
        images = "images" not in capabilities.dropped and has_images(self._messages)
        build = partial(build_input, self._messages, images=images, undecryptable=endpoint.undecryptable)
        built = await asyncio.to_thread(build) if images else build()
        tools = endpoint.flat_tools.encode(self._tools) if with_tools else None
        droppable = [name for name in fields if name not in ("model", "store", "stream")]
        droppable += ["reasoning.summary"] * bool(summary) + ["images"] * images + ["tools"] * with_tools
        return request_body(
            {**fields, "instructions": built.instructions}, tools, encode(built.items), "input"
        ), droppable

    def apply_fixup(self, response: ErrorResponse, droppable: list[str]) -> bool:
        """Learn from the error response; reasoning that this server cannot decrypt is left out from now on."""
        error_text = f"{response.message} {' '.join(response.codes)}"
        if response.status == 400 and re.search(r"encrypted[_ ]content", error_text, re.IGNORECASE):
            return self._endpoint.undecryptable.add(self._messages) or super().apply_fixup(response, droppable)
        return super().apply_fixup(response, droppable)

    def error_of(self, response: ErrorResponse) -> ModelCallError:
        """Uses the wait in the text ("Try again in 1.5s"); a long one is added to the message."""
        wait_s = response.retry_after_s if response.retry_after_s is not None else _wait_in_text(response.message)
        message = response.message
        if wait_s and wait_s > 90:
            message = f"{message} (again in {_format_long_wait(wait_s)})"
        return super().error_of(replace(response, message=message, retry_after_s=wait_s))

    def reader(self) -> ResponsesReader:
        return ResponsesReader(self)


def _wait_in_text(text: str) -> float | None:
    match = re.search(r"try again in\s*(\d+(?:\.\d+)?)\s*(ms|s\b|seconds?)", text, re.IGNORECASE)
    return None if match is None else float(match[1]) / (1000 if match[2].lower() == "ms" else 1)


def _format_long_wait(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
