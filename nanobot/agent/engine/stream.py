"""Turns the deltas of a model response into turn events with secrets redacted."""

from collections.abc import Callable

from nanobot.agent import events
from nanobot.agent.events import Emitter
from nanobot.providers.base import ReasoningDelta, TextDelta
from nanobot.security.secrets import StreamRedactor


class StreamAssembler:
    """Assembles the response of one step; emits started and ended events in strict pairs."""

    def __init__(
        self, emit: Emitter, on_partial_text: Callable[[str], None], *, hold_text: bool = False, continues: bool = False
    ) -> None:
        """`on_partial_text` gets the text as well, so that a crash does not lose it. With `hold_text` the text is
        emitted only at the end of the step, and only if it is not the answer. `continues`: the text goes on where that
        of the step before was cut off.
        """
        self._started = events.TextStarted(continues=continues or None)
        self._hold_text = hold_text
        self._emit = emit
        self._on_partial_text = on_partial_text
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_redactor = StreamRedactor()
        self._reasoning_redactor = StreamRedactor()
        self._reasoning_started = False
        self._text_started = False

    @property
    def text(self) -> str:
        """The redacted text so far."""
        return "".join(self._text)

    def add(self, delta: object) -> None:
        match delta:
            case TextDelta(text) if text:
                self._end_reasoning()
                if not self._text_started:
                    self._text_started = True
                    if not self._hold_text:
                        self._emit(self._started)
                self._emit_text(self._text_redactor.feed(text))
            case ReasoningDelta(text) if text:
                if not self._reasoning_started:
                    self._reasoning_started = True
                    self._emit(events.ReasoningStarted())
                self._emit_reasoning(self._reasoning_redactor.feed(text))
            case _:
                pass  # fragments of a tool call: ToolStarted is emitted when it runs

    def end(self, *, final: bool, interrupted: bool = False) -> None:
        """End open text and reasoning. Idempotent."""
        self._end_reasoning()
        if not self._text_started:
            return
        self._text_started = False
        self._emit_text(self._text_redactor.end())
        if self._hold_text:
            if final or interrupted:
                return
            self._emit(self._started)
            self._emit(events.TextDelta(text=self.text))
        self._emit(events.TextEnded(text=self.text, final=final))

    def _emit_text(self, text: str) -> None:
        if text:
            self._text.append(text)
            if not self._hold_text:
                self._emit(events.TextDelta(text=text))
            self._on_partial_text(text)

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._emit(events.ReasoningDelta(text=text))

    def _end_reasoning(self) -> None:
        if self._reasoning_started:
            self._reasoning_started = False
            self._emit_reasoning(self._reasoning_redactor.end())
            self._emit(events.ReasoningEnded(text="".join(self._reasoning)))
            self._reasoning.clear()
