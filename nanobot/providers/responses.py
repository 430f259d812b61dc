"""The Responses wire of OpenAI, as the ChatGPT backend speaks it: input items go out, typed events come back.

Sources. The public reference (platform.openai.com/docs/api-reference/responses and .../responses-streaming) for items,
tools and events; the published source of OpenAI's own client (github.com/openai/codex: codex-rs/codex-api, the request
in common.rs, the events in sse/responses.rs) for what this backend wants of it:

- `instructions` must be there, `store` is false and `stream` true; nothing is kept on the server, so everything goes
  out with each request, and what the model thought goes out as the server encrypted it
  (`include: ["reasoning.encrypted_content"]`), without the ids of items that nobody stored.
- `temperature` and `max_output_tokens` are refused by name ("Unsupported parameter: ..."): they stay home.

`input_items` makes the request, `output_items` reads what comes. How a call goes there and back: `exchange`.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers import exchange
from nanobot.providers.base import call_context
from nanobot.providers.capabilities import Learned
from nanobot.providers.errors import ModelCallError
from nanobot.providers.exchange import Endpoint, Mended
from nanobot.providers.failures import Refusal
from nanobot.providers.input_items import SealedThoughts, conversation_key, input_of
from nanobot.providers.output_items import ResponsesReader
from nanobot.providers.wire import encode, has_images, request_body


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
        mended: Mended | None = None,
    ) -> None:
        super().__init__(endpoint, messages, tools, model, mended)
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
        return request_body({**fields, "instructions": asked.instructions}, tools, encode(asked.items), "input"), sent

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

    def reader(self) -> ResponsesReader:
        """What reads the answer."""
        return ResponsesReader(self)


def _asked_to_wait(text: str) -> float | None:
    found = re.search(r"try again in\s*(\d+(?:\.\d+)?)\s*(ms|s\b|seconds?)", text, re.IGNORECASE)
    return None if found is None else float(found[1]) / (1000 if found[2].lower() == "ms" else 1)


def _long(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} minutes" if minutes < 120 else f"{round(minutes / 60)} hours"
