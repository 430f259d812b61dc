"""`nanobot memory`: show, search and edit the memory, its revisions, and Dream passes.

The person at this machine is the owner, so `--chat` opens the memory of any chat.
"""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from nanobot.agent.memory.editor import MemoryEditor, format_change
from nanobot.agent.memory.facts import parse_facts
from nanobot.agent.memory.store import MemoryStore
from nanobot.agent.scope import Scope
from nanobot.cli.common import JsonOption, read_setup
from nanobot.cli.output import print_json, print_line, print_list, print_text, to_one_line
from nanobot.utils.clock import SystemClock, find_zone

ChatOption = Annotated[
    str | None, typer.Option("--chat", metavar="CHANNEL:ID", help="Use the memory of a chat with other people.")
]
FactArgument = Annotated[str, typer.Argument(metavar="FACT", help="A fact's id, or a part of its text.")]
TextArgument = Annotated[str, typer.Argument(metavar="TEXT", help="Words that a line must contain, in any case.")]
CountOption = Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Show at most N.")]


def show(chat: ChatOption = None, json: JsonOption = False) -> None:
    store, editor = _open_editor(chat)
    facts = editor.facts()
    text = store.read_long_term()
    if json:
        print_json(
            {"file": str(store.memory_file), "state": editor.state(), "facts": [details.to_json() for details in facts]}
        )
        return
    if not text.strip():
        print_line("Nothing is remembered yet.", err=True)
        return
    lines = text.splitlines()
    for fact in parse_facts(text):
        lines[fact.end - 1] += f"  [{fact.id}]"
    print_text("\n".join(lines))
    print_line(f"{editor.state()}: {to_one_line(str(store.memory_file))}", err=True)


def search(text: TextArgument, limit: CountOption = 100, chat: ChatOption = None, json: JsonOption = False) -> None:
    """Search all memory files (facts, archive, log, notes) for lines that contain all the words."""
    hits = _open_editor(chat)[1].search(text)[:limit]
    empty = f"No line of the memory contains {to_one_line(text)!r}."
    print_list(hits, {"File": "file", "Line": "line", "Text": "text"}, as_json=json, empty=empty)
    if not hits:
        sys.exit(1)


def log(limit: CountOption = 50, chat: ChatOption = None, json: JsonOption = False) -> None:
    """Show the last changes of the memory, newest first."""
    changes = _open_editor(chat)[1].log()[:limit]
    if json:
        print_json([change.to_json() for change in changes])
    elif changes:
        print_text("\n".join(map(format_change, changes)), wraps=True)
    else:
        print_line("Nothing has changed yet.", err=True)


def why(fact: FactArgument, chat: ChatOption = None, json: JsonOption = False) -> None:
    """Show when a fact was stored, from which conversation, and who said it. Also finds deleted facts."""
    editor = _open_editor(chat)[1]
    if json:
        print_json([details.to_json() for details in editor.find(fact)])
    else:
        print_text(editor.why(fact), wraps=True)


def forget(fact: FactArgument, chat: ChatOption = None) -> None:
    """Delete a fact. It is not learned again from past conversations; `memory undo` restores it."""
    for deleted in _open_editor(chat)[1].forget(fact):
        print_text(f"Forgotten: {deleted.text}", wraps=True)
    print_line("HISTORY.md and stored conversations may still mention it, and a search finds it there.", err=True)


def pin(fact: FactArgument, chat: ChatOption = None) -> None:
    """Keep a fact as it is: consolidation, Dream and the size limit do not change or remove it."""
    print_text(f"Pinned: {_open_editor(chat)[1].pin(fact).text}", wraps=True)


def unpin(fact: FactArgument, chat: ChatOption = None) -> None:
    print_text(f"Unpinned: {_open_editor(chat)[1].pin(fact, pinned=False).text}", wraps=True)


def undo(chat: ChatOption = None) -> None:
    """Undo the last change, whoever made it. The file is restored byte for byte."""
    for change in _open_editor(chat)[1].undo():
        print_text(f"Undone: {format_change(change)}", wraps=True)


def _open_editor(chat: str | None) -> tuple[MemoryStore, MemoryEditor]:
    """The memory selected on the command line, and its editor, which shows times in the user's zone."""
    setup = read_setup(secrets=False)
    defaults = setup.config.agents.defaults
    store = MemoryStore(
        setup.workspace,
        clock=SystemClock(find_zone(defaults.timezone)),
        scope=Scope(chat or ""),
        budget_bytes=defaults.memory_budget_bytes,
        database=setup.paths.database,
    )
    return store, MemoryEditor(store)


NumberArgument = Annotated[
    int | None, typer.Argument(metavar="[PASS]", min=1, help="The number of the pass in dream-log; default: the last.")
]


def dream(chat: ChatOption = None) -> None:
    """Run Dream now: tidy the memory, from what was said since its last pass. Asks no model if nothing is new."""
    from nanobot.agent.memory.dream import DreamOutcome

    setup = read_setup()

    async def tidy() -> tuple[DreamOutcome, str]:
        async with setup.open_runtime() as runtime:
            return await runtime.memory.dreams.run_now(Scope(chat or ""), "terminal", "nanobot memory dream")

    outcome, report = asyncio.run(tidy())
    print_text(report, wraps=True)
    if outcome in (DreamOutcome.FAILED, DreamOutcome.BUSY):
        sys.exit(1)


def dream_log(limit: CountOption = 10, chat: ChatOption = None, json: JsonOption = False) -> None:
    """Show the last Dream passes, newest first: when, cost, and what changed."""
    from nanobot.agent.memory.dream import format_log

    store, _ = _open_editor(chat)
    store.revisions.record()
    if json:
        print_json([asdict(dream_pass) for dream_pass in store.revisions.passes()[:limit]])
    elif text := format_log(store.revisions, limit):
        print_text(text, wraps=True)
    else:
        print_line("No Dream pass has run here yet.", err=True)


def dream_restore(number: NumberArgument = None, chat: ChatOption = None) -> None:
    """Restore the memory to before a Dream pass, undoing later changes too. `memory undo` reverts this."""
    restored = _open_editor(chat)[1].restore(number)
    print_text(f"Restored the memory to before pass {restored}.", wraps=True)
