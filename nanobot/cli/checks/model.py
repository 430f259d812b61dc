"""The model: that it answers, calls tools, streams and sees, asked for real and counted in the ledger."""

import asyncio
import struct
import zlib
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass

from nanobot.cli.checks.findings import Finding, Patient, error, note, warning
from nanobot.cli.trial import choice_now, chosen_and_counted
from nanobot.config.provider_table import context_window
from nanobot.errors import BudgetExceededError, NanobotError, ProviderError
from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import CallContext, Finished, LLMProvider, LLMResponse, TextDelta, calling_for

MAX_TOKENS = 1000
"""Room enough for a model that thinks before it speaks."""
SMALL_WINDOW = 16_000
"""With less, the tools and the first pages of a file fill it."""
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
class Verdict:
    """What a model can do."""

    name: str
    streams: bool
    calls_tools: bool
    sees: bool
    window_tokens: int


def model_works(patient: Patient) -> Iterator[Finding]:
    """A word, a tool call and a picture."""
    choice = choice_now(patient.config, patient.places.data)
    if not choice.provider:
        yield error(f"{choice.model} cannot be asked: {choice.reason}", "nanobot onboard sets a model up.")
        return
    if choice.provider == "offline":
        yield note("no model is set up; a stand-in answers", "nanobot onboard sets one up.")
        return
    try:
        verdict = asyncio.run(_judged(patient))
    except BudgetExceededError as refused:
        yield warning(f"It was not asked: {refused}", "nanobot usage shows what was spent.")
        return
    except NanobotError as refused:
        yield error(str(refused), "")
        return
    yield from findings_of(verdict)


def findings_of(verdict: Verdict) -> Iterator[Finding]:
    """The verdict in words."""
    can = ["answers"]
    can += ["streams"] if verdict.streams else []
    can += ["calls tools"] if verdict.calls_tools else []
    can += ["sees pictures"] if verdict.sees else []
    yield note(f"{verdict.name}: {', '.join(can)}; a window of {verdict.window_tokens:,} tokens")
    if not verdict.calls_tools:
        yield error(
            f"{verdict.name} did not call a tool it was asked to call: it can talk, but neither read nor act.",
            "Take a model that is made for tools; with a local server, see that its chat template has them.",
        )
    if verdict.window_tokens < SMALL_WINDOW:
        yield warning(
            f"Its window of {verdict.window_tokens:,} tokens is small for an agent.",
            "Take a model with a larger one, or set agents.defaults.contextWindowTokens to what it really has.",
        )
    if not verdict.streams:
        yield note("its answer came in one piece", "The person waits longer for the first word.")
    if not verdict.sees:
        yield note("pictures are told to it by name only")


async def _judged(patient: Patient) -> Verdict:
    config = patient.config
    chosen, provider = await chosen_and_counted(config, patient.places.data)
    try:
        with calling_for(CallContext("trial")):
            pieces = await _pieces(provider, chosen.model)
            called = await _called(provider, chosen.model)
            seen = await _seen(provider, chosen.model)
    finally:
        await provider.close()
    window = config.active_preset().context_window_tokens or context_window(chosen.model)
    calls_tools = any(call.name == "add" and call.problem is None for call in called.tool_calls)
    return Verdict(f"{chosen.name}, {chosen.model}", pieces > 1, calls_tools, seen, window)


async def _pieces(provider: LLMProvider, model: str) -> int:
    """In how many pieces an answer comes. Raises ProviderError where none does."""
    rows: list[ChatMessage] = [{"role": "user", "content": "Count from one to twenty, in words."}]
    pieces = 0
    async for delta in provider.chat_stream(rows, None, model, MAX_TOKENS, 0.0):
        pieces += isinstance(delta, TextDelta)
        if isinstance(delta, Finished) and not (delta.response.content or "").strip():
            raise ProviderError(f"{model} answered without a word. Ask it again, or take another model.")
    return pieces


async def _called(provider: LLMProvider, model: str) -> LLMResponse:
    rows: list[ChatMessage] = [{"role": "user", "content": "Use the tool `add` to add 17 and 25."}]
    return await provider.chat(rows, [_ADD], model, MAX_TOKENS, 0.0)


async def _seen(provider: LLMProvider, model: str) -> bool:
    """Whether it sees. A model that refuses a picture does not."""
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_red_square()}"}}
    question = {"type": "text", "text": "Which colour is this picture? Answer with one word."}
    try:
        answer = await provider.chat([{"role": "user", "content": [question, picture]}], None, model, MAX_TOKENS, 0.0)
    except ProviderError:
        return False
    return "red" in (answer.content or "").lower()


def _red_square(size: int = 32) -> str:
    """A PNG (www.w3.org/TR/png), in base64."""
    rows = (b"\0" + b"\xff\x00\x00" * size) * size

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b64encode(png).decode()
