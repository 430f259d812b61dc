"""Interactive prompts: menus and hidden input in a terminal, numbered lines where input is a pipe.

All of them raise EOFError at the end of the input, and KeyboardInterrupt on Ctrl+C. An answered menu becomes one line.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size

import typer

from nanobot.cli.common import EXIT_INTERRUPTED
from nanobot.cli.output import MAX_COLUMNS, Paint, columns, hang, is_terminal
from nanobot.errors import NanobotError

RETRY, AGAIN, SAVE, LEAVE = "retry", "again", "save", "leave"
KEY_HINT = "Arrow keys move, Enter accepts, Ctrl+C leaves."


def _wrap(text: str, indent: str = "", width: int = 0) -> str:
    return "\n".join(hang("", text, width or columns(sys.stdout), len(indent)))


def choose(question: str, options: Sequence[tuple[str, str]], default: str | None = None) -> str:
    """Ask for one of the options, pairs of value and label. Empty input picks the default, or the first option."""
    default = options[0][0] if default is None else default
    if is_interactive():
        answer = _choose_from_menu(question, options, default)
        line = _wrap(f"{question} {dict(options)[answer]}", "  ")
        typer.echo(Paint.on(sys.stdout).dim(question) + line.removeprefix(question))
        return answer
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


def _choose_from_menu(question: str, options: Sequence[tuple[str, str]], default: str) -> str:
    """Show the options as a list until one is accepted, then erase it."""
    from prompt_toolkit.application import Application, get_app  # takes 100 ms
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.layout import HSplit, Layout
    from prompt_toolkit.styles import Style
    from prompt_toolkit.widgets import Label, RadioList

    width = max((columns(sys.stdout) or MAX_COLUMNS) - 4, 20)
    rows = [(value, _wrap(label, " " * 3, width)) for value, label in options]
    is_cut = sum(label.count("\n") + 1 for _, label in rows) + 2 > get_terminal_size().lines
    menu = RadioList(
        rows, default, select_on_focus=True, open_character=" ", select_character=">", close_character="",
        show_cursor=False, show_scrollbar=is_cut, checked_style="class:chosen",
    )  # fmt: skip
    keys = KeyBindings()

    @keys.add("enter", eager=True)
    def _accept(_event: KeyPressEvent) -> None:
        get_app().exit(result=menu.current_value)

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _interrupt(_event: KeyPressEvent) -> None:
        get_app().exit(exception=KeyboardInterrupt)

    @keys.add("c-d")
    def _end(_event: KeyPressEvent) -> None:
        get_app().exit(exception=EOFError)

    layout = Layout(
        HSplit(
            [
                Label(question, style="class:question", dont_extend_height=True),
                menu,
                Label(KEY_HINT, style="class:hint", dont_extend_height=True),
            ]
        ),
        focused_element=menu,
    )
    style = Style.from_dict({"question": "bold", "chosen": "bold ansicyan", "hint": "ansibrightblack"})
    application: Application[str] = Application(layout, key_bindings=keys, style=style, erase_when_done=True)
    return application.run()


def choose_after_failure(leave_label: str) -> str:
    """Ask what to do with answers that did not work. Returns RETRY, AGAIN, SAVE or LEAVE."""
    options = [(RETRY, "Try again"), (AGAIN, "Change the answers"), (SAVE, "Save it anyway"), (LEAVE, leave_label)]
    return choose("What now?", options)


def ask(question: str, default: str = "", *, completions: Sequence[str] = ()) -> str:
    """Ask for a line of text. In a terminal the default is prefilled and can be edited; Tab offers the completions."""
    if not is_interactive():
        return _read_line(f"{question} [{default}]: " if default else f"{question}: ") or default
    from prompt_toolkit import prompt
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.styles import Style

    note = " (Enter accepts, or edit it)" if default else ""
    completer = WordCompleter([*completions], sentence=True, match_middle=True) if completions else None
    answer = prompt(
        [("class:question", _wrap(f"{question}{note}:") + " ")],
        default=default,
        completer=completer,
        reserve_space_for_menu=6 if completions else 0,
        style=Style.from_dict({"": "bold", "question": "nobold"}),
    )
    return answer.strip() or default


def ask_secret(question: str) -> str:
    """Ask for a line of text without showing it."""
    if is_interactive():
        from prompt_toolkit import prompt

        return prompt(_wrap(f"{question}:") + " ", is_password=True).strip()
    return _read_line(f"{question}: ")


def confirm(question: str, *, default: bool = False) -> bool:
    """Ask for yes or no; empty input means the default."""
    whole = f"{question} {'[Y/n]' if default else '[y/N]'}"
    answer = _read_line(f"{_wrap(whole) if is_interactive() else whole} ").lower()
    return answer in ("y", "yes") if answer else default


def confirm_action(question: str, *, yes: bool) -> bool:
    """Ask before an action, unless `yes` is set. Raises NanobotError without input."""
    try:
        return yes or confirm(question)
    except EOFError:
        typer.echo()
        raise NanobotError("Nothing was changed: no interactive input. Add --yes to do it without asking.") from None


@contextmanager
def on_interrupt(text: str) -> Iterator[None]:
    """On Ctrl+C, print this and exit with EXIT_INTERRUPTED."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(f"\n{text}", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None


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
