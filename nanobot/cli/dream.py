"""`nanobot memory dream`: tidy a memory from what is new, see what the last passes did, take one back.

Who is at the machine is its owner: `--chat` means the memory of any chat in which others write.
"""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from nanobot.agent.scope import Scope
from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, read_setup, say_text, show_json
from nanobot.cli.memory import ChatOption, CountOption, store_of

NumberArgument = Annotated[
    int | None, typer.Argument(metavar="[PASS]", min=1, help="Which pass, as dream-log numbers them; else the last.")
]


def dream(chat: ChatOption = None, config: ConfigOption = None, workspace: WorkspaceOption = None) -> None:
    """Tidy it now from what was said since the last time. Where nothing is new no model is asked."""
    from nanobot.agent.dream import DreamOutcome
    from nanobot.runtime import build_runtime  # everything: a model is asked

    setup = read_setup(config, workspace)

    async def tidy() -> tuple[DreamOutcome, str]:
        async with build_runtime(setup.config, data_dir=setup.data_dir, workspace=setup.workspace) as runtime:
            return await runtime.upkeep.dreams.tidy(Scope(chat or ""), "terminal", "nanobot memory dream")

    outcome, told = asyncio.run(tidy())
    say_text(told)
    if outcome in (DreamOutcome.FAILED, DreamOutcome.BUSY):
        sys.exit(1)


def log(
    limit: CountOption = 10,
    chat: ChatOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """The last passes, the newest first: when, what they cost, and what changed."""
    from nanobot.agent.dream_changes import DreamChanges
    from nanobot.agent.dream_words import told_log

    changes = DreamChanges(*store_of(config, workspace, chat))
    changes.mend()
    passes = changes.log.passes()[:limit]
    if json:
        show_json([asdict(one) for one in passes])
    elif passes:
        say_text(told_log(passes, changes.standing()))
    else:
        typer.echo("Dream has tidied nothing here yet.", err=True)


def restore(
    number: NumberArgument = None,
    chat: ChatOption = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Take the memory back to before a pass, with what was changed otherwise since; `memory undo` takes that back."""
    from nanobot.agent.dream_changes import DreamChanges

    one = DreamChanges(*store_of(config, workspace, chat)).restore(number, who="terminal")
    say_text(f"The memory is as it was before pass {one.number}.")
