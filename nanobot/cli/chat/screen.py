"""Turn events on a terminal: the streamed answer, a dim line per tool call, a spinner while waiting.

The screen is a sink that passes permanent and live lines to its surface, with a limited frame rate.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nanobot.agent.events import (
    Answer,
    ApprovalAnswered,
    ApprovalAsked,
    Notice,
    ReasoningDelta,
    ReasoningEnded,
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
from nanobot.cli.chat.event_lines import FAILURES, format_turn_end, running_tool_lines, tool_call_lines
from nanobot.cli.chat.rendering import BlockRenderer, GrowingAnswer, Renderers
from nanobot.cli.chat.surface import Surface
from nanobot.cli.terminal import Paint, strip_control

FRAME_S = 0.05
TICK_S = 0.1
WAIT_BEFORE_SPINNER_S = 0.15
SILENCE_BEFORE_SPINNER_S = 1.0
_ANSWER_TEXTS = {
    Answer.NO: "not allowed",
    Answer.ONCE: "allowed once",
    Answer.ALWAYS: "allowed, for 30 days",
    Answer.EXPIRED: "nobody answered: not allowed",
    Answer.STOPPED: "stopped before an answer",
}
_REASONING_ROWS, _REASONING_CHARS = 3, 2000
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass(slots=True)
class _RunningTool:
    name: str
    arguments: dict[str, Any]
    since: float
    progress: str = ""


@dataclass(slots=True)
class _TurnView:
    """The display state of the running turn."""

    answer: GrowingAnswer | None = None
    tools: dict[str, _RunningTool] = field(default_factory=dict)
    waiting_since: float = 0.0
    waiting_for: str = "thinking"
    has_text: bool = False
    """Whether text has arrived since the wait began; then the spinner appears later."""
    texts: list[list[str]] = field(default_factory=list)
    is_asking: bool = False
    """Whether the turn waits for the user; then no spinner is shown."""
    reasoning: str = ""
    """The reasoning of this step so far."""
    pending: list[str] = field(default_factory=list)
    last_kind: str = ""


class Screen:
    """Shows one turn after the other."""

    def __init__(
        self,
        surface: Surface,
        renderers: Renderers,
        paint: Paint,
        *,
        shows_failure: bool = True,
        expand_key: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shows_failure = shows_failure
        self._expand_key = expand_key
        """The key that shows the whole output of a call; empty without a prompt."""
        self._shows_reasoning = False
        self._last_call: ToolEnded | None = None
        self._surface = surface
        self._renderers = renderers
        self._paint = paint
        self._now = monotonic
        self._view = _TurnView()
        self._next_frame = 0.0
        self._is_busy = False
        self._handlers: dict[type[TurnEvent], Callable[[Any], None]] = {
            StepStarted: self._step_started,
            ReasoningStarted: lambda _event: self._wait("reasoning"),
            ReasoningDelta: self._reasoning_delta,
            ReasoningEnded: self._reasoning_ended,
            TextDelta: self._text_delta,
            TextEnded: self._text_ended,
            ToolStarted: self._tool_started,
            ToolDelta: self._tool_delta,
            ToolEnded: self._tool_ended,
            StepEnded: self._step_ended,
            ApprovalAsked: self._approval_asked,
            ApprovalAnswered: self._approval_answered,
            Notice: self._notice,
            TurnEnded: self._turn_ended,
        }

    def begin(self, waiting_for: str = "thinking") -> None:
        """Start a turn or other work; the wait begins now."""
        self._view = _TurnView()
        self._is_busy = True
        self._wait(waiting_for)

    def __call__(self, event: TurnEvent) -> None:
        """Show an event. Does not block for long and does not raise."""
        handler = self._handlers.get(type(event))
        if handler is not None:
            handler(event)

    def note(self, heading: str, text: str, *, ours: bool) -> None:
        """Show text that is not part of the turn: a message, or (`ours`) the answer of a command."""
        self._flush_answer()
        self._append("heading", [self._paint.dim(heading)])
        self._append("heading", self._render(text, self._renderers.plain if ours else self._renderers.answer))
        self._redraw()

    def expand_last_call(self) -> None:
        """Show the whole output of the last tool call."""
        event = self._last_call
        if event is None:
            self.lines([self._paint.dim("No tool has run yet.")])
            return
        lines = self._render(event.display or event.content, self._renderers.plain, indent=4)
        heading = self._paint.dim(f"  the output of {strip_control(event.name)}:")
        self.lines(["", heading, *[self._paint.dim(f"    {line}") for line in lines], ""])

    def toggle_reasoning(self) -> None:
        """Show the model's reasoning from now on, or hide it again."""
        self._shows_reasoning = not self._shows_reasoning
        self.lines(["", self._paint.dim(f"Reasoning is {'shown' if self._shows_reasoning else 'hidden'} from now on.")])

    def lines(self, lines: list[str]) -> None:
        """Append permanent lines as they are."""
        self._flush_answer()
        self._view.pending += lines
        self._view.last_kind = ""
        self._redraw()

    async def keep_alive(self) -> None:
        """Redraw periodically (spinner, seconds, text held back between frames) until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            if self._is_busy:
                self._redraw()

    def finish(self) -> None:
        """End the turn: the text so far becomes permanent, live lines disappear."""
        if not self._is_busy:
            return
        self._end_answer()
        self._is_busy = False
        self._redraw()

    def _wait(self, what: str) -> None:
        self._view.waiting_since = self._now()
        self._view.waiting_for = what
        self._view.has_text = False

    def _step_started(self, _event: StepStarted) -> None:
        self._wait("thinking")
        self._redraw()

    def _step_ended(self, event: StepEnded) -> None:
        if event.finish_reason != "length":  # the next step continues the sentence
            self._end_answer()
        self._wait("thinking")

    def _reasoning_delta(self, event: ReasoningDelta) -> None:
        self._view.reasoning += strip_control(event.text)

    def _reasoning_ended(self, event: ReasoningEnded) -> None:
        self._view.reasoning = ""
        if self._shows_reasoning:
            self._end_answer()
            lines = self._render(event.text.strip(), self._renderers.plain, indent=2)
            self._append("reasoning", [self._paint.dim(f"  {line}") for line in lines])
        self._redraw()

    def _text_delta(self, event: TextDelta) -> None:
        view = self._view
        if view.answer is None:
            view.answer = GrowingAnswer(self._renderers.answer)
            view.texts.append([])
        text = strip_control(event.text)
        view.texts[-1].append(text)
        view.answer.feed(text, self._surface.columns)
        first_words = not view.has_text and bool(text.strip())
        if text.strip():
            view.waiting_since = self._now()
            view.has_text = True
        if first_words or self._now() >= self._next_frame:
            self._redraw()

    def _text_ended(self, event: TextEnded) -> None:
        if not event.final:
            self._end_answer()
        self._redraw()

    def _end_answer(self) -> None:
        if self._view.answer is None:
            return
        self._view.answer.end(self._surface.columns)
        self._append("text", self._view.answer.take(self._surface.columns, self._surface.live_rows)[0])
        self._view.answer = None

    def _tool_started(self, event: ToolStarted) -> None:
        self._end_answer()
        self._view.tools[event.call_id] = _RunningTool(event.name, event.arguments, self._now())
        self._redraw()

    def _tool_delta(self, event: ToolDelta) -> None:
        if event.call_id in self._view.tools:
            self._view.tools[event.call_id].progress = event.text

    def _tool_ended(self, event: ToolEnded) -> None:
        self._end_answer()
        running = self._view.tools.pop(event.call_id, None)
        arguments = running.arguments if running else {}
        width = self._surface.columns
        self._append("tool", tool_call_lines(event, arguments, width, self._paint, expand_key=self._expand_key))
        self._last_call = event
        if not self._view.tools:
            self._wait("thinking")
        self._redraw()

    def _notice(self, event: Notice) -> None:
        self._end_answer()
        lines = self._render(event.text, self._renderers.plain, indent=2)
        self._append("tool", [self._paint.dim(f"  {line}") for line in lines])
        self._redraw()

    def _approval_asked(self, event: ApprovalAsked) -> None:
        self._end_answer()
        self._append("question", self._render(event.text, self._renderers.answer))
        self._view.is_asking = True
        self._redraw()

    def _approval_answered(self, event: ApprovalAnswered) -> None:
        self._view.is_asking = False
        self._append("question", [self._paint.dim(f"  ({_ANSWER_TEXTS[event.answer]})")])
        self._wait("thinking")
        self._redraw()

    def _turn_ended(self, event: TurnEnded) -> None:
        self._end_answer()
        summary = format_turn_end(event, ["".join(pieces) for pieces in self._view.texts])
        if summary.answer:
            self._append("text", self._render(summary.answer, self._renderers.plain))
        failed = event.outcome in FAILURES
        if summary.remark and (self._shows_failure or not failed):
            paint = self._paint.red if failed else self._paint.dim
            self._append("remark", [paint(line) for line in self._render(summary.remark, self._renderers.plain)])
        self.finish()

    def _render(self, text: str, renderer: BlockRenderer, *, indent: int = 0) -> list[str]:
        """The lines of a complete text."""
        growing, width = GrowingAnswer(renderer), max(self._surface.columns - indent, 1)
        growing.feed(strip_control(text), width)
        growing.end(width)
        return growing.take(width, self._surface.live_rows)[0]

    def _append(self, kind: str, lines: list[str]) -> None:
        """Append permanent lines, with an empty line between different kinds."""
        if not lines:
            return
        if self._view.last_kind and self._view.last_kind != kind and lines[0]:
            self._view.pending.append("")
        self._view.last_kind = kind
        self._view.pending += lines

    def _redraw(self) -> None:
        """Pass pending and live lines to the surface."""
        started = self._now()
        live: list[str] = []
        if self._is_busy and self._view.answer is not None:
            live = self._flush_answer()
            if live and live[0] and self._view.last_kind not in ("", "text"):
                live.insert(0, "")
        live += self._status_lines()
        permanent = "".join(f"{line}\n" for line in self._view.pending)
        self._view.pending = []
        self._surface.show(permanent, "\n".join(live[-self._surface.live_rows - 2 :]))
        ended = self._now()
        self._next_frame = ended + max(FRAME_S, 4 * (ended - started))

    def _flush_answer(self) -> list[str]:
        """Make finished lines of the answer permanent; return the live ones."""
        if self._view.answer is None:
            return []
        ready, live = self._view.answer.take(self._surface.columns, self._surface.live_rows)
        self._append("text", ready)
        return live

    def _status_lines(self) -> list[str]:
        """The lines below the answer while the turn runs: running tools, or the spinner."""
        if not self._is_busy or self._view.is_asking:
            return []
        now = self._now()
        width = self._surface.columns
        lines = []
        for tool in self._view.tools.values():
            took = f"  {now - tool.since:.1f}s"
            running = running_tool_lines(tool.name, tool.arguments, tool.progress, took, width)
            lines += [self._paint.dim(line) for line in running]
        if self._shows_reasoning and self._view.reasoning:
            reasoning = self._render(self._view.reasoning[-_REASONING_CHARS:], self._renderers.plain, indent=2)
            lines += [self._paint.dim(f"  {line}") for line in reasoning[-_REASONING_ROWS:]]
        waited = now - self._view.waiting_since
        if not self._view.tools and waited >= (
            SILENCE_BEFORE_SPINNER_S if self._view.has_text else WAIT_BEFORE_SPINNER_S
        ):
            frame = _SPINNER[int(now / TICK_S) % len(_SPINNER)]
            lines.append(self._paint.dim(f"{frame} {self._view.waiting_for} {waited:.0f}s"))
        return lines
