"""`nanobot replay`: show a turn step by step, its prompt, or the same turn with another model.

Never writes to a session and never runs a tool. All output is redacted, since people paste it elsewhere.
"""

import asyncio
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from nanobot.agent.trace.reader import RecordedPrompt, RecordedTurn, Recording, read_recording
from nanobot.agent.trace.replay import Replay, first_difference, first_request
from nanobot.agent.trace.replay import replay as replay_turn
from nanobot.agent.trace.store import TraceStore
from nanobot.cli.commands.replay_view import TurnPrinter, turn_row, turn_summary
from nanobot.cli.common import (
    EXIT_INTERRUPTED,
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    read_setup,
    unknown_name_error,
)
from nanobot.cli.output import columns, print_json, print_table, to_one_line
from nanobot.cli.terminal import Paint, wants_colour
from nanobot.errors import NanobotError, UsageError
from nanobot.providers.wire.rows import wire_text
from nanobot.security.secrets import redact_texts, redact_value
from nanobot.session.manager import SessionManager
from nanobot.utils.clock import SystemClock


def replay(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session, from `nanobot sessions list`.")],
    turn: Annotated[
        str | None,
        typer.Argument(metavar="[TURN]", help="A turn's id or the beginning of one; -1 is the last turn (default)."),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List all turns of the session, oldest first.")] = False,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="Show the system prompt and the messages that were sent.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODEL", help="Run the turn again with this model; no tool runs."),
    ] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show a turn step by step, or replay it with another model."""
    if turn is not None and turn.startswith("-") and not turn[1:].isdigit():
        raise UsageError(f"There is no option {turn}. A turn is an id, the beginning of an id, or -1, -2 and so on.")
    if sum((list_, prompt, against is not None)) > 1 or (list_ and turn is not None):
        raise UsageError("--list takes no turn, and --list, --prompt and --against cannot be combined. Leave one out.")
    setup = read_setup(config, workspace)
    traces = TraceStore(setup.paths.traces)
    recording = _load_recording(session, setup, traces)
    printer = TurnPrinter(Paint(wants_colour(sys.stdout)), max(columns(sys.stdout) or 200, 40))
    if list_:
        if json:
            print_json([turn_summary(turn) for turn in recording.turns])
            return
        print_table(
            ("Turn", "When", "Outcome", "Time", "Tokens", "Cost", "First words"),
            [turn_row(turn) for turn in recording.turns],
            empty=f"Session {recording.key!r} has no turns yet.",
        )
        return
    recorded = recording.find(turn)
    if prompt:
        sent = recording.prompt(recorded, traces)
        messages = asyncio.run(first_request(recorded, sent, clock=SystemClock()))
        if json:
            rows = [{**row, "content": wire_text(row)} for row in messages if row["role"] != "system"]
            facts = {"system": sent.system, "tools": sent.tools, "limits": asdict(sent.limits), "messages": rows}
            print_json(redact_texts(facts))
        else:
            typer.echo("\n".join(printer.prompt(sent, messages)))
    elif against is not None:
        try:
            replayed = asyncio.run(_replay(recorded, recording.prompt(recorded, traces), against, setup))
        except KeyboardInterrupt:
            typer.echo("(stopped)", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        difference = first_difference(recorded.model_steps, replayed.turn.model_steps)
        if json:
            comparison = {
                "recorded": recorded.to_json(),
                "replayed": replayed.turn.to_json(),
                "first_difference": asdict(difference) if difference else None,
                "unrecorded": [asdict(call) for call in replayed.unrecorded],
            }
            print_json(redact_value(comparison))
        else:
            typer.echo("\n".join(printer.comparison(recorded, replayed.turn, difference)))
        if replayed.turn.outcome == "failed":
            raise typer.Exit(1)
    elif json:
        print_json(redact_value(recorded.to_json()))
    else:
        typer.echo("\n".join(printer.turn(recorded)))


async def _replay(turn: RecordedTurn, prompt: RecordedPrompt, model_name: str, setup: Setup) -> Replay:
    from nanobot.runtime.build import build_runtime  # slow to import

    async with build_runtime(setup.config, data_dir=setup.data_dir, workspace=setup.workspace) as runtime:
        model = await runtime.models.get(model_name)
        return await replay_turn(turn, prompt, model, clock=runtime.clock, workspace=runtime.workspace)


def _load_recording(name: str, setup: Setup, traces: TraceStore) -> Recording:
    sessions = SessionManager(setup.workspace, old_folder=setup.paths.legacy_sessions)
    recording = read_recording(name, sessions, traces)
    if recording is None:
        known = [str(row["key"]) for row in sessions.list_sessions()] + traces.keys()
        if name in known:
            raise NanobotError(f"The session {to_one_line(name)} has no recorded turn in this workspace.")
        raise unknown_name_error("session", name, known, "nanobot sessions list")
    return recording
