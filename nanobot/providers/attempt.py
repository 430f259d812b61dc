"""One try at an answer that may be followed by another."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from nanobot.providers.base import Delta, Finished, TextDelta, ToolCallDelta
from nanobot.providers.errors import StreamCutError


class Attempt:
    """Passes on what a model says, and knows when it can no longer be taken back.

    Text that went out is final. Thinking is not: asked again, a model thinks again. Pieces of tool calls are kept back
    until text goes out or the answer is whole, so that a call which is begun twice does not read as one.
    """

    def __init__(self) -> None:
        self.final = False
        """Whether asking anybody again would show a person two answers."""

    async def deltas(self, stream: AsyncIterator[Delta]) -> AsyncGenerator[Delta, None]:
        """What the stream says. Closes it, and raises what it raises, or StreamCutError where it has no end."""
        held: list[ToolCallDelta] = []
        finished = False
        async with aclosing(cast("AsyncGenerator[Delta, None]", stream)) as source:
            async for delta in source:
                if isinstance(delta, ToolCallDelta) and not self.final:
                    held.append(delta)
                    continue
                if isinstance(delta, TextDelta | Finished):
                    self.final = True
                    finished = finished or isinstance(delta, Finished)
                    for piece in held:
                        yield piece
                    held.clear()
                yield delta
        if not finished:
            raise StreamCutError("it ended without being finished")
