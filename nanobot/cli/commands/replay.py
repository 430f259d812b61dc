"""`nanobot replay`: show a turn step by step, its prompt, or the same turn with another model.

Never writes to a session and never runs a tool. All output is redacted, since people paste it elsewhere.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.common import (
    EXIT_INTERRUPTED,
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    print_json,
    print_table,
    read_setup,
    to_one_line,
    unknown_name_error,
)
from nanobot.errors import NanobotError, UsageError

if TYPE_CHECKING:
    from nanobot.agent.trace.reader import RecordedPrompt, RecordedTurn, Recording
    from nanobot.agent.trace.replay import Difference, Replay
    from nanobot.agent.trace.store import TraceStore
    from nanobot.messages.types import ChatMessage
    from nanobot.session.manager import SessionManager


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
    viewer = ReplayViewer(read_setup(config, workspace), session, json=json)
    if list_:
        viewer.show_list()
    elif prompt:
        viewer.show_prompt(viewer.recording.find(turn))
    elif against is not None:
        viewer.show_against(viewer.recording.find(turn), against)
    else:
        viewer.show_turn(viewer.recording.find(turn))


class ReplayViewer:
    """Prints the recording of one session."""

    def __init__(self, setup: Setup, name: str, *, json: bool) -> None:
        from nanobot.agent.trace.store import TraceStore  # slow; not needed for --help
        from nanobot.security.secrets import Redactor, secret_values
        from nanobot.session.manager import SessionManager

        places = setup.paths
        self._setup = setup
        self._json = json
        self.redactor = Redactor(lambda: secret_values(setup.config.model_dump(), os.environ))
        self.folder = TraceStore(places.traces)
        self.sessions = SessionManager(setup.workspace, old_folder=places.legacy_sessions)
        self.recording = _load_recording(name, self.sessions, self.folder)

    def show_list(self) -> None:
        """Print one line per turn."""
        from nanobot.cli.commands.replay_view import ReplayedTurn

        facts = [ReplayedTurn.of(turn, self.redactor) for turn in self.recording.turns]
        if self._json:
            print_json([asdict(turn_facts) for turn_facts in facts])
            return
        print_table(
            ("Turn", "When", "Outcome", "Time", "Tokens", "Cost", "First words"),
            [turn_facts.as_row() for turn_facts in facts],
            empty=f"Session {self.recording.key!r} has no turns yet.",
        )

    def show_turn(self, turn: "RecordedTurn") -> None:
        """Print a turn step by step."""
        if self._json:
            print_json(self.redactor.value(turn_as_json(turn)))
            return
        from nanobot.cli.commands.replay_view import turn_lines

        _print_lines(lambda paint, width: turn_lines(turn, self.redactor, paint, width))

    def show_prompt(self, turn: "RecordedTurn") -> None:
        """Print the first request of the turn."""
        import asyncio  # slow; not needed for --help

        from nanobot.agent.trace.replay import first_request
        from nanobot.utils.clock import SystemClock

        prompt = self.recording.prompt(turn, self.folder)
        messages = asyncio.run(first_request(turn, prompt, clock=SystemClock()))
        if self._json:
            print_json(self.redactor.texts(_prompt_as_json(prompt, messages)))
            return
        from nanobot.cli.commands.replay_view import prompt_lines

        _print_lines(lambda paint, width: prompt_lines(prompt, messages, self.redactor, paint))

    def show_against(self, turn: "RecordedTurn", model_name: str) -> None:
        """Run the turn with another model and print both side by side."""
        import asyncio  # slow; not needed for --help

        from nanobot.agent.trace.replay import first_difference

        prompt = self.recording.prompt(turn, self.folder)
        try:
            replayed = asyncio.run(self._replay(turn, prompt, model_name))
        except KeyboardInterrupt:
            typer.echo("(stopped)", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        difference = first_difference(turn.model_steps, replayed.turn.model_steps)
        if self._json:
            print_json(self.redactor.value(_comparison_as_json(turn, replayed, difference)))
        else:
            from nanobot.cli.commands.replay_view import against_lines

            _print_lines(lambda paint, width: against_lines(turn, replayed, difference, self.redactor, paint, width))
        if replayed.turn.outcome == "failed":
            raise typer.Exit(1)

    async def _replay(self, turn: "RecordedTurn", prompt: "RecordedPrompt", model_name: str) -> "Replay":
        from nanobot.agent.trace.replay import replay as replay_turn
        from nanobot.runtime.build import build_runtime  # slow to import

        setup = self._setup
        async with build_runtime(setup.config, data_dir=setup.data_dir, workspace=setup.workspace) as runtime:
            model = await runtime.models.get(model_name)
            return await replay_turn(turn, prompt, model, clock=runtime.clock, workspace=runtime.workspace)


def turn_as_json(turn: "RecordedTurn") -> dict[str, Any]:
    """The turn for --json; docs/guides/replay.md documents the fields."""
    from nanobot.messages.shown import shown_text

    shown = asdict(turn)
    del shown["traced"]
    for step, shown_step in zip(turn.steps, shown["steps"], strict=True):
        shown_step["heard"] = [shown_text(row) for row in step.joined]
    return shown


def _load_recording(name: str, sessions: "SessionManager", folder: "TraceStore") -> "Recording":
    from nanobot.agent.trace.reader import read_recording

    recording = read_recording(name, sessions, folder)
    if recording is None:
        known = [str(row["key"]) for row in sessions.list_sessions()] + folder.keys()
        if name in known:
            raise NanobotError(f"The session {to_one_line(name)} has no recorded turn in this workspace.")
        raise unknown_name_error("session", name, known, "nanobot sessions list")
    return recording


def _prompt_as_json(prompt: "RecordedPrompt", messages: "list[ChatMessage]") -> dict[str, Any]:
    from nanobot.providers.wire.chat_request import wire_text

    sent = [{**row, "content": wire_text(row)} for row in messages if row["role"] != "system"]
    return {"system": prompt.system, "tools": prompt.tools, "limits": asdict(prompt.limits), "messages": sent}


def _comparison_as_json(turn: "RecordedTurn", replayed: "Replay", difference: "Difference | None") -> dict[str, Any]:
    return {
        "recorded": turn_as_json(turn),
        "replayed": turn_as_json(replayed.turn),
        "first_difference": asdict(difference) if difference else None,
        "unrecorded": [asdict(call) for call in replayed.unrecorded],
    }


def _print_lines(make_lines: "Callable[[Any, int], list[str]]") -> None:
    """Print lines: coloured and fitted to a terminal, or plain and wide in a pipe."""
    import sys

    from nanobot.cli.layout import columns
    from nanobot.cli.terminal import Paint, wants_colour

    width = columns(sys.stdout) or 200
    typer.echo("\n".join(make_lines(Paint(wants_colour(sys.stdout)), width)))
