"""A model that says exactly these deltas, and what was asked of it."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from nanobot.messages.types import ChatMessage, ToolSchema
from nanobot.providers.base import (
    CallContext,
    Delta,
    Finished,
    LLMProvider,
    TextDelta,
    call_context,
    call_context_scope,
)
from tests.support.sample_requests import HELLO, LIST_DIR

Line = Delta | BaseException


class Streams(LLMProvider):
    """A list of deltas, or an exception among them, a call. The last one is repeated."""

    def __init__(self, *streams: Sequence[Line] | Line) -> None:
        super().__init__()
        self._streams: list[list[Line]] = [[*one] if isinstance(one, Sequence) else [one] for one in streams]
        self.asked: list[dict[str, Any]] = []
        self.contexts: list[CallContext] = []
        self.closed = 0
        self.prepared = 0

    def prepare(self) -> None:
        self.prepared += 1

    async def chat_stream(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSchema] | None = None,
        model: str | None = None,
        max_tokens: int = 4096,
        temperature: float = 0.7,
    ) -> AsyncIterator[Delta]:
        self.asked.append({"model": model, "max_tokens": max_tokens, "temperature": temperature})
        self.contexts.append(call_context())
        for line in self._streams[min(len(self.asked), len(self._streams)) - 1]:
            if isinstance(line, BaseException):
                raise line
            yield line

    async def close(self) -> None:
        self.closed += 1


async def heard(provider: LLMProvider, told: list[str] | None = None, session: str = "s", **call: Any) -> list[Delta]:
    """All that it says, and on the way, what the person is told."""
    notices = told if told is not None else []
    with call_context_scope(CallContext(session_key=session, notify=notices.append)):
        return [delta async for delta in provider.chat_stream(HELLO, [LIST_DIR], **call)]


def text_of(deltas: list[Delta]) -> str:
    """The text a person saw."""
    assert isinstance(deltas[-1], Finished)
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))
