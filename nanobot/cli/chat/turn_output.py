"""Turn events as text: a line per tool call, what remains to be shown when a turn ends, and turns on pipes and dumb
terminals, as plain text or as JSON lines (`--json`).

There only the answer goes to stdout; tool calls and failures go to stderr.
"""

import json
from collections.abc import Callable, Mapping, Sequence
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
    TurnOutcome,
)
from nanobot.cli.output import Paint, SafeStream, escape_control, is_terminal, repair_output, strip_control
from nanobot.messages.types import INTERRUPTED
from nanobot.utils.text import count_noun

_MAIN_ARGUMENTS = ("path", "file_path", "command", "pattern", "query", "url", "name", "text", "content")
_DISPLAY_LINES = 24
_OUTPUT_LINES = 3
_REASON_ROWS = 6
_READING_TOOLS = frozenset({"read_file", "list_dir", "glob", "grep"})
"""Their output is what a file or folder holds; its size is enough."""
INDENT = "  "
_FRAME = frozenset({"STDERR:", "Exit code: 0", "(no output)"})
"""Lines that the exec tool adds for the model."""


def output_lines(text: str) -> list[str]:
    """What a command printed as lines for the screen, and its exit code if it failed."""
    lines = [line.rstrip() for line in strip_control(text).expandtabs(8).splitlines() if line not in _FRAME]
    return "\n".join(lines).strip("\n").split("\n") if any(lines) else []


def main_argument(arguments: Mapping[str, Any]) -> str:
    """The most telling argument of a call, in one line; empty without arguments."""
    key = next((key for key in _MAIN_ARGUMENTS if arguments.get(key)), None) or next(iter(arguments), None)
    return " ".join(strip_control(str(arguments[key])).split()) if key is not None else ""


def clip_output(text: str, width: int) -> str:
    """Truncate to `width` cells; wide characters count as two."""
    from rich.cells import cell_len, set_cell_size  # slow to import

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def running_tool_lines(name: str, arguments: Mapping[str, Any], progress: str, took: str, width: int) -> list[str]:
    """The line of a running call, and below it the last line of its output so far."""
    head = f"{INDENT}{strip_control(name)} {main_argument(arguments)}".rstrip()
    lines = [clip_output(head, width - len(took)) + took]
    if output := [line for line in strip_control(progress).splitlines() if line.strip()]:
        lines.append(clip_output(INDENT + INDENT + " ".join(output[-1].split()), width))
    return lines


def tool_call_lines(
    event: ToolEnded, arguments: Mapping[str, Any], width: int, paint: Paint, *, expand_key: str = ""
) -> list[str]:
    """The line of a finished call, and below it the first lines of its output, its diff, or why it failed.

    `expand_key` shows the whole output; it is named where lines are left out.
    """
    duration = f"  {event.seconds:.2f}s" if event.seconds < 10 else f"  {event.seconds:.0f}s"
    lines = [line for line in output_lines(event.content) if line]
    mark = "" if event.ok else "  failed"
    if event.ok and event.display:
        added, removed = (sum(line.startswith(sign) for line in event.display.splitlines()) for sign in "+-")
        mark = f"  +{added} -{removed}" if added or removed else ""
    elif event.ok and event.name in _READING_TOOLS:
        mark = f"  {count_noun(len(lines), 'line')}"
    head = clip_output(
        f"{INDENT}{strip_control(event.name)} {main_argument(arguments)}".rstrip(), width - len(duration) - len(mark)
    )
    shown = [paint.dim(head + duration + mark) if event.ok else paint.dim(head + duration) + paint.red(mark)]
    if not event.ok:
        shown += [paint.dim(line) for line in _failure_lines(lines, width)]
    elif event.display:
        changes = strip_control(event.display).expandtabs(4).splitlines()
        shown += _first_lines(changes, _DISPLAY_LINES, width, lambda line: diff_paint(line, paint), expand_key)
    elif event.name not in _READING_TOOLS:
        shown += _first_lines(lines, _OUTPUT_LINES, width, lambda _: paint.dim, expand_key)
    return shown


def _first_lines(
    lines: Sequence[str], limit: int, width: int, paint_of: Callable[[str], Callable[[str], str]], expand_key: str
) -> list[str]:
    """The first lines, and how many are left out; a single one is not."""
    shown = list(lines if len(lines) <= limit + 1 else lines[:limit])
    if left_out := len(lines) - len(shown):
        shown.append(f"… {left_out} more lines" + (f" ({expand_key} shows them)" if expand_key else ""))
    return [paint_of(line)(clip_output(INDENT + INDENT + line, width)) for line in shown]


def _failure_lines(lines: Sequence[str], width: int) -> list[str]:
    """The last line that a failed command printed, with its exit code; of other failures the reason, wrapped."""
    exit_code = next((line for line in lines if line.startswith("Exit code: ")), "")
    printed = [line.strip() for line in lines if line != exit_code]
    indent = INDENT + INDENT
    if exit_code:
        return [clip_output(indent + line, width) for line in [*printed[-1:], exit_code]]
    from nanobot.cli.chat.markdown import plain_lines  # slow to import

    reason = " ".join(printed[:_OUTPUT_LINES]) or "no reason given"
    return [indent + line for line in plain_lines(reason, width - len(indent))[:_REASON_ROWS]]


def diff_paint(line: str, paint: Paint) -> Callable[[str], str]:
    if line.startswith("+"):
        return paint.green
    return paint.red if line.startswith("-") else paint.dim


FAILURES = frozenset({TurnOutcome.FAILED, TurnOutcome.REFUSED})
_NO_REASON = "The turn failed. Send the message again."


def failure_line(event: TurnEvent) -> str:
    """Why the turn failed, as one line for stderr; empty if it did not."""
    if not isinstance(event, TurnEnded) or event.outcome not in FAILURES:
        return ""
    return f"Error: {' '.join(strip_control(event.text or event.error or _NO_REASON).split())}"


def format_turn_end(event: TurnEnded, streamed: Sequence[str]) -> tuple[str, str]:
    """What has not been shown yet: text of the answer, and nanobot's own remark (failed, stopped). `streamed` are the
    texts of the turn so far, in order.
    """
    if event.outcome in FAILURES:
        return "", event.text or event.error or _NO_REASON
    reply = missing = event.text.strip()
    for start in range(len(streamed)):  # all of the reply was streamed, or all but its end
        shown = "".join(streamed[start:]).strip()
        if shown and (reply.startswith(shown) or shown.endswith(reply)):
            missing = reply.removeprefix(shown).strip() if reply.startswith(shown) else ""
            break
    if event.outcome is TurnOutcome.STOPPED:
        return "" if any(text.strip() for text in streamed) else missing, "(stopped)"
    return missing, "(this answer is partial)" if event.outcome is TurnOutcome.PARTIAL else ""


_STATUS_COLUMNS = 100
_CONTINUED_REASONS = ("length", INTERRUPTED)
"""Finish reasons after which the next step continues the text in the middle of a sentence."""


class PlainOutput:
    """A sink that writes the answer of one turn as plain text."""

    def __init__(self, out: TextIO | None, stderr: TextIO | None) -> None:
        self.stream = SafeStream(out)
        self._stderr = SafeStream(stderr)
        self._is_verbose = is_terminal(stderr)
        self._paint = Paint.on(stderr)
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
