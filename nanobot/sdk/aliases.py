"""`run_streamed` of the original design's SDK, for programs written for it."""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from nanobot.agent.events import TurnEvent

if TYPE_CHECKING:
    from nanobot.sdk.result import RunResult
    from nanobot.sdk.stream import RunStream

_TYPES = {
    "run_started": "run.started", "text_delta": "text.delta", "text_ended": "text.completed",
    "reasoning_delta": "reasoning.delta", "reasoning_ended": "reasoning.completed", "tool_started": "tool.started",
    "tool_ended": "tool.completed", "turn_ended": "run.completed",
}  # fmt: skip
"""The original's types of events, by ours. Others are left out."""


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
    result: "RunResult[Any] | None" = None
    """In the last event."""


class OriginalStream:
    """What `run_streamed` returns."""

    def __init__(self, stream: "RunStream[Any]") -> None:
        self._stream = stream
        self.wait = stream.result

    async def stream_events(self) -> AsyncIterator[StreamEvent]:
        """Yield the events of the run; `run.completed` or `run.failed`, with the result, is the last one."""
        async for event in self._stream:
            if event.type in _TYPES:
                yield _renamed(event, await self._stream.result() if event.type == "turn_ended" else None)


def _renamed(event: TurnEvent, result: "RunResult[Any] | None") -> StreamEvent:
    kind, is_delta = _TYPES[event.type], event.type.endswith("_delta")
    text = str(getattr(event, "content", "") or getattr(event, "text", ""))
    has_failed = not result.ok if result is not None else not getattr(event, "ok", True)
    return StreamEvent(
        kind.replace("completed", "failed") if has_failed else kind,
        delta=text if is_delta else "",
        content="" if is_delta else text,
        name=getattr(event, "name", ""),
        tool_call_id=getattr(event, "call_id", ""),
        arguments=getattr(event, "arguments", {}),
        error=(result.error if result is not None else text) if has_failed else None,
        result=result,
    )
