"""Tool policies that track untrusted content in files and in the tasks of subagents.

`ExecTaint` comes before the approval policy: a command that runs such a file does what a third party says. `FileTaint`
comes after it and marks what is written while untrusted content is in play. It marks before the call, so a file may be
marked that is then not written: one mark too many costs a question, one too few would make a third party's words the
owner's. A command that names a marked file taints the turn, and exec marks what the command writes.

`TaskTaint` finds out whose words a task repeats. A subagent sees nothing of the conversation, so its turn cannot know
that a task repeats web or mail content of an older turn.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakValueDictionary

from nanobot.agent.events import Emitter
from nanobot.agent.taint import provenance_of, repeated_row
from nanobot.agent.tools.hooks import PlannedCall, Verdict
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted

log = logging.getLogger(__name__)

_WRITERS = {"write_file": True, "edit_file": False, "notebook_edit": False}
"""Tools that write the file named by `path`, and whether they replace it as a whole."""
_NO_OPINION = Verdict()


class TaintedFiles(Protocol):
    """The record of files with untrusted content. Its methods block."""

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """Return the least trusted provenance of the files that a command names which runs in `folder`."""
        ...

    def find_untrusted_source(self, command: str, folder: Path) -> tuple[Provenance, str] | None:
        """Return provenance and path of a marked file that the command would run; None if it runs none."""
        ...

    def mark(self, file: Path, provenance: Provenance) -> None:
        """Record that the file is at most this trusted. Raises StorageError."""
        ...

    def clear(self, file: Path) -> None:
        """Record that the owner's words alone replaced the file's content. Raises StorageError."""
        ...


class ExecTaint:
    """Reports whose words a command would execute by running a file. Refuses nothing."""

    def __init__(self, files: TaintedFiles) -> None:
        self._files = files

    async def before_call(self, planned: PlannedCall) -> Verdict:
        if planned.call.name != "exec":
            return _NO_OPINION
        tainted = await asyncio.to_thread(self._files.find_untrusted_source, *_parse_command(planned))
        return _NO_OPINION if tainted is None else Verdict(entered=tainted[0], source=f"the file {tainted[1]}")


class FileTaint:
    """Marks files that a call writes, and reports whose words a command reads. Refuses a write it could not mark."""

    def __init__(self, files: TaintedFiles) -> None:
        self._files = files

    async def before_call(self, planned: PlannedCall) -> Verdict:
        name = planned.call.name
        if name != "exec" and name not in _WRITERS:
            return _NO_OPINION
        try:
            return await asyncio.to_thread(self._judge, planned)
        except (StorageError, RuntimeError) as error:  # RuntimeError: the user of a `~user` path does not exist
            log.warning("Cannot record the provenance of a file: %s", error)
            return Verdict(refusal=f"{name} was not run: the provenance of what it writes cannot be recorded. {error}")

    def _judge(self, planned: PlannedCall) -> Verdict:
        name, arguments, context = planned.call.name, planned.call.arguments, planned.context
        entered = _turn_provenance(planned)
        if name == "exec":  # which marks what the command writes itself, once it is sure to run
            provenance = self._files.named_in(*_parse_command(planned)) or Provenance.OWNER
            return Verdict(entered=least_trusted([entered, provenance]) if is_outside(entered) else provenance)
        file = context.workspace / Path(str(arguments.get("path") or ".")).expanduser()
        if is_outside(entered):
            self._files.mark(file, entered)
        elif _WRITERS[name]:
            return Verdict(on_success=[lambda: self._clear(file)])
        return _NO_OPINION

    def _clear(self, file: Path) -> None:
        try:
            self._files.clear(file)
        except StorageError as error:
            log.warning("%s stays marked as untrusted although the owner's words replaced it: %s", file, error)


def _turn_provenance(planned: PlannedCall) -> Provenance:
    """Return the least trusted provenance that the call may derive from."""
    context = planned.context
    if is_outside(context.entered):
        return context.entered
    row = repeated_row(planned.call.arguments, planned.rows, context.turn_id, context.session_key)
    return context.entered if row is None else provenance_of(row, context.session_key)


def _parse_command(planned: PlannedCall) -> tuple[str, Path]:
    """Return command and working folder."""
    arguments = planned.call.arguments
    folder = planned.context.workspace
    with suppress(RuntimeError):  # the user of a `~user` path does not exist
        folder /= Path(str(arguments.get("working_dir") or ".")).expanduser()
    return str(arguments.get("command", "")), folder


class TaskTaint:
    """Reports the provenance of tasks and refuses nothing. Also knows the event sinks of turns that spawned one."""

    def __init__(self) -> None:
        self._emitters: WeakValueDictionary[str, Emitter] = WeakValueDictionary()

    async def before_call(self, planned: PlannedCall) -> Verdict:
        if planned.call.name != "spawn":
            return _NO_OPINION
        context = planned.context
        self._emitters[context.turn_id] = planned.emit
        if is_outside(context.entered):
            return _NO_OPINION
        rows = [*planned.untrusted_rows, *planned.rows]
        row = await asyncio.to_thread(repeated_row, planned.call.arguments, rows, context.turn_id, context.session_key)
        return _NO_OPINION if row is None else Verdict(entered=provenance_of(row, context.session_key))

    def emitter_of(self, turn_id: str) -> Emitter | None:
        """Return the event sink of that turn; None if it has ended or spawned nothing."""
        return self._emitters.get(turn_id)
