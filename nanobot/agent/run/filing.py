"""Filing: the hook that writes down which files come to hold words from outside, and knows which ones a command names.

A file that is written while such words are in play is marked before the call, so one may be marked that then is not
written: a mark too many costs a question, one too few would make somebody else's words the owner's. A command that
names a marked file brings its words into the turn; what file tools show of one comes with its provenance by itself.
"""

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from nanobot.agent.run.hooks import PlannedCall, Verdict
from nanobot.agent.run.outside import provenance_of, repeated_row
from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted

log = logging.getLogger(__name__)

_WRITERS = {"write_file": True, "edit_file": False, "notebook_edit": False}
"""Tools that write the file named `path`; whether they write it whole."""
_OUTPUT = re.compile(r"(?:>>?|(?<=\s)-[oO]|--output(?:-document)?|\btee(?:\s+-a)?)[\s=]*([^\s;|&<>()'\"]+)")
_FETCHED = re.compile(r"https?://[^\s'\"]+/([\w.-]+)")
_FETCHES = re.compile(r"\b(?:curl|wget|aria2c|scp|sftp|ftp|nc|ncat)\b|https?://")
_NOTHING = Verdict()


class Files(Protocol):
    """The book of files that hold somebody else's words. Its methods block."""

    def named_in(self, command: str) -> Provenance | None:
        """The least trusted words in the files that a command names."""
        ...

    def mark(self, file: Path, provenance: Provenance) -> None:
        """From now on the file is at most this trusted. Raises StorageError."""
        ...

    def clear(self, file: Path) -> None:
        """The file was written anew by the owner's words alone. Raises StorageError."""
        ...


class Filing:
    """The hook. It forbids nothing but a writing that could not be marked."""

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
        if name == "exec":
            command = str(arguments.get("command", ""))
            fetched = Provenance.WEB if _FETCHES.search(command) else Provenance.OWNER
            words = least_trusted([entered, fetched])
            if is_outside(words):
                for file in _written_by(command):
                    self._files.mark(context.workspace / file, words)
            return Verdict(entered=self._files.named_in(command) or Provenance.OWNER)
        file = context.workspace / Path(str(arguments.get("path") or ".")).expanduser()
        if is_outside(entered):
            self._files.mark(file, entered)
        elif _WRITERS[name]:
            self._files.clear(file)
        return _NOTHING


def _entered(planned: PlannedCall) -> Provenance:
    """The least trusted words that the call may be made of."""
    context = planned.context
    if is_outside(context.entered):
        return context.entered
    row = repeated_row(planned.call.arguments, planned.rows, context.turn_id, context.session_key)
    return context.entered if row is None else provenance_of(row, context.session_key)


def _written_by(command: str) -> Iterator[Path]:
    """The files that a command plainly writes to: by a redirection or an option, or as a download is called."""
    for name in (*_OUTPUT.findall(command), *(_FETCHED.findall(command) if "wget" in command else ())):
        try:
            yield Path(name).expanduser()
        except RuntimeError:
            continue
