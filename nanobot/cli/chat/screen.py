"""Turn events on a terminal: the streamed answer, a dim line per tool call, a spinner while waiting.

The screen passes permanent lines, and live lines below them that are redrawn, to a surface: the chat's prompt, or the
terminal itself. Rich is imported with the first text, when the request is already under way.
"""

import asyncio
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TextIO

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
from nanobot.cli.chat.turn_output import failure_line, format_turn_end, running_tool_lines, tool_call_lines
from nanobot.cli.output import Paint, SafeStream, strip_control

log = logging.getLogger(__name__)

FRAME_S = 0.05
TICK_S = 0.1
WAIT_BEFORE_SPINNER_S = 0.15
SILENCE_BEFORE_SPINNER_S = 1.0
BEGIN_UPDATE, END_UPDATE = "\x1b[?2026h", "\x1b[?2026l"
"""Synchronized update: supporting terminals show the text between them at once, others ignore the sequences."""
_ANSWER_TEXTS = {
    Answer.NO: "not allowed",
    Answer.ONCE: "allowed once",
    Answer.ALWAYS: "allowed, for 30 days",
    Answer.EXPIRED: "nobody answered: not allowed",
    Answer.STOPPED: "stopped before an answer",
}
_REASONING_ROWS, _REASONING_CHARS = 3, 2000
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_RULE = re.compile("━|──")
"""In the line below the head of a table."""
_TABLE = re.compile(r"[^\n]*\|[^\n]*\n[\s:|-]*-[\s:|-]*(?:\n|$)")


class Surface(Protocol):
    """The part of a terminal that a screen draws on."""

    @property
    def columns(self) -> int:
        """Usable cells in a line."""

    @property
    def live_rows(self) -> int:
        """The maximum number of live lines."""

    def show(self, permanent: str, live: str) -> None:
        """Append permanent lines and replace the live ones, in one write. Never raises."""


def max_live_rows(rows: int) -> int:
    """The share of a terminal's rows for live lines; the rest shows earlier output."""
    return max(3, min(rows // 2 - 2, 14))


class TerminalSurface:
    """The terminal without a prompt, for one answer. Each update is one write, to avoid flicker."""

    def __init__(self, stream: TextIO | None) -> None:
        self.stream = SafeStream(stream)
        self._live = ""
        if os.name == "nt":
            os.system("")  # noqa: S605 enables escape sequences in old consoles

    @property
    def columns(self) -> int:
        """Cells in a line minus one: a full last cell wraps in some terminals."""
        return max(shutil.get_terminal_size().columns - 1, 10)

    @property
    def live_rows(self) -> int:
        return max_live_rows(shutil.get_terminal_size().lines)

    def show(self, permanent: str, live: str) -> None:
        if not (permanent or live or self._live):
            return
        update = permanent + live
        if self._live:  # erase the live lines, even if a smaller window has wrapped them
            from rich.cells import cell_len  # slow to import

            columns = shutil.get_terminal_size().columns
            rows = sum(max(1, -(-cell_len(strip_control(line)) // columns)) for line in self._live.split("\n"))
            erase = f"\r\x1b[{rows - 1}A\x1b[J" if rows > 1 else "\r\x1b[J"
            update = f"{BEGIN_UPDATE}{erase}{update}{END_UPDATE}"
        self._live = live
        self.stream.write(update)


class GrowingText:
    """The lines of one streamed text. `take` returns each permanent line exactly once.

    Lines of finished blocks are permanent, and so are the first lines of a block that outgrows the live area. Tables
    are an exception: columns may widen with every row, so only head and end are shown until the table is complete.
    """

    def __init__(self, *, markdown: bool, colour: bool) -> None:
        self._is_markdown = markdown
        self._colour = colour
        self._rest = ""
        self._width = 80
        self._fixed_rows = 0
        """Lines of the rest that are permanent."""
        self._has_blocks = False

    def feed(self, text: str) -> None:
        self._rest += text

    def take(self, width: int, rows: int, *, is_complete: bool = False) -> tuple[list[str], list[str]]:
        """The new permanent lines, and at most `rows` live lines that may still change: none if the text is complete.

        A block whose first lines are permanent keeps the width it started with.
        """
        if self._is_markdown:
            from nanobot.cli.chat.markdown import split_blocks

            blocks, self._rest = split_blocks(self._rest)
        else:
            *blocks, self._rest = self._rest.split("\n")
        if is_complete and self._rest.strip("\n"):
            blocks.append(self._rest)
            self._rest = ""
        ready: list[str] = []
        for block in blocks:
            lines = self._lines(block, width)
            ready += lines[self._fixed_rows :]
            self._fixed_rows = max(0, self._fixed_rows - len(lines))  # the others belong to the next block
            self._has_blocks = True
        if is_complete or not self._rest:
            return ready, []
        lines = self._lines(self._rest, width)
        overflow = len(lines) - self._fixed_rows - rows
        if overflow > 0 and self._is_markdown and _TABLE.match(self._rest):
            head = next((index for index, line in enumerate(lines[: rows // 2], 1) if _RULE.search(line)), 0)
            return ready, lines[:head] + lines[len(lines) - rows + head :]
        if overflow > 0:
            ready += lines[self._fixed_rows : self._fixed_rows + overflow]
            self._fixed_rows += overflow
        return ready, lines[max(self._fixed_rows, len(lines) - rows) :]

    def _lines(self, block: str, width: int) -> list[str]:
        from nanobot.cli.chat.markdown import markdown_lines, plain_lines

        if not self._fixed_rows:
            self._width = width
        if not self._is_markdown:
            return plain_lines(block, self._width)
        try:
            lines = markdown_lines(block, self._width, self._colour)
        except Exception:  # rendering must not fail the turn
            log.warning("Cannot render Markdown; showing it as plain text.", exc_info=True)
            lines = plain_lines(block, self._width)
        return ["", *lines] if self._has_blocks else lines


@dataclass(slots=True)
class _RunningTool:
    name: str
    arguments: dict[str, Any]
    since: float
    progress: str = ""


@dataclass(slots=True)
class _TurnView:
    answer: GrowingText | None = None
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
    """Shows one turn after the other, with a limited frame rate."""

    def __init__(
        self,
        surface: Surface,
        paint: Paint,
        *,
        markdown: bool = True,
        stderr: SafeStream | None = None,
        expand_key: str = "",
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stderr` gets failures, which are shown here otherwise. `expand_key` shows the whole output of a call; empty
        without a prompt.
        """
        self._surface = surface
        self._paint = paint
        self._is_markdown = markdown
        self._stderr = stderr
        self._expand_key = expand_key
        self._shows_reasoning = False
        self._last_call: ToolEnded | None = None
        self._now = monotonic
        self._view = _TurnView()
        self._next_frame = 0.0
        self._is_busy = False

    def begin(self, waiting_for: str = "thinking") -> None:
        """Start a turn or other work; the wait begins now."""
        self._view = _TurnView()
        self._is_busy = True
        self._wait(waiting_for)

    def __call__(self, event: TurnEvent) -> None:
        """Show an event. Does not block for long and does not raise."""
        view, dim = self._view, self._paint.dim
        match event:
            case StepStarted():
                self._wait("thinking")
            case ReasoningStarted():
                self._wait("reasoning")
                return
            case ReasoningDelta():
                view.reasoning += strip_control(event.text)
                return
            case ReasoningEnded():
                view.reasoning = ""
                if self._shows_reasoning:
                    self._end_answer()
                    self._append("reasoning", [dim(f"  {line}") for line in self._plain(event.text.strip(), 2)])
            case TextDelta():
                self._add_text(strip_control(event.text))
                return
            case TextEnded():
                if not event.final:
                    self._end_answer()
            case ToolStarted():
                self._end_answer()
                view.tools[event.call_id] = _RunningTool(event.name, event.arguments, self._now())
            case ToolDelta():
                if event.call_id in view.tools:
                    view.tools[event.call_id].progress = event.text
                return
            case ToolEnded():
                self._end_answer()
                running = view.tools.pop(event.call_id, None)
                arguments = running.arguments if running else {}
                width = self._surface.columns
                self._append("tool", tool_call_lines(event, arguments, width, self._paint, expand_key=self._expand_key))
                self._last_call = event
                if not view.tools:
                    self._wait("thinking")
            case StepEnded():
                if event.finish_reason != "length":  # the next step continues the sentence
                    self._end_answer()
                self._wait("thinking")
                return
            case ApprovalAsked():
                self._end_answer()
                self._append("question", self._render(event.text))
                view.is_asking = True
            case ApprovalAnswered():
                view.is_asking = False
                self._append("question", [dim(f"  ({_ANSWER_TEXTS[event.answer]})")])
                self._wait("thinking")
            case Notice():
                self._end_answer()
                self._append("tool", [dim(f"  {line}") for line in self._plain(event.text, 2)])
            case TurnEnded():
                self._end_turn(event)
                return
            case _:
                return
        self._redraw()

    def show(self, text: str) -> None:
        """Show a message the agent sent with its tool."""
        self.note("(message)", text, ours=False)

    def note(self, heading: str, text: str, *, ours: bool) -> None:
        """Show text that is not part of the turn: a message, or (`ours`) the answer of a command."""
        self._flush_answer()
        self._append("heading", [self._paint.dim(heading)])
        self._append("heading", self._plain(text) if ours else self._render(text))
        self._redraw()

    def say(self, text: str, paint: Callable[[str], str] | None = None) -> None:
        """Show our own words, wrapped; dim unless `paint` gives another colour."""
        self.lines([(paint or self._paint.dim)(line) for line in self._plain(text)])

    def expand_last_call(self) -> None:
        if (event := self._last_call) is None:
            self.say("No tool has run yet.")
            return
        lines = [f"    {line}" for line in self._plain(event.display or event.content, 4)]
        heading = f"  the output of {strip_control(event.name)}:"
        self.lines(["", *map(self._paint.dim, [heading, *lines]), ""])

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
        if self._is_busy:
            self._end_answer()
            self._is_busy = False
            self._redraw()

    def _wait(self, what: str) -> None:
        self._view.waiting_since = self._now()
        self._view.waiting_for = what
        self._view.has_text = False

    def _add_text(self, text: str) -> None:
        view = self._view
        if view.answer is None:
            view.answer = GrowingText(markdown=self._is_markdown, colour=self._paint.colour)
            view.texts.append([])
        view.texts[-1].append(text)
        view.answer.feed(text)
        is_first = not view.has_text and bool(text.strip())
        if text.strip():
            view.waiting_since = self._now()
            view.has_text = True
        if is_first or self._now() >= self._next_frame:
            self._redraw()

    def _end_answer(self) -> None:
        self._flush_answer(is_complete=True)
        self._view.answer = None

    def _end_turn(self, event: TurnEnded) -> None:
        self._end_answer()
        answer, remark = format_turn_end(event, ["".join(pieces) for pieces in self._view.texts])
        self._append("text", self._plain(answer))
        failure = failure_line(event)
        if remark and not (failure and self._stderr):
            paint = self._paint.red if failure else self._paint.dim
            self._append("remark", [paint(line) for line in self._plain(remark)])
        self.finish()
        if failure and self._stderr:
            self._stderr.write(f"{failure}\n")

    def _plain(self, text: str, indent: int = 0) -> list[str]:
        """The lines of our own words; none for an empty text."""
        from nanobot.cli.chat.markdown import plain_lines

        shown, width = strip_control(text), max(self._surface.columns - indent, 1)
        return plain_lines(shown.removesuffix("\n"), width) if shown else []

    def _render(self, text: str) -> list[str]:
        """The lines of a complete text of the model."""
        growing = GrowingText(markdown=self._is_markdown, colour=self._paint.colour)
        growing.feed(strip_control(text))
        return growing.take(self._surface.columns, self._surface.live_rows, is_complete=True)[0]

    def _append(self, kind: str, lines: list[str]) -> None:
        """Append permanent lines, with an empty line between different kinds."""
        if not lines:
            return
        if self._view.last_kind and self._view.last_kind != kind and lines[0]:
            self._view.pending.append("")
        self._view.last_kind = kind
        self._view.pending += lines

    def _flush_answer(self, *, is_complete: bool = False) -> list[str]:
        """Make finished lines of the answer permanent; return the live ones."""
        if self._view.answer is None:
            return []
        ready, live = self._view.answer.take(self._surface.columns, self._surface.live_rows, is_complete=is_complete)
        self._append("text", ready)
        return live

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

    def _status_lines(self) -> list[str]:
        """The lines below the answer while the turn runs: running tools, or the spinner."""
        view = self._view
        if not self._is_busy or view.is_asking:
            return []
        now = self._now()
        lines = []
        for tool in view.tools.values():
            took = f"  {now - tool.since:.1f}s"
            lines += running_tool_lines(tool.name, tool.arguments, tool.progress, took, self._surface.columns)
        if self._shows_reasoning and view.reasoning:
            lines += [f"  {line}" for line in self._plain(view.reasoning[-_REASONING_CHARS:], 2)[-_REASONING_ROWS:]]
        waited = now - view.waiting_since
        if not view.tools and waited >= (SILENCE_BEFORE_SPINNER_S if view.has_text else WAIT_BEFORE_SPINNER_S):
            lines.append(f"{_SPINNER[int(now / TICK_S) % len(_SPINNER)]} {view.waiting_for} {waited:.0f}s")
        return [self._paint.dim(line) for line in lines]
