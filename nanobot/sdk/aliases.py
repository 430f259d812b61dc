"""Names of the original design's SDK, for programs written for it. New programs need none of them."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent import events
from nanobot.agent.events import TurnEvent, TurnOutcome
from nanobot.messages.types import ChatMessage


class OriginalUsage:
    """`usage["prompt_tokens"]` and `dict(usage)`, as where usage was a dict."""

    def keys(self) -> list[str]:
        """The names of the counts."""
        return ["prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens"]

    def __getitem__(self, name: str) -> int:
        if name not in self.keys():
            raise KeyError(name)
        return int(getattr(self, name))


class OriginalResult:
    """The original's names on a RunResult."""

    text: str
    outcome: TurnOutcome
    session: str
    turn_id: str
    model: str | None
    steps: Sequence[Any]

    @property
    def new_messages(self) -> list[ChatMessage]:
        """See RunResult."""
        raise NotImplementedError

    @property
    def content(self) -> str:
        """`text`."""
        return self.text

    @property
    def messages(self) -> list[ChatMessage]:
        """`new_messages`."""
        return self.new_messages

    @property
    def tools_used(self) -> list[str]:
        """The name of each tool call, in order."""
        return [call.name for step in self.steps for call in step.calls]

    @property
    def stop_reason(self) -> str:
        """`completed`, or the outcome of a run that did not."""
        return "completed" if self.outcome is TurnOutcome.ANSWERED else self.outcome.value

    @property
    def metadata(self) -> dict[str, Any]:
        return {"session_key": self.session, "turn_id": self.turn_id, "model": self.model}


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of `run_streamed`. Fields that its type does not have are empty."""

    type: str
    delta: str = ""
    content: str = ""
    name: str = ""
    tool_call_id: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None
    result: Any = None
    """The RunResult, in the last event."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


class OriginalStream:
    """What `run_streamed` returns."""

    def __init__(self, stream: AsyncIterable[TurnEvent], result: Callable[[], Awaitable[Any]]) -> None:
        self._stream = stream
        self._result = result

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the run; `run.completed` or `run.failed`, with the result, is the last one."""
        async for event in self._stream:
            if isinstance(event, events.TurnEnded):
                result = await self._result()
                kind = "run.completed" if result.ok else "run.failed"
                yield StreamEvent(kind, content=result.text, error=result.error, result=result)
            elif (renamed := _renamed(event)) is not None:
                yield renamed

    async def wait(self) -> Any:
        """Wait for the end of the run and return its RunResult."""
        return await self._result()


def _renamed(event: TurnEvent) -> StreamEvent | None:
    match event:
        case events.RunStarted(session_key=session_key, model=model):
            return StreamEvent("run.started", metadata={"session_key": session_key, "model": model})
        case events.TextDelta(text=text):
            return StreamEvent("text.delta", delta=text)
        case events.TextEnded(text=text):
            return StreamEvent("text.completed", content=text)
        case events.ReasoningDelta(text=text):
            return StreamEvent("reasoning.delta", delta=text)
        case events.ReasoningEnded(text=text):
            return StreamEvent("reasoning.completed", content=text)
        case events.ToolStarted(call_id=call_id, name=name, arguments=arguments):
            return StreamEvent("tool.started", name=name, tool_call_id=call_id, arguments=arguments)
        case events.ToolEnded(call_id=call_id, name=name, ok=True, content=text):
            return StreamEvent("tool.completed", content=text, name=name, tool_call_id=call_id)
        case events.ToolEnded(call_id=call_id, name=name, content=text):
            return StreamEvent("tool.failed", name=name, tool_call_id=call_id, error=text)
        case _:
            return None
