"""One attempt to get an answer, which another attempt may follow."""

from nanobot.providers.base import Delta, Finished, TextDelta, ToolCallDelta
from nanobot.providers.errors import StreamCutError


class StreamGuard:
    """Passes deltas on and tracks whether the answer can still be retried.

    Emitted text is final. Reasoning is not: a retried model thinks again. Deltas of tool calls are held back until text
    goes out or the answer is complete, so that a call that was started twice does not look like one.
    """

    def __init__(self) -> None:
        self.final = False
        """Whether another attempt would show the user two answers."""
        self._finished = False
        self._held: list[Delta] = []

    def filter(self, delta: Delta) -> list[Delta]:
        """The deltas to emit now. Updates `final` before they are emitted."""
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
        """The stream is over. Raises StreamCutError if it ended without Finished."""
        if not self._finished:
            raise StreamCutError("the stream ended without a complete answer")
