"""One try at an answer that may be followed by another."""

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
        self._finished = False
        self._held: list[Delta] = []

    def passed(self, delta: Delta) -> list[Delta]:
        """What goes out now that the model said this; before it happens, `final` is what it will be."""
        if isinstance(delta, ToolCallDelta) and not self.final:
            self._held.append(delta)
            return []
        if isinstance(delta, TextDelta | Finished):
            self.final = True
            self._finished = self._finished or isinstance(delta, Finished)
            held, self._held = self._held, []
            return [*held, delta]
        return [delta]

    def end(self) -> None:
        """The model says no more. Raises StreamCutError where that is no end."""
        if not self._finished:
            raise StreamCutError("it ended without being finished")
