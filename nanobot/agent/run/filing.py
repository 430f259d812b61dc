"""The hooks that know which files hold words from outside, and write down which ones come to.

`Running` stands before approval: a command that runs such a file does what somebody else says. `Filing` stands behind
it. A file that is written while such words are in play is marked before the call, so one may be marked that then is not
written: a mark too many costs a question, one too few would make somebody else's words the owner's. A command that
names a marked file brings its words into the turn, and marks itself what it writes; what file tools show of one comes
with its provenance by itself.
"""

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.run.outside import provenance_of, repeated_row
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted

log = logging.getLogger(__name__)

_WRITERS = {"write_file": True, "edit_file": False, "notebook_edit": False}
"""Tools that write the file named `path`; whether they write it whole."""
_NOTHING = Verdict()


class Files(Protocol):
    """The book of files that hold somebody else's words. Its methods block."""

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """The least trusted of those that a command names which runs in that folder."""
        ...

    def run_by(self, command: str, folder: Path) -> tuple[Provenance, str] | None:
        """Whose words a command would do that runs such a file, and which file; None where it runs none."""
        ...

    def mark(self, file: Path, provenance: Provenance) -> None:
        """From now on the file is at most this trusted. Raises StorageError."""
        ...

    def clear(self, file: Path) -> None:
        """The file was written anew by the owner's words alone. Raises StorageError."""
        ...


class Running:
    """The hook that says whose words a command would do by running a file. It forbids nothing."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Look at a command; of any other call there is nothing to say."""
        if planned.call.name != "exec":
            return _NOTHING
        command, folder = _command_of(planned)
        found = await asyncio.to_thread(self._files.run_by, command, folder)
        return _NOTHING if found is None else Verdict(entered=found[0], source=f"the file {found[1]}")


class Filing:
    """The hook that marks what is written. It forbids nothing but a writing that could not be marked."""

    def __init__(self, files: Files) -> None:
        self._files = files

    async def before_call(self, planned: PlannedCall) -> Verdict:
        """Mark the files that this call writes; say whose words a command reads."""
        name = planned.call.name
        if name != "exec" and name not in _WRITERS:
            return _NOTHING
        try:
            return await asyncio.to_thread(self._filed, planned)
        except (StorageError, RuntimeError) as error:  # RuntimeError: `~somebody` whom this host does not know
            log.warning("Where the words of a file come from cannot be kept: %s", error)
            return Verdict(refusal=f"{name} was not run: nobody could tell later whose words it writes. {error}")

    def _filed(self, planned: PlannedCall) -> Verdict:
        name, arguments, context = planned.call.name, planned.call.arguments, planned.context
        entered = _entered(planned)
        if name == "exec":  # which marks what it writes itself, once it is sure to run
            named = self._files.named_in(*_command_of(planned)) or Provenance.OWNER
            return Verdict(entered=least_trusted([entered, named]) if is_outside(entered) else named)
        file = context.workspace / Path(str(arguments.get("path") or ".")).expanduser()
        if is_outside(entered):
            self._files.mark(file, entered)
        elif _WRITERS[name]:
            return Verdict(when_done=[lambda: self._clear(file)])
        return _NOTHING

    def _clear(self, file: Path) -> None:
        try:
            self._files.clear(file)
        except StorageError as error:
            log.warning("What the owner has written anew still counts as somebody else's: %s", error)


def _entered(planned: PlannedCall) -> Provenance:
    """The least trusted words that the call may be made of."""
    context = planned.context
    if is_outside(context.entered):
        return context.entered
    row = repeated_row(planned.call.arguments, planned.rows, context.turn_id, context.session_key)
    return context.entered if row is None else provenance_of(row, context.session_key)


def _command_of(planned: PlannedCall) -> tuple[str, Path]:
    """What is to run, and where."""
    arguments = planned.call.arguments
    folder = planned.context.workspace
    with suppress(RuntimeError):  # `~somebody` whom this host does not know
        folder /= Path(str(arguments.get("working_dir") or ".")).expanduser()
    return str(arguments.get("command", "")), folder
