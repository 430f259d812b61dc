"""Turns on pipes and dumb terminals: as plain text, or as JSON lines (`--json`).

Only the answer goes to stdout; tool calls and failures go to stderr.
"""

import json
from typing import Any, TextIO

from nanobot.agent.events import (
    ApprovalAsked,
    Notice,
    StepEnded,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnEvent,
)
from nanobot.cli.chat.event_lines import failure_line, format_turn_end, tool_call_lines
from nanobot.cli.terminal import (
    Paint,
    SafeStream,
    escape_control,
    is_terminal,
    repair_output,
    strip_control,
    wants_colour,
)
from nanobot.messages.types import INTERRUPTED

_STATUS_COLUMNS = 100
_CONTINUED_REASONS = ("length", INTERRUPTED)
"""Finish reasons after which the next step continues the text in the middle of a sentence."""


class PlainOutput:
    """A sink that writes the answer of one turn as plain text."""

    def __init__(self, out: TextIO | None, stderr: TextIO | None) -> None:
        self.stream = SafeStream(out)
        self._stderr = SafeStream(stderr)
        self._is_verbose = is_terminal(stderr)
        self._paint = Paint(wants_colour(stderr))
        self._texts: list[str] = []
        self._in_text = False
        self._arguments: dict[str, dict[str, Any]] = {}

    def __call__(self, event: TurnEvent) -> None:
        """Write an event. Never raises; see `stream.closed` and `stream.problem`."""
        match event:
            case TextDelta():
                self._write(event.text)
            case StepEnded():
                self._in_text = self._in_text and event.finish_reason in _CONTINUED_REASONS
            case ToolStarted():
                self._arguments[event.call_id] = event.arguments
            case ToolEnded():
                arguments = self._arguments.pop(event.call_id, {})
                if self._is_verbose:
                    self._write_stderr(tool_call_lines(event, arguments, _STATUS_COLUMNS, self._paint)[0])
            case ApprovalAsked():
                self._write_stderr(strip_control(event.text))
            case Notice():
                self._stderr.write(self._paint.dim(f"  {strip_control(event.text)}") + "\n")
            case TurnEnded():
                answer, remark = format_turn_end(event, self._texts)
                if answer:
                    self._in_text = False
                    self._write(answer)
                self._end_line()
                if remark and not self.stream.closed:
                    self._write_stderr(failure_line(event) or remark)

    def show(self, text: str) -> None:
        """Write a message the agent sent with its tool, as a separate paragraph."""
        self._in_text = False
        self._write(text)
        self._in_text = False
        self._end_line()

    def _write(self, text: str) -> None:
        """Write a piece of text; the first of a text begins a paragraph."""
        if not self._in_text:
            if any(self._texts):
                self.stream.write("\n" if self._texts[-1].endswith("\n") else "\n\n")
            self._texts.append("")
            self._in_text = True
        self._texts[-1] += text
        self.stream.write(repair_output(text))

    def _end_line(self) -> None:
        """End the current line, so that what follows starts on a new one."""
        if any(self._texts) and not self._texts[-1].endswith("\n"):
            self._texts[-1] += "\n"
            self.stream.write("\n")

    def _write_stderr(self, line: str) -> None:
        self._end_line()
        self._stderr.write(f"{line}\n")


class JsonLinesOutput:
    """A sink that writes each event as one JSON line; failures also go to stderr.

    The last line is `turn_ended`, unless subagents are still running: their messages follow as
    `{"type": "message", "text": ...}`, like messages the agent sends with its tool.
    """

    def __init__(self, out: TextIO | None, stderr: TextIO | None) -> None:
        self.stream = SafeStream(out)
        self._stderr = SafeStream(stderr)

    def __call__(self, event: TurnEvent) -> None:
        """Write the event. Never raises; see `stream.closed` and `stream.problem`."""
        self.stream.write(escape_control(json.dumps(event.to_json(), ensure_ascii=False, default=str)) + "\n")
        if isinstance(event, ApprovalAsked):
            self._stderr.write(f"{strip_control(event.text)}\n")  # the person at the terminal has to answer
        if failure := failure_line(event):
            self._stderr.write(f"{failure}\n")

    def show(self, text: str) -> None:
        """Write a message the agent sent with its tool."""
        self.stream.write(escape_control(json.dumps({"type": "message", "text": text}, ensure_ascii=False)) + "\n")
