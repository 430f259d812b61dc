"""`nanobot replay`: what happened in a turn, step by step; what it was sent with; the same turn with another model.

Nothing here writes to a session, and no tool runs. What is shown goes through the redactor: people paste it elsewhere.
"""

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nanobot.cli.common import (
    INTERRUPTED,
    ConfigOption,
    JsonOption,
    Setup,
    WorkspaceOption,
    one_line,
    read_setup,
    show_json,
    show_rows,
    unknown_name,
)
from nanobot.config.paths import Places
from nanobot.errors import NanobotError, UsageError

if TYPE_CHECKING:
    from nanobot.agent.trace.folder import TraceFolder
    from nanobot.agent.trace.recorded import RecordedPrompt, RecordedTurn, Recording
    from nanobot.agent.trace.replay import Difference, Replay
    from nanobot.messages.types import ChatMessage
    from nanobot.session.manager import SessionManager


def replay(
    session: Annotated[str, typer.Argument(metavar="SESSION", help="A session, as `nanobot sessions list` names it.")],
    turn: Annotated[
        str | None,
        typer.Argument(
            metavar="[TURN]", help="A turn's id, or how it begins; -1 is the last one, which is the default."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", "-l", help="All turns of the session, the oldest first.")] = False,
    prompt: Annotated[
        bool, typer.Option("--prompt", help="What the model was sent: system prompt and messages.")
    ] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="MODEL", help="Run the turn again with this model; no tool runs."),
    ] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """What happened in a turn, step by step; again with another model."""
    if turn is not None and turn.startswith("-") and not turn[1:].isdigit():
        raise UsageError(f"There is no option {turn}. A turn is an id, the beginning of one, or -1, -2 and so on.")
    if sum((list_, prompt, against is not None)) > 1 or (list_ and turn is not None):
        raise UsageError("--list takes no turn, and --list, --prompt and --against exclude each other. Leave one out.")
    viewer = Viewer(read_setup(config, workspace), session, json=json)
    if list_:
        viewer.show_list()
    elif prompt:
        viewer.show_prompt(viewer.recording.find(turn))
    elif against is not None:
        viewer.show_against(viewer.recording.find(turn), against)
    else:
        viewer.show_turn(viewer.recording.find(turn))


class Viewer:
    """One session's recording, and how to show it."""

    def __init__(self, setup: Setup, name: str, *, json: bool) -> None:
        from nanobot.agent.trace.folder import TraceFolder  # the engine: not for --help
        from nanobot.security.secrets import Redactor, secrets_of
        from nanobot.session.manager import SessionManager

        places = Places(setup.data_dir)
        self._setup = setup
        self._json = json
        self.redactor = Redactor(lambda: secrets_of(setup.config.model_dump(), os.environ))
        self.folder = TraceFolder(places.traces)
        self.sessions = SessionManager(setup.workspace, old_folder=places.old_sessions)
        self.recording = _read(name, self.sessions, self.folder)

    def show_list(self) -> None:
        """A line a turn."""
        from nanobot.cli.replayed import TurnFacts

        facts = [TurnFacts.of(turn, self.redactor) for turn in self.recording.turns]
        if self._json:
            show_json([asdict(one) for one in facts])
            return
        show_rows(
            ("Turn", "When", "Outcome", "Time", "Tokens", "Cost", "First words"),
            [one.as_row() for one in facts],
            empty=f"Session {self.recording.key!r} has no turns yet.",
        )

    def show_turn(self, turn: "RecordedTurn") -> None:
        """The turn, as it happened."""
        if self._json:
            show_json(self.redactor.value(as_json(turn)))
            return
        from nanobot.cli.replayed import turn_lines

        _print(lambda paint, width: turn_lines(turn, self.redactor, paint, width))

    def show_prompt(self, turn: "RecordedTurn") -> None:
        """What the first request of the turn held."""
        import asyncio  # not for --help

        from nanobot.agent.trace.replay import first_request
        from nanobot.utils.clock import SystemClock

        prompt = self.recording.prompt(turn, self.folder)
        messages = asyncio.run(first_request(turn, prompt, clock=SystemClock()))
        if self._json:
            show_json(self.redactor.texts(_prompt_json(prompt, messages)))
            return
        from nanobot.cli.replayed import prompt_lines

        _print(lambda paint, width: prompt_lines(prompt, messages, self.redactor, paint))

    def show_against(self, turn: "RecordedTurn", wanted: str) -> None:
        """The turn again with another model, beside the recorded one."""
        import asyncio  # not for --help

        from nanobot.agent.trace.replay import first_difference

        prompt = self.recording.prompt(turn, self.folder)
        try:
            again = asyncio.run(self._replay(turn, prompt, wanted))
        except KeyboardInterrupt:
            typer.echo("(stopped)", err=True)
            raise typer.Exit(INTERRUPTED) from None
        difference = first_difference(turn.asked, again.turn.asked)
        if self._json:
            show_json(self.redactor.value(_against_json(turn, again, difference)))
        else:
            from nanobot.cli.replayed import against_lines

            _print(lambda paint, width: against_lines(turn, again, difference, self.redactor, paint, width))
        if again.turn.outcome == "failed":
            raise typer.Exit(1)

    async def _replay(self, turn: "RecordedTurn", prompt: "RecordedPrompt", wanted: str) -> "Replay":
        from nanobot.agent.trace.replay import replay as run_again
        from nanobot.runtime import build_runtime  # everything: only where a model is asked

        setup = self._setup
        async with build_runtime(setup.config, data_dir=setup.data_dir, workspace=setup.workspace) as runtime:
            model = await runtime.models.get(wanted)
            return await run_again(turn, prompt, model, clock=runtime.clock, workspace=runtime.workspace)


def as_json(turn: "RecordedTurn") -> dict[str, Any]:
    """The turn for programs: docs/guides/replay.md has the fields."""
    from nanobot.messages.shown import shown_text

    shown = asdict(turn)
    del shown["traced"]
    for step, told in zip(turn.steps, shown["steps"], strict=True):
        told["heard"] = [shown_text(row) for row in step.heard]
    return shown


def _read(name: str, sessions: "SessionManager", folder: "TraceFolder") -> "Recording":
    from nanobot.agent.trace.recorded import read_recording

    recording = read_recording(name, sessions, folder)
    if recording is None:
        known = [str(row["key"]) for row in sessions.list_sessions()] + folder.keys()
        if name in known:
            raise NanobotError(f"No turn of the session {one_line(name)} is recorded for this workspace.")
        raise unknown_name("session", name, known, "nanobot sessions list")
    return recording


def _prompt_json(prompt: "RecordedPrompt", messages: "list[ChatMessage]") -> dict[str, Any]:
    from nanobot.providers.wire import wire_text

    sent = [{**row, "content": wire_text(row)} for row in messages if row["role"] != "system"]
    return {"system": prompt.system, "tools": prompt.tools, "limits": asdict(prompt.limits), "messages": sent}


def _against_json(turn: "RecordedTurn", again: "Replay", difference: "Difference | None") -> dict[str, Any]:
    return {
        "recorded": as_json(turn),
        "replayed": as_json(again.turn),
        "first_difference": asdict(difference) if difference else None,
        "unrecorded": [asdict(call) for call in again.unrecorded],
    }


def _print(lines_of: "Callable[[Any, int], list[str]]") -> None:
    """Lines for whoever looks: coloured and as wide as the screen, or plain."""
    import shutil
    import sys

    from nanobot.cli.terminal import Paint, is_screen, wants_colour

    width = shutil.get_terminal_size().columns if is_screen(sys.stdout) else 200
    typer.echo("\n".join(lines_of(Paint(wants_colour(sys.stdout)), width)))
