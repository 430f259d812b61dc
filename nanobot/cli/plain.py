"""An answer for a pipe: its text as it comes and nothing else. What happens beside it is told on stderr, to a person.

A failure is one line on stderr. When nobody reads any more (`| head -1`), the rest is dropped and its outlet says so.
"""

from collections.abc import Callable
from typing import Any, TextIO

from nanobot.agent.turn import (
    ApprovalAsked,
    Notice,
    StepEnded,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnEvent,
)
from nanobot.cli.closing import closing_words, failure_line
from nanobot.cli.outlet import Outlet
from nanobot.cli.terminal import Paint, is_screen, mended, visible, wants_colour
from nanobot.cli.tool_lines import ended_lines
from nanobot.messages.types import INTERRUPTED

_ASIDE_COLUMNS = 100
_GOES_ON = ("length", INTERRUPTED)
"""How a step ends whose text the next one goes on with, in the middle of the sentence."""


class PlainAnswer:
    """A sink of turn events for one turn."""

    def __init__(self, out: TextIO | None, aside: TextIO | None) -> None:
        self.outlet = Outlet(out)
        self._aside = Outlet(aside)
        self._tells = is_screen(aside)
        self._paint = Paint(wants_colour(aside))
        self._said: list[list[str]] = []
        self._speaking = False
        self._arguments: dict[str, dict[str, Any]] = {}
        self._handlers: dict[type[TurnEvent], Callable[[Any], None]] = {
            TextDelta: self._text_delta,
            StepEnded: self._step_ended,
            ToolStarted: self._tool_started,
            ToolEnded: self._tool_ended,
            ApprovalAsked: self._asked,
            Notice: lambda event: self._complain(self._paint.dim(f"  {visible(event.text)}")),
            TurnEnded: self._turn_ended,
        }

    def __call__(self, event: TurnEvent) -> None:
        """Write what belongs to the answer. Never raises."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def show(self, text: str) -> None:
        """A message beside the answer: what the agent sent to this chat by its tool. A paragraph of its own."""
        self._speaking = False
        self._text_delta(TextDelta(text=text))
        self._speaking = False
        self._end_line()

    def _text_delta(self, event: TextDelta) -> None:
        if not self._speaking:
            if any(self._said):
                self._write("\n" if self._at_line_start() else "\n\n")
            self._said.append([])
            self._speaking = True
        self._said[-1].append(event.text)
        self._write(event.text)

    def _step_ended(self, event: StepEnded) -> None:
        if event.finish_reason not in _GOES_ON:
            self._speaking = False

    def _tool_started(self, event: ToolStarted) -> None:
        self._arguments[event.call_id] = event.arguments

    def _tool_ended(self, event: ToolEnded) -> None:
        arguments = self._arguments.pop(event.call_id, {})
        if self._tells:
            self._end_line()
            self._tell(ended_lines(event, arguments, _ASIDE_COLUMNS, self._paint)[0])

    def _asked(self, event: ApprovalAsked) -> None:
        self._end_line()
        self._complain(visible(event.text))

    def _turn_ended(self, event: TurnEnded) -> None:
        closing = closing_words(event, ["".join(pieces) for pieces in self._said])
        if closing.answer:
            self._speaking = False
            self._text_delta(TextDelta(text=closing.answer))
        self._end_line()
        if closing.remark and not self.outlet.closed:
            self._complain(failure_line(event) or closing.remark)

    def _end_line(self) -> None:
        """What was said stands on lines of its own; what is said next begins below."""
        if any(self._said) and not self._at_line_start():
            self._said[-1].append("\n")
            self._write("\n")

    def _at_line_start(self) -> bool:
        return bool(self._said and self._said[-1]) and self._said[-1][-1].endswith("\n")

    def _write(self, text: str) -> None:
        self.outlet.write(mended(text))

    def _tell(self, line: str) -> None:
        if self._tells:
            self._complain(line)

    def _complain(self, line: str) -> None:
        self._aside.write(f"{line}\n")
