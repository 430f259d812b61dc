"""`nanobot sessions import`: conversations from elsewhere become sessions. None that is here is ever touched."""

from pathlib import Path
from typing import Annotated

import typer

from nanobot.cli.common import ConfigOption, JsonOption, WorkspaceOption, one_line, read_setup, show_json
from nanobot.config.paths import Places
from nanobot.errors import NanobotError
from nanobot.session.imported import conversations_in, told
from nanobot.session.manager import SessionManager
from nanobot.utils.text import counted


def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A session file, a folder of them, or a JSON list of chat messages.")
    ],
    key: Annotated[str | None, typer.Option("--as", metavar="KEY", help="The session it becomes.")] = None,
    config: ConfigOption = None,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Take a stored conversation in, whole; a session that is here already stays as it is."""
    place = file.expanduser()
    if key is not None and (not key.strip() or place.is_dir()):
        raise NanobotError("--as names the session of one file; give it a key such as cli:notes.")
    if not place.exists():
        raise NanobotError(f"{file} does not exist.")
    setup = read_setup(config, workspace, secrets=False)
    sessions = SessionManager(setup.workspace, old_folder=Places(setup.data_dir).old_sessions)
    done, left = [], []
    conversations, faults = conversations_in(place)  # nothing is written before all of it was read
    for found in conversations:
        name = key or found.key
        if sessions.find(name) is not None:
            left.append(name)
            continue
        sessions.save(found.as_session(name))
        done.append({"key": name, "messages": len(found.rows), "left_out": found.left_out})
        if not json:
            typer.echo(f"{one_line(name)}: {told(found)}")
    if json:
        show_json(done)
    if left and not place.is_dir():
        raise NanobotError(
            f"There is a session {left[0]!r} already, and it stays as it is. Name another with --as KEY."
        )
    refused = [str(fault) for fault in faults]
    if left:
        names = ", ".join(map(one_line, left[:10])) + (" ..." if len(left) > 10 else "")
        refused.append(
            f"{counted(len(left), 'session')} of that name {'is' if len(left) == 1 else 'are'} here already and "
            f"{'stays' if len(left) == 1 else 'stay'}: {names}. Import their files one by one with --as KEY."
        )
    if refused:
        raise NanobotError("\n".join(refused))
