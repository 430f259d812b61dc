"""Questions to a person: arrow keys and hidden keys in a terminal, numbered lines where answers come from a pipe.

All of them raise EOFError when there is no answer to come, and KeyboardInterrupt on Ctrl+C.
"""

import sys
from collections.abc import Sequence

import typer

from nanobot.cli.terminal import is_screen


def choose(question: str, options: Sequence[tuple[str, str]], default: str | None = None) -> str:
    """One of the options, each a value and its label. Without a word, the default (the first if none is given)."""
    default = options[0][0] if default is None else default
    if in_terminal():
        from prompt_toolkit.shortcuts import choice  # 100 ms, for those who are asked

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


def ask(question: str, default: str = "") -> str:
    """A line of text, stripped. In a terminal the default stands there to be edited."""
    if in_terminal():
        from prompt_toolkit import prompt

        return prompt(f"{question}: ", default=default).strip() or default
    return _read_line(f"{question} [{default}]: " if default else f"{question}: ") or default


def ask_secret(question: str) -> str:
    """A line of text that does not show on the screen."""
    if in_terminal():
        from prompt_toolkit import prompt

        return prompt(f"{question}: ", is_password=True).strip()
    return _read_line(f"{question}: ")


def confirm(question: str) -> bool:
    """Yes or no; no without a word."""
    return _read_line(f"{question} [y/N] ").lower() in ("y", "yes")


def in_terminal() -> bool:
    """Whether a person sits at both ends."""
    return is_screen(sys.stdin) and is_screen(sys.stdout)


def _read_line(prompt: str) -> str:
    if sys.stdin is None:
        raise EOFError
    if sys.stdout is not None:
        typer.echo(prompt, nl=False)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.strip()
