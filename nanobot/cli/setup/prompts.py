"""Interactive prompts: menus and hidden input in a terminal, numbered lines where input is a pipe.

All of them raise EOFError at the end of the input, and KeyboardInterrupt on Ctrl+C.
"""

import sys
from collections.abc import Sequence

import typer

from nanobot.cli.terminal import is_terminal
from nanobot.errors import NanobotError

RETRY, AGAIN, SAVE, LEAVE = "retry", "again", "save", "leave"


def choose(question: str, options: Sequence[tuple[str, str]], default: str | None = None) -> str:
    """Ask for one of the options, pairs of value and label. Empty input picks the default, or the first option."""
    default = options[0][0] if default is None else default
    if is_interactive():
        from prompt_toolkit.shortcuts import choice  # takes 100 ms

        return choice(question, options=options, default=default, show_frame=False)
    typer.echo(question)
    for number, (value, label) in enumerate(options, 1):
        typer.echo(f"  {number}. {label}{' (default)' if value == default else ''}")
    values = [value for value, _ in options]
    while True:
        answer = _read_line("Number: ")
        if not answer:
            return default
        if answer in values:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(values):
            return values[int(answer) - 1]
        typer.echo(f"Type a number from 1 to {len(values)}.")


def choose_after_failure(leave_label: str) -> str:
    """Ask what to do with answers that did not work. Returns RETRY, AGAIN, SAVE or LEAVE."""
    options = [(RETRY, "Try again"), (AGAIN, "Change the answers"), (SAVE, "Save it anyway"), (LEAVE, leave_label)]
    return choose("What now?", options)


def ask(question: str, default: str = "") -> str:
    """Ask for a line of text. In a terminal the default is prefilled and can be edited."""
    if is_interactive():
        from prompt_toolkit import prompt

        return prompt(f"{question}: ", default=default).strip() or default
    return _read_line(f"{question} [{default}]: " if default else f"{question}: ") or default


def ask_secret(question: str) -> str:
    """Ask for a line of text without showing it."""
    if is_interactive():
        from prompt_toolkit import prompt

        return prompt(f"{question}: ", is_password=True).strip()
    return _read_line(f"{question}: ")


def confirm(question: str) -> bool:
    """Ask for yes or no; empty input means no."""
    return _read_line(f"{question} [y/N] ").lower() in ("y", "yes")


def confirm_action(question: str, *, yes: bool) -> bool:
    """Ask before an action, unless `yes` is set. Raises NanobotError without input."""
    try:
        return yes or confirm(question)
    except EOFError:
        typer.echo()
        raise NanobotError("Nothing was changed: no interactive input. Add --yes to do it without asking.") from None


def is_interactive() -> bool:
    """Whether stdin and stdout are terminals."""
    return is_terminal(sys.stdin) and is_terminal(sys.stdout)


def _read_line(prompt: str) -> str:
    if sys.stdin is None:
        raise EOFError
    if sys.stdout is not None:
        typer.echo(prompt, nl=False)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()
