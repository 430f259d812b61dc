"""Text for turn events: a line per tool call, and what remains to be shown when a turn ends."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanobot.agent.events import ToolEnded, TurnEnded, TurnEvent, TurnOutcome
from nanobot.cli.terminal import Paint, strip_control

_MAIN_ARGUMENTS = ("path", "file_path", "command", "pattern", "query", "url", "name", "text", "content")
_DISPLAY_LINES = 24
INDENT = "  "


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


def running_tool_line(name: str, arguments: Mapping[str, Any], progress: str, width: int) -> str:
    """The line of a running call with its latest progress."""
    parts = [strip_control(name), main_argument(arguments), " ".join(strip_control(progress).split())]
    return clip_output(INDENT + " ".join(part for part in parts if part), width)


def tool_call_lines(event: ToolEnded, arguments: Mapping[str, Any], width: int, paint: Paint) -> list[str]:
    """The line of a finished call, and below it what the tool displays (such as a diff)."""
    duration = f"  {event.seconds:.2f}s" if event.seconds < 10 else f"  {event.seconds:.0f}s"
    mark = "" if event.ok else "  failed"
    head = clip_output(
        f"{INDENT}{strip_control(event.name)} {main_argument(arguments)}".rstrip(), width - len(duration) - len(mark)
    )
    lines = [paint.dim(head + duration) + paint.red(mark)]
    if not event.ok:
        lines.append(paint.dim(clip_output(f"{INDENT}{INDENT}{_first_line(event.content)}", width)))
    elif event.display:
        lines += _display_lines(event.display, width, paint)
    return lines


def _first_line(content: str) -> str:
    return next((line.strip() for line in strip_control(content).splitlines() if line.strip()), "no reason given")


def _display_lines(display: str, width: int, paint: Paint) -> list[str]:
    lines = strip_control(display).expandtabs(4).splitlines()
    shown = [diff_paint(line, paint)(clip_output(INDENT + INDENT + line, width)) for line in lines[:_DISPLAY_LINES]]
    if len(lines) > _DISPLAY_LINES:
        shown.append(paint.dim(f"{INDENT}{INDENT}… {len(lines) - _DISPLAY_LINES} more lines"))
    return shown


def diff_paint(line: str, paint: Paint) -> Callable[[str], str]:
    """The colour of a line of a diff."""
    if line.startswith("+"):
        return paint.green
    return paint.red if line.startswith("-") else paint.dim


@dataclass(frozen=True, slots=True)
class TurnSummary:
    """`answer` is answer text that was not streamed; `remark` is nanobot's own (failed, stopped)."""

    answer: str = ""
    remark: str = ""


FAILURES = frozenset({TurnOutcome.FAILED, TurnOutcome.REFUSED})
_NO_REASON = "The turn failed. Send the message again."


def failure_line(event: TurnEvent) -> str:
    """Why the turn failed, as one line for stderr; empty if it did not."""
    if not isinstance(event, TurnEnded) or event.outcome not in FAILURES:
        return ""
    return f"Error: {' '.join(strip_control(event.text or event.error or _NO_REASON).split())}"


def format_turn_end(event: TurnEnded, streamed: Sequence[str]) -> TurnSummary:
    """What has not been shown yet. `streamed` are the texts of the turn so far, in order."""
    if event.outcome in FAILURES:
        return TurnSummary(remark=event.text or event.error or _NO_REASON)
    missing = _missing_text(event.text, streamed)
    if event.outcome is TurnOutcome.STOPPED:
        return TurnSummary(missing if not _has_text(streamed) else "", "(stopped)")
    if event.outcome is TurnOutcome.PARTIAL:
        return TurnSummary(missing, "(this answer is partial)")
    return TurnSummary(missing)


def _has_text(streamed: Sequence[str]) -> bool:
    return any(text.strip() for text in streamed)


def _missing_text(text: str, streamed: Sequence[str]) -> str:
    """The part of the reply that was not streamed: nothing, its end, or all of it."""
    reply = text.strip()
    for start in range(len(streamed)):
        shown = "".join(streamed[start:]).strip()
        if shown and reply.startswith(shown):
            return reply[len(shown) :].strip()
        if shown and shown.endswith(reply):
            return ""
    return reply
