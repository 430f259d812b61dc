"""Check of the model with real requests (recorded in the ledger): answers, streaming, tool calls, images."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.cli.doctor.checks import CheckContext, Finding, error, note, warning
from nanobot.cli.setup.probe import current_selection, select_metered
from nanobot.config.provider_table import context_window
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import CallContext, Finished, LLMProvider, LLMResponse, TextDelta, call_context_scope

MAX_TOKENS = 1000
"""Enough for a model that reasons before it answers."""
SMALL_WINDOW = 16_000
"""In a smaller window, the tools and the first pages of a file fill it."""
_RED_SQUARE = (
    "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgCAIAAAD8GO2jAAAAKElEQVR4nO3NsQ0AAA"
    "zCMP5/un0CNkuZ41wybXsHAAAAAAAAAAAAxR4yw/wuPL6QkAAAAABJRU5ErkJggg=="
)
"""A PNG of 32 by 32 pixels, in base64."""
_ADD: ToolSchema = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}


@dataclass(frozen=True, slots=True)
class ModelCapabilities:
    name: str
    streams: bool
    calls_tools: bool
    sees: bool
    window_tokens: int


def model_works(context: CheckContext) -> Iterator[Finding]:
    choice = current_selection(context.config, context.places.data)
    if not choice.provider:
        yield error(f"{choice.model} cannot be used: {choice.reason}", "Set up a model with nanobot onboard.")
        return
    if choice.provider == "offline":
        yield note("no model is set up; a stand-in answers", "Set one up with nanobot onboard.")
        return
    try:
        capabilities = asyncio.run(_probe_model(context))
    except BudgetExceededError as exc:
        yield warning(f"The model was not tested: {exc}", "nanobot usage shows what was spent.")
        return
    except NanobotError as exc:
        yield error(str(exc), "")
        return
    yield from capability_findings(capabilities)


def capability_findings(capabilities: ModelCapabilities) -> Iterator[Finding]:
    abilities = ["answers"]
    abilities += ["streams"] if capabilities.streams else []
    abilities += ["calls tools"] if capabilities.calls_tools else []
    abilities += ["sees images"] if capabilities.sees else []
    yield note(f"{capabilities.name}: {', '.join(abilities)}; a window of {capabilities.window_tokens:,} tokens")
    if not capabilities.calls_tools:
        yield error(
            f"{capabilities.name} did not call a tool it was asked to call, so the agent cannot read files or act.",
            "Use a model with tool calling; on a local server, check that its chat template supports tools.",
        )
    if capabilities.window_tokens < SMALL_WINDOW:
        yield warning(
            f"Its window of {capabilities.window_tokens:,} tokens is small for an agent.",
            "Use a model with a larger window, or set agents.defaults.contextWindowTokens to its real size.",
        )
    if not capabilities.streams:
        yield note("it does not stream", "Answers appear only when they are complete.")
    if not capabilities.sees:
        yield note("it gets only the names of images")


async def _probe_model(context: CheckContext) -> ModelCapabilities:
    config = context.config
    async with select_metered(config, context.places.data) as (chosen, provider):
        with call_context_scope(CallContext("trial")):
            deltas = await _count_deltas(provider, chosen.model)
            response = await _ask_for_tool_call(provider, chosen.model)
            sees = await _can_see(provider, chosen.model)
        listed = await provider.context_length(chosen.model)
    window = config.active_preset().context_window_tokens or listed or context_window(chosen.model)
    calls_tools = any(call.name == "add" and call.problem is None for call in response.tool_calls)
    return ModelCapabilities(f"{chosen.model} ({chosen.name})", deltas > 1, calls_tools, sees, window)


async def _count_deltas(provider: LLMProvider, model: str) -> int:
    """The number of text deltas of an answer. Raises ProviderError if it is empty."""
    rows: list[ChatMessage] = [{"role": "user", "content": "Count from one to twenty, in words."}]
    deltas = 0
    async for delta in provider.chat_stream(rows, None, model, MAX_TOKENS, 0.0):
        deltas += isinstance(delta, TextDelta)
        if isinstance(delta, Finished) and not (delta.response.content or "").strip():
            raise ProviderError(f"{model} gave an empty answer. Try again, or use another model.")
    return deltas


async def _ask_for_tool_call(provider: LLMProvider, model: str) -> LLMResponse:
    rows: list[ChatMessage] = [{"role": "user", "content": "Use the tool `add` to add 17 and 25."}]
    return await provider.chat(rows, [_ADD], model, MAX_TOKENS, 0.0)


async def _can_see(provider: LLMProvider, model: str) -> bool:
    """Whether it can see images. A model that rejects an image cannot."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_RED_SQUARE}"}}
    question = {"type": "text", "text": "Which colour is this picture? Answer with one word."}
    try:
        answer = await provider.chat([{"role": "user", "content": [question, picture]}], None, model, MAX_TOKENS, 0.0)
    except ProviderError:
        return False
    return "red" in (answer.content or "").lower()
