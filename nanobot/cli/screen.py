"""Turn events on a terminal: a growing answer, a dim line a tool call, a word while one waits.

The screen is a sink of turn events. It keeps what has been drawn and what may change, and tells its surface both.
Nothing is drawn more often than an eye can follow, nor more often than drawing itself allows.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent.turn import (
    Answer,
    ApprovalAnswered,
    ApprovalAsked,
    Notice,
    ReasoningStarted,
    StepEnded,
    StepStarted,
    TextDelta,
    TextEnded,
    ToolDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnEvent,
)
from nanobot.cli.answer import Draw, GrowingAnswer
from nanobot.cli.closing import FAILURES, closing_words
from nanobot.cli.drawing import Draws
from nanobot.cli.surface import Surface
from nanobot.cli.terminal import Paint, visible
from nanobot.cli.tool_lines import ended_lines, running_line

FRAME_S = 0.05
TICK_S = 0.1
WAIT_BEFORE_SPINNER_S = 0.15
SILENCE_BEFORE_SPINNER_S = 1.0
_ANSWERED = {
    Answer.NO: "not allowed",
    Answer.ONCE: "allowed, this once",
    Answer.ALWAYS: "allowed, for 30 days",
    Answer.EXPIRED: "nobody answered: not allowed",
    Answer.STOPPED: "stopped before an answer",
}
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(slots=True)
class _RunningTool:
    name: str
    arguments: dict[str, Any]
    since: float
    said: str = ""


@dataclass(slots=True)
class _Drawing:
    """What stands on the screen for the turn that runs."""

    answer: GrowingAnswer | None = None
    tools: dict[str, _RunningTool] = field(default_factory=dict)
    waiting_since: float = 0.0
    waiting_for: str = "thinking"
    spoken: bool = False
    """Whether words have come since the wait began: then a silence must be longer to be worth a word."""
    said: list[list[str]] = field(default_factory=list)
    asks: bool = False
    """Whether it waits for the person, who knows that: then no time is shown."""
    pending: list[str] = field(default_factory=list)
    last_kind: str = ""


class Screen:
    """Draws one turn after the other."""

    def __init__(
        self,
        surface: Surface,
        draws: Draws,
        paint: Paint,
        *,
        tells_failure: bool = True,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tells_failure = tells_failure
        self._surface = surface
        self._draws = draws
        self._paint = paint
        self._now = monotonic
        self._drawing = _Drawing()
        self._next_frame = 0.0
        self._busy = False
        self._handlers: dict[type[TurnEvent], Callable[[Any], None]] = {
            StepStarted: self._step_started,
            ReasoningStarted: lambda _event: self._wait("reasoning"),
            TextDelta: self._text_delta,
            TextEnded: self._text_ended,
            ToolStarted: self._tool_started,
            ToolDelta: self._tool_delta,
            ToolEnded: self._tool_ended,
            StepEnded: self._step_ended,
            ApprovalAsked: self._asked,
            ApprovalAnswered: self._answered,
            Notice: self._notice,
            TurnEnded: self._turn_ended,
        }

    def begin(self) -> None:
        """A turn is about to run: from now on somebody waits."""
        self._drawing = _Drawing()
        self._busy = True
        self._wait("thinking")

    def __call__(self, event: TurnEvent) -> None:
        """Draw what happened. Neither blocks for long nor raises: it is a sink."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def note(self, heading: str, text: str, *, ours: bool) -> None:
        """Something beside the turn: a message from elsewhere, or (`ours`) a command's answer. It stays."""
        self._stay_ready()
        self._stay("heading", [self._paint.dim(heading)])
        self._stay("heading", self._whole(text, self._draws.plain if ours else self._draws.answer))
        self._frame()

    def lines(self, lines: list[str]) -> None:
        """Lines as they are, with no empty line but their own; they stay."""
        self._stay_ready()
        self._drawing.pending += lines
        self._drawing.last_kind = ""
        self._frame()

    async def keep_alive(self) -> None:
        """Draw what time changes (a spinner, seconds, text held back between frames) until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._busy:
                self._frame()

    def finish(self) -> None:
        """The turn is over or was cancelled: what was said stays, nothing else does."""
        if not self._busy:
            return
        self._end_answer()
        self._busy = False
        self._frame()

    def _wait(self, what: str) -> None:
        self._drawing.waiting_since = self._now()
        self._drawing.waiting_for = what
        self._drawing.spoken = False

    def _step_started(self, _event: StepStarted) -> None:
        self._wait("thinking")
        self._frame()

    def _step_ended(self, event: StepEnded) -> None:
        if event.finish_reason != "length":  # then the next step goes on in the middle of the sentence
            self._end_answer()
        self._wait("thinking")

    def _text_delta(self, event: TextDelta) -> None:
        drawing = self._drawing
        if drawing.answer is None:
            drawing.answer = GrowingAnswer(self._draws.answer)
            drawing.said.append([])
        text = visible(event.text)
        drawing.said[-1].append(text)
        drawing.answer.feed(text, self._surface.columns)
        first_words = not drawing.spoken and bool(text.strip())
        if text.strip():
            drawing.waiting_since = self._now()
            drawing.spoken = True
        if first_words or self._now() >= self._next_frame:
            self._frame()

    def _text_ended(self, event: TextEnded) -> None:
        if not event.final:
            self._end_answer()
        self._frame()

    def _end_answer(self) -> None:
        if self._drawing.answer is None:
            return
        self._drawing.answer.end(self._surface.columns)
        self._stay("text", self._drawing.answer.take(self._surface.columns, self._surface.live_rows)[0])
        self._drawing.answer = None

    def _tool_started(self, event: ToolStarted) -> None:
        self._end_answer()
        self._drawing.tools[event.call_id] = _RunningTool(event.name, event.arguments, self._now())
        self._frame()

    def _tool_delta(self, event: ToolDelta) -> None:
        if event.call_id in self._drawing.tools:
            self._drawing.tools[event.call_id].said = event.text

    def _tool_ended(self, event: ToolEnded) -> None:
        self._end_answer()
        running = self._drawing.tools.pop(event.call_id, None)
        arguments = running.arguments if running else {}
        self._stay("tool", ended_lines(event, arguments, self._surface.columns, self._paint))
        if not self._drawing.tools:
            self._wait("thinking")
        self._frame()

    def _notice(self, event: Notice) -> None:
        self._end_answer()
        lines = self._whole(event.text, self._draws.plain, indent=2)
        self._stay("tool", [self._paint.dim(f"  {line}") for line in lines])
        self._frame()

    def _asked(self, event: ApprovalAsked) -> None:
        self._end_answer()
        self._stay("question", self._whole(event.text, self._draws.answer))
        self._drawing.asks = True
        self._frame()

    def _answered(self, event: ApprovalAnswered) -> None:
        self._drawing.asks = False
        self._stay("question", [self._paint.dim(f"  ({_ANSWERED[event.answer]})")])
        self._wait("thinking")
        self._frame()

    def _turn_ended(self, event: TurnEnded) -> None:
        self._end_answer()
        closing = closing_words(event, ["".join(pieces) for pieces in self._drawing.said])
        if closing.answer:
            self._stay("text", self._whole(closing.answer, self._draws.plain))
        failed = event.outcome in FAILURES
        if closing.remark and (self._tells_failure or not failed):
            paint = self._paint.red if failed else self._paint.dim
            self._stay("remark", [paint(line) for line in self._whole(closing.remark, self._draws.plain)])
        self.finish()

    def _whole(self, text: str, draw: Draw, *, indent: int = 0) -> list[str]:
        """The lines of a text that does not grow."""
        growing, width = GrowingAnswer(draw), max(self._surface.columns - indent, 1)
        growing.feed(visible(text), width)
        growing.end(width)
        return growing.take(width, self._surface.live_rows)[0]

    def _stay(self, kind: str, lines: list[str]) -> None:
        """Lines for good; an empty line parts what the model says from what it does."""
        if not lines:
            return
        if self._drawing.last_kind and self._drawing.last_kind != kind and lines[0]:
            self._drawing.pending.append("")
        self._drawing.last_kind = kind
        self._drawing.pending += lines

    def _frame(self) -> None:
        """Bring the surface up to date."""
        began = self._now()
        live: list[str] = []
        if self._busy and self._drawing.answer is not None:
            live = self._stay_ready()
            if live and live[0] and self._drawing.last_kind not in ("", "text"):
                live.insert(0, "")
        live += self._beside()
        stay = "".join(f"{line}\n" for line in self._drawing.pending)
        self._drawing.pending = []
        self._surface.show(stay, "\n".join(live[-self._surface.live_rows - 2 :]))
        ended = self._now()
        self._next_frame = ended + max(FRAME_S, 4 * (ended - began))

    def _stay_ready(self) -> list[str]:
        """Let stay what can of the answer; its lines that may still change."""
        if self._drawing.answer is None:
            return []
        ready, live = self._drawing.answer.take(self._surface.columns, self._surface.live_rows)
        self._stay("text", ready)
        return live

    def _beside(self) -> list[str]:
        """What stands under the answer while the turn runs: tools at work, or a word that somebody is thinking."""
        if not self._busy or self._drawing.asks:
            return []
        now = self._now()
        width = self._surface.columns
        lines = []
        for tool in self._drawing.tools.values():
            took = f"  {now - tool.since:.1f}s"
            line = running_line(tool.name, tool.arguments, tool.said, width - len(took))
            lines.append(self._paint.dim(line + took))
        waited = now - self._drawing.waiting_since
        if not lines and waited >= (SILENCE_BEFORE_SPINNER_S if self._drawing.spoken else WAIT_BEFORE_SPINNER_S):
            turn = _SPINNER[int(now / TICK_S) % len(_SPINNER)]
            lines.append(self._paint.dim(f"{turn} {self._drawing.waiting_for} {waited:.0f}s"))
        return lines
