"""What a model says in one step: deltas in, turn events out, and no secret of ours in them."""

from collections.abc import Callable

from nanobot.agent import turn as events
from nanobot.agent.turn import Emitter
from nanobot.providers.base import ReasoningDelta, TextDelta
from nanobot.security.vault import MaskedSpeech


class Speech:
    """What a model says in one step, told to the sink in strict pairs."""

    def __init__(self, emit: Emitter, partial: Callable[[str], None]) -> None:
        """`partial` is told of the text too, so that a crash loses none of it."""
        self._emit = emit
        self._partial = partial
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._told = MaskedSpeech()
        self._thought = MaskedSpeech()
        self._thinking = False
        self._speaking = False

    @property
    def text(self) -> str:
        """What was said so far."""
        return "".join(self._text)

    def add(self, delta: object) -> None:
        """More of it."""
        match delta:
            case TextDelta(text) if text:
                self._end_reasoning()
                if not self._speaking:
                    self._speaking = True
                    self._emit(events.TextStarted())
                self._say(self._told.passed(text))
            case ReasoningDelta(text) if text:
                if not self._thinking:
                    self._thinking = True
                    self._emit(events.ReasoningStarted())
                self._think(self._thought.passed(text))
            case _:
                pass  # pieces of a tool call: the call is told of when it runs

    def end(self, *, final: bool) -> None:
        """All is said. Ending twice is harmless."""
        self._end_reasoning()
        if self._speaking:
            self._speaking = False
            self._say(self._told.end())
            self._emit(events.TextEnded(text=self.text, final=final))

    def _say(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._emit(events.TextDelta(text=text))
            self._partial(text)

    def _think(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._emit(events.ReasoningDelta(text=text))

    def _end_reasoning(self) -> None:
        if self._thinking:
            self._thinking = False
            self._think(self._thought.end())
            self._emit(events.ReasoningEnded(text="".join(self._reasoning)))
            self._reasoning.clear()
