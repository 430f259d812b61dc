"""The port between the agent and models: a request goes in, deltas come out, the last thing is the whole response.

A provider overrides `chat` or `chat_stream`; the base class derives each from the other. Signatures are those that
providers written for the original design have, so what a call is for travels beside them, in `call_context`.
"""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, cast

from nanobot.errors import ProviderError
from nanobot.messages.types import ChatMessage, ToolCall, ToolSchema
from nanobot.providers.errors import error_from_response
from nanobot.utils.text import mended_json


@dataclass(slots=True)
class ToolCallRequest:
    """A model asks for a tool. `arguments_text` is what it wrote, byte for byte; `arguments` is what we understood.

    `problem` says why the text could not be understood; then `arguments` is empty and the tool must not run.
    `extra_content` is the server's own: it goes back with the call as it came.
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
        """Read the arguments a model wrote, mending what JSON can be mended."""
        arguments, problem = parse_arguments(text)
        return cls(call_id, name, arguments, text, problem, extra_content)

    def to_message(self) -> ToolCall:
        """The call as it is stored and replayed: the model's own text where that is legal JSON."""
        text = self.arguments_text
        if text is None or not _is_json_object(text):
            text = json.dumps(self.arguments, ensure_ascii=False)
        call: ToolCall = {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": text}}
        if self.extra_content:
            call["extra_content"] = self.extra_content
        return call


def parse_arguments(text: str) -> tuple[dict[str, Any], str | None]:
    """The arguments in a model's text, and what is wrong with it if they cannot be read. Never raises."""
    if not text.strip():
        return {}, None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:
            found = mended_json(text)
        except ValueError as error:
            return {}, f"the arguments are {error}"
    if isinstance(found, dict):
        return found, None
    return {}, f"the arguments must be one JSON object, not {text[:80]!r}"


def _is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


@dataclass(slots=True)
class LLMResponse:
    """What a provider returned.

    `usage` counts tokens: prompt_tokens (cached_tokens and cache_written_tokens are part of it) and completion_tokens
    (reasoning_tokens are part of it).

    A provider of somebody's own may report a failure as finish_reason "error" with the `error_` fields; `chat_stream`
    turns that into our typed error. Ours raise.
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
    """What it cost, once it was metered; None where no price is known."""

    @property
    def has_tool_calls(self) -> bool:
        """Whether the model asked for tools."""
        return bool(self.tool_calls)


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """More of the thinking before it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """More of a tool call: its name once it is known, then pieces of its arguments."""

    index: int
    name: str = ""
    arguments_text: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of every stream that did not raise; the whole response, deltas included."""

    response: LLMResponse


Delta = TextDelta | ReasoningDelta | ToolCallDelta | Finished


def unheard(_text: str) -> None:
    """What is said where nobody waits for the answer."""


@dataclass(frozen=True, slots=True)
class CallContext:
    """What a model call is for."""

    cause: str = "turn"
    session_key: str = ""
    turn_id: str = ""
    goal: bool = False
    """Whether it works for a goal that may take hours: then no limit holds for the whole of an answer."""
    others_left: bool = False
    """Whether another model can be asked if this one keeps the person waiting: then nobody waits long for it."""
    prompt_tokens: int = field(default=0, compare=False)
    """About how long the request is, where whoever makes it has weighed it: estimating it again would cost more."""
    notify: Callable[[str], None] = field(default=unheard, compare=False, repr=False)
    """Tell the person who waits, in a sentence, why it takes longer or who answers instead. Never raises."""


_call_context: ContextVar[CallContext] = ContextVar("nanobot_call_context", default=CallContext())  # noqa: B039 frozen


@contextmanager
def calling_for(context: CallContext) -> Iterator[None]:
    """Say what the model calls inside are for."""
    token = _call_context.set(context)
    try:
        yield
    finally:
        _call_context.reset(token)


def call_context() -> CallContext:
    """What the running model call is for."""
    return _call_context.get()


class LLMProvider:
    """A way to reach models. One instance serves all sessions at once and keeps nothing of any of them."""

    def __init__(self, api_key: str | None = None, api_base: str | None = None) -> None:
        self.api_key = api_key
        self.api_base = api_base

    def get_default_model(self) -> str:
        """The model asked when a call names none."""
        raise NotImplementedError(f"{type(self).__name__} has no default model")

    def prepare(self) -> None:
        """A call is near: begin to load what it needs, beside whatever else there is to do. Returns at once."""

    def watch_mends(self, told: Callable[[ProviderError, str, float], None]) -> None:
        """From now on, tell of each request that is refused and sent again with less: its failure, model and seconds.

        Only a provider that does such a thing overrides it; `told` never raises.
        """

    def notes(self) -> list[str]:
        """What is out of order right now, each in a sentence for /status; empty where all is well."""
        return []

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> LLMResponse:
        """The whole response at once.

        Raises ProviderError. Cancelling is safe: the connection is closed, nothing is kept.
        """
        if type(self).chat_stream is LLMProvider.chat_stream:
            raise NotImplementedError(f"{type(self).__name__} must define chat or chat_stream")
        stream = self.chat_stream(messages, tools, model, max_tokens, temperature)
        async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as deltas:
            async for delta in deltas:
                if isinstance(delta, Finished):
                    return delta.response
        raise ProviderError(f"{type(self).__name__} ended its answer without finishing it. Send the message again.")

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        """The same as it comes: deltas, then exactly one Finished. Errors and cancelling as in `chat`.

        The messages are legal (see messages/repair.py); fields the wire does not know are left out by the provider.
        """
        from nanobot.providers.wire import plain_messages  # only providers of somebody's own come this way

        response = await self.chat(await plain_messages(messages), tools, model, max_tokens, temperature)
        if response.finish_reason == "error":
            raise error_from_response(response)
        if response.reasoning_content:
            yield ReasoningDelta(response.reasoning_content)
        if response.content:
            yield TextDelta(response.content)
        yield Finished(response)

    async def close(self) -> None:
        """Let go of connections. Called once, after the last call."""
