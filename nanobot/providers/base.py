"""The interface between the agent and models: a request goes in, deltas come out, the last one holds the whole
response.

A provider overrides `chat` or `chat_stream`; the base class derives each from the other. Both keep the signatures of
the original design, so the purpose of a call travels beside them, in `call_context`. Our own override `stream`.
"""

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from nanobot.errors import ProviderError
from nanobot.messages.types import ChatMessage, ToolCall, ToolSchema
from nanobot.providers.errors import (
    AuthenticationError,
    ConnectionFailedError,
    ContentFilteredError,
    ContextOverflowError,
    InvalidRequestError,
    ModelCallError,
    ModelOverloadedError,
    ProviderTimeoutError,
    QuotaExceededError,
    RateLimitedError,
    kind_of_status,
)
from nanobot.utils.text import repair_json


@dataclass(slots=True)
class ToolCallRequest:
    """A tool call by a model. `arguments_text` is the model's text, byte for byte; `arguments` the parsed form.

    If the text cannot be parsed, `problem` says why, `arguments` is empty and the tool must not run. `extra_content`
    belongs to the server and is sent back unchanged with the call.
    """

    id: str
    name: str
    arguments: dict[str, Any]
    arguments_text: str | None = None
    problem: str | None = None
    extra_content: dict[str, Any] | None = None

    @classmethod
    def from_text(
        cls, call_id: str, name: str, text: str, extra_content: dict[str, Any] | None = None
    ) -> "ToolCallRequest":
        """Parse a model's arguments, repairing broken JSON where possible."""
        arguments, problem = parse_arguments(text)
        return cls(call_id, name, arguments, text, problem, extra_content)

    def to_message(self) -> ToolCall:
        """The call as stored and replayed: with the model's own text if that is a JSON object."""
        text = self.arguments_text
        if text is None or not _is_json_object(text):
            text = json.dumps(self.arguments, ensure_ascii=False)
        call: ToolCall = {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text}}
        if self.extra_content:
            call["extra_content"] = self.extra_content
        return call


def parse_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """Return the parsed arguments, and a description of the problem if they cannot be parsed. Never raises."""
    if not text.strip():
        return {}, None
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        try:
            arguments = repair_json(text)
        except ValueError as error:
            return {}, f"the arguments are {error}"
    if isinstance(arguments, dict):
        return arguments, None
    return {}, f"the arguments must be one JSON object, not {text[:80]!r}"


def new_call_id() -> str:
    """An id for a call without one: letters and digits, which every vendor accepts."""
    return f"call{secrets.token_hex(8)}"


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(slots=True)
class LLMResponse:
    """What a provider returned.

    `usage` counts tokens: prompt_tokens (including cached_tokens and cache_written_tokens) and completion_tokens
    (including reasoning_tokens).

    A third-party provider may report a failure as finish_reason "error" with the `error_` fields; `chat_stream`
    converts it to a typed error. Our own providers raise.
    """

    content: str | None
    tool_calls: list[ToolCallRequest] = field(default_factory=list)
    finish_reason: str = "stop"
    usage: dict[str, int] = field(default_factory=dict)
    reasoning_content: str | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    error_status_code: int | None = None
    error_kind: str | None = None
    error_retry_after_s: float | None = None
    error_should_retry: bool | None = None
    cost_usd: float | None = None
    """Set by the meter; None if the price is unknown."""

    @property
    def has_tool_calls(self) -> bool:
        return bool(self.tool_calls)


_ERROR_KINDS: dict[str, type[ModelCallError]] = {
    "timeout": ProviderTimeoutError,
    "connection": ConnectionFailedError,
    "rate_limit": RateLimitedError,
    "overloaded": ModelOverloadedError,
    "auth": AuthenticationError,
    "quota": QuotaExceededError,
    "context_length": ContextOverflowError,
    "content_filter": ContentFilteredError,
}


def error_from_response(response: LLMResponse) -> ModelCallError:
    """The typed error of a failure that a third-party provider reported as a response."""
    kind = _ERROR_KINDS.get(response.error_kind or "")
    if kind is None and response.error_status_code is not None:
        kind = kind_of_status(response.error_status_code)
    if kind is None:
        kind = ModelOverloadedError if response.error_should_retry else InvalidRequestError
    return kind(response.content or "", status=response.error_status_code, retry_after_s=response.error_retry_after_s)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Part of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Part of the model's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of a tool call: first its name, then fragments of its arguments."""

    index: int
    name: str = ""
    arguments_text: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """Ends every stream that did not raise. `response` includes everything the deltas carried."""

    response: LLMResponse


Delta = TextDelta | ReasoningDelta | ToolCallDelta | Finished


def ignore_notice(_text: str) -> None:
    """The `notify` callback of a call that no user waits for."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """The purpose of a model call."""

    cause: str = "turn"
    session_key: str = ""
    turn_id: str = ""
    goal: bool = False
    """Whether the call works on a goal that may take hours; then no total time limit applies."""
    budget_usd: float | None = None
    """What the calls of the turn may cost."""
    reasoning_effort: str | None = None
    """Overrides the configured one."""
    has_fallback: bool = False
    """Whether another model can be tried if this one is slow; then the first-token limit is shorter."""
    prompt_tokens: int = field(default=0, compare=False)
    """Estimated size of the request if the caller already knows it; 0 to estimate it when needed."""
    notify: Callable[[str], None] = field(default=ignore_notice, compare=False, repr=False)
    """Tell the waiting user in one sentence why it takes longer or which model answers instead. Never raises."""


_call_context: ContextVar[CallContext] = ContextVar("nanobot_call_context", default=CallContext())  # noqa: B039 frozen


@contextmanager
def call_context_scope(context: CallContext) -> Iterator[None]:
    """Set the context of all model calls made inside."""
    token = _call_context.set(context)
    try:
        yield
    finally:
        _call_context.reset(token)


def call_context() -> CallContext:
    return _call_context.get()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """What a model is asked, as our own providers pass it on."""

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSchema] = ()
    model: str = ""
    """Empty for the provider's default model."""
    max_tokens: int = 4096
    temperature: float = 0.7

    def send(self, provider: "LLMProvider") -> "AsyncGenerator[Delta, None]":
        """Ask this provider, which may be somebody else's."""
        deltas = provider.chat_stream(
            self.messages, self.tools or None, self.model or None, self.max_tokens, self.temperature
        )
        return cast("AsyncGenerator[Delta, None]", deltas)


class LLMProvider:
    """Access to models. One instance serves all sessions concurrently and keeps no state of any session."""

    def __init__(self, api_key: str | None = None, api_base: str | None = None) -> None:
        self.api_key = api_key
        self.api_base = api_base

    def get_default_model(self) -> str:
        """The model used when a call names none."""
        raise NotImplementedError(f"{type(self).__name__} has no default model")

    def prepare(self) -> None:
        """A call is likely soon: start loading what it needs in the background. Returns at once."""

    def on_fixup(self, callback: Callable[[ProviderError, str, float], None]) -> None:
        """Call `callback` with error, model and seconds whenever a rejected request is modified and sent again.

        Only providers that modify requests override this. The callback never raises.
        """

    def notes(self) -> list[str]:
        """Current problems for /status, one sentence each; empty if there are none."""
        return []

    async def list_models(self) -> tuple[str, ...]:
        """The models to choose from; empty if the provider cannot list them. Never raises."""
        return ()

    async def check_key(self) -> None:
        """Have the provider check the key with the cheapest request there is.

        Raises AuthenticationError if it rejects the key; any other ProviderError says nothing about the key.
        """
        await self.chat([{"role": "user", "content": "Hi"}], max_tokens=1)

    async def context_length(self, model: str) -> int | None:
        """The context window that the endpoint lists for a model, in tokens; None if it lists none. Never raises."""
        return None

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> LLMResponse:
        """Return the whole response.

        Raises ProviderError. Cancelling is safe: it closes the connection.
        """
        own = type(self)
        if own.chat_stream is LLMProvider.chat_stream and own.stream is LLMProvider.stream:
            raise NotImplementedError(f"{own.__name__} must define chat or chat_stream")
        async with aclosing(
            ModelRequest(messages, tools or (), model or "", max_tokens, temperature).send(self)
        ) as deltas:
            async for delta in deltas:
                if isinstance(delta, Finished):
                    return delta.response
        raise ProviderError(f"{own.__name__} ended its answer without finishing it. Send the message again.")

    def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """Yield deltas as they arrive, then exactly one Finished. Errors and cancelling as in `chat`.

        The messages are valid (see messages/repair.py); the provider drops fields that its wire does not know.
        """
        return self.stream(ModelRequest(messages, tools or (), model or "", max_tokens, temperature))

    async def stream(self, request: ModelRequest) -> AsyncIterator[Delta]:
        """What `chat_stream` yields; our own providers override this. Here: derived from `chat`."""
        from nanobot.providers.wire.rows import plain_messages  # only third-party providers get here

        response = await self.chat(
            await plain_messages(request.messages),
            request.tools or None,
            request.model or None,
            request.max_tokens,
            request.temperature,
        )
        if response.finish_reason == "error":
            raise error_from_response(response)
        if response.reasoning_content:
            yield ReasoningDelta(response.reasoning_content)
        if response.content:
            yield TextDelta(response.content)
        yield Finished(response)

    async def close(self) -> None:
        """Close connections. Called once, after the last call."""
