"""`nanobot memory`: what is remembered, where it came from, and every change of it, to take back.

Who is at the machine is its owner: `--chat` shows the memory of any chat in which others write, too.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from nanobot.agent.facts import facts_in
from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory_book import Change
from nanobot.agent.memory_editing import Known, MemoryEditor, told_change
from nanobot.agent.scope import Scope
from nanobot.cli.common import (
    ConfigOption,
    JsonOption,
    WorkspaceOption,
    one_line,
    read_setup,
    say_text,
    show_json,
    show_rows,
)
from nanobot.utils.clock import Clock, SystemClock, zone_named

ChatOption = Annotated[
    str | None, typer.Option("--chat", metavar="CHANNEL:ID", help="The memory of a chat in which others write.")
]
FactArgument = Annotated[str, typer.Argument(metavar="FACT", help="A fact's id, or words that stand in it.")]
TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help="What to look for; case makes no difference.")]
CountOption = Annotated[int, typer.Option("-n", "--limit", min=1, help="Show at most so many.")]


def show(
    chat: ChatOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """MEMORY.md as it stands, each fact with its id."""
    store, editor = _open(config, workspace, chat)
    known = editor.facts()
    text = store.read_long_term()
    if json:
        show_json({"file": str(store.memory_file), "state": editor.state(), "facts": [_as_json(one) for one in known]})
        return
    if not text.strip():
        typer.echo("Nothing is remembered yet.", err=True)
        return
    lines = text.splitlines()
    for fact in facts_in(text):
        lines[fact.end - 1] += f"  [{fact.id}]"
    say_text("\n".join(lines))
    typer.echo(f"{editor.state()}: {one_line(str(store.memory_file))}", err=True)


def search(
    text: TextArgument,
    limit: CountOption = 100,
    chat: ChatOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """The lines of all memory files in which these words stand: facts, archive, log and notes."""
    found = _open(config, workspace, chat)[1].search(text)[:limit]
    if json:
        show_json([{"file": one.file, "line": one.line, "text": one.text} for one in found])
    else:
        rows = [(one.file, one.line, one.text) for one in found]
        show_rows(("File", "Line", "Text"), rows, empty=f"Nothing in memory has {one_line(text)!r}.")
    if not found:
        sys.exit(1)


def log(
    limit: CountOption = 50,
    chat: ChatOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Every change of the memory, the newest first."""
    changes = _open(config, workspace, chat)[1].log()[:limit]
    if json:
        show_json([_change_as_json(one) for one in changes])
    elif changes:
        say_text("\n".join(map(told_change, changes)))
    else:
        typer.echo("Nothing has changed yet.", err=True)


def why(
    fact: FactArgument, chat: ChatOption = None, config: ConfigOption = None, workspace: WorkspaceOption = None
) -> None:
    """Where a fact came from: when, from which conversation, in whose words."""
    say_text(_open(config, workspace, chat)[1].why(fact))


def forget(
    fact: FactArgument, chat: ChatOption = None, config: ConfigOption = None, workspace: WorkspaceOption = None
) -> None:
    """Take a fact out. It is not learned again from what was said before; `memory undo` brings it back."""
    for gone in _open(config, workspace, chat)[1].forget(fact):
        say_text(f"Forgotten: {gone.text}")
    typer.echo("HISTORY.md and stored conversations may still speak of it, where a search finds it.", err=True)


def undo(chat: ChatOption = None, config: ConfigOption = None, workspace: WorkspaceOption = None) -> None:
    """Take the last change back, whoever made it; the file is as it was, byte for byte."""
    for change in _open(config, workspace, chat)[1].undo():
        say_text(f"Taken back: {told_change(change)}")


def store_of(config: Path | None, workspace: Path | None, chat: str | None) -> tuple[MemoryStore, Clock]:
    """The memory that the command line means, and the time there."""
    setup = read_setup(config, workspace, secrets=False)
    defaults = setup.config.agents.defaults
    clock = SystemClock(zone_named(defaults.timezone))
    store = MemoryStore(
        setup.workspace, clock=clock, scope=Scope(chat or ""), budget_bytes=defaults.memory_budget_bytes
    )
    return store, clock


def _open(config: Path | None, workspace: Path | None, chat: str | None) -> tuple[MemoryStore, MemoryEditor]:
    store, clock = store_of(config, workspace, chat)
    return store, MemoryEditor(store, clock)


def _as_json(known: Known) -> dict[str, Any]:
    told = dict(known.origin.told) if known.origin is not None else {}
    return {
        "id": known.fact.id,
        "text": known.fact.text,
        "file": known.file,
        "heading": known.fact.heading,
        "since": known.origin.change.at if known.origin is not None else None,
        "by": known.origin.change.by if known.origin is not None else None,
        "source": {name: value for name, value in told.items() if name not in ("key", "text")},
        "importance": round(known.importance, 2),
    }


def _change_as_json(change: Change) -> dict[str, Any]:
    return {
        "number": change.number,
        "at": change.at,
        "by": change.by,
        "file": change.file,
        "added": [dict(one) for one in change.added],
        "removed": list(change.removed),
        "who": change.who,
        "undoes": change.undoes,
    }
