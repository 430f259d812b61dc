"""A tool call as one line for a person: its name, the argument that matters, how long it took, whether it failed."""

from collections.abc import Mapping
from typing import Any

from nanobot.agent.turn import ToolEnded
from nanobot.cli.terminal import Paint, visible

_TELLING = ("path", "file_path", "command", "pattern", "query", "url", "name", "text", "content")
_DISPLAY_LINES = 24
INDENT = "  "


def telling_argument(arguments: Mapping[str, Any]) -> str:
    """The one argument that says what a call is about, on one line; empty where there is none."""
    key = next((key for key in _TELLING if arguments.get(key)), None) or next(iter(arguments), None)
    return " ".join(visible(str(arguments[key])).split()) if key is not None else ""


def clipped(text: str, width: int) -> str:
    """The head of the text that fits into so many cells; wide characters count as two."""
    from rich.cells import cell_len, set_cell_size  # only screens need to know widths

    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(width - 1, 0)).rstrip() + "…"


def running_line(name: str, arguments: Mapping[str, Any], said: str, width: int) -> str:
    """The line of a call that still runs; `said` is how far it says it is."""
    parts = [visible(name), telling_argument(arguments), " ".join(visible(said).split())]
    return clipped(INDENT + " ".join(part for part in parts if part), width)


def ended_lines(event: ToolEnded, arguments: Mapping[str, Any], width: int, paint: Paint) -> list[str]:
    """The line of a call that is over, and under it what the tool wants to be seen (a diff, say)."""
    took = f"  {event.seconds:.2f}s" if event.seconds < 10 else f"  {event.seconds:.0f}s"
    mark = "" if event.ok else "  failed"
    head = clipped(
        f"{INDENT}{visible(event.name)} {telling_argument(arguments)}".rstrip(), width - len(took) - len(mark)
    )
    lines = [paint.dim(head + took) + paint.red(mark)]
    if not event.ok:
        lines.append(paint.dim(clipped(f"{INDENT}{INDENT}{_first_line(event.content)}", width)))
    elif event.display:
        lines += _display_lines(event.display, width, paint)
    return lines


def _first_line(content: str) -> str:
    return next((line.strip() for line in visible(content).splitlines() if line.strip()), "no reason given")


def _display_lines(display: str, width: int, paint: Paint) -> list[str]:
    lines = visible(display).expandtabs(4).splitlines()
    shown = [_diff_paint(line, paint)(clipped(INDENT + INDENT + line, width)) for line in lines[:_DISPLAY_LINES]]
    if len(lines) > _DISPLAY_LINES:
        shown.append(paint.dim(f"{INDENT}{INDENT}… {len(lines) - _DISPLAY_LINES} more lines"))
    return shown


def _diff_paint(line: str, paint: Paint) -> Any:
    if line.startswith("+"):
        return paint.green
    return paint.red if line.startswith("-") else paint.dim
