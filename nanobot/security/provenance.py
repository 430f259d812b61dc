"""Where files came from: those that were written while words from outside were in play, and attachments of others.

A file like that is read as what it is, in whatever session and however much later: words do not become the owner's by
lying on a disk for a night. What is not in the book is the owner's own.

The book is one JSON file of paths. A path that is written to while nobody else's words are in play is struck out; a
file that is gone keeps its line for a while, since it may come back from a backup. A file that is renamed by a command
loses its mark: what a command does with files nobody sees. Reading such a file by a command does not lose it where the
command names it.
"""

import json
import logging
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatch
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, least_trusted
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

log = logging.getLogger(__name__)

_WORD = re.compile(r"[^\s;|&<>()'\"`$=]+")
_MOST = 20_000
"""Files the book has lines for; of more the oldest go."""


class FileBook:
    """The book, shared with every other process of this data folder. Methods block; none is slow."""

    def __init__(self, path: Path, media: Path) -> None:
        """`media` is where attachments are kept, a folder a channel: those are other people's without a line."""
        self.path = path
        self._media = Path(os.path.realpath(media))
        self._stamp: tuple[int, int] | None = None
        self._marks: dict[str, Provenance] = {}

    @property
    def is_sound(self) -> bool:
        """Whether the book can be read. One that is not there yet can."""
        return self._read() is not None

    def of(self, file: Path) -> Provenance | None:
        """Whose words the file holds, as far as the book knows; None for what is the owner's own. Never raises.

        A book that cannot be read is said once in the log; then every file counts as a page of the web.
        """
        real = _key(file)
        inside = _inside(real, self._media)
        if inside:
            return Provenance.MAIL if inside[0] == "email" else Provenance.PERSON
        marks = self._read()
        return Provenance.WEB if marks is None else marks.get(real)

    def named_in(self, command: str) -> Provenance | None:
        """The least trusted of the files that a command names, by their names or by a pattern, wherever they lie."""
        marks = self._read()
        if not marks:
            return Provenance.WEB if marks is None else None
        patterns = [word.rpartition("/")[2] for word in _WORD.findall(command) if set(word) & set("*?[")]
        names = [(file.rpartition(os.sep)[2], mark) for file, mark in marks.items()]
        found = [mark for name, mark in names if name in command or any(fnmatch(name, one) for one in patterns)]
        return least_trusted(found) if found else None

    def mark(self, file: Path, provenance: Provenance) -> None:
        """From now on the file is at most this trusted. Raises StorageError."""
        self._change([(_key(file), provenance)])

    def clear(self, file: Path) -> None:
        """The file was written anew, whole, by the owner's words alone. Raises StorageError."""
        if _key(file) in (self._read() or {}):
            self._change([(_key(file), None)])

    def _change(self, lines: Iterable[tuple[str, Provenance | None]]) -> None:
        try:
            make_private_folder(self.path.parent)
            with locked(self.path.with_suffix(".lock")):
                marks = self._read()
                if marks is None:
                    raise StorageError(f"{self.path} cannot be read. Move it away; what it knew of is yours then.")
                marks = dict(marks)
                for name, provenance in lines:
                    before = marks.pop(name, None)
                    if provenance is not None:
                        marks[name] = least_trusted(filter(None, [before, provenance]))
                kept = dict(list(marks.items())[-_MOST:])
                told = json.dumps({"version": 1, "files": kept}, ensure_ascii=True)
                write_atomic(self.path, told + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise refusal(f"{self.path} cannot be changed", error) from error

    def _read(self) -> dict[str, Provenance] | None:
        """What the book says now; None where it cannot be read."""
        try:
            found = self.path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                files = json.loads(self.path.read_text(encoding="utf-8"))["files"]
                self._marks = {str(name): least_trusted([str(mark)]) for name, mark in files.items()}
                self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._marks = None, {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if self._stamp != _BROKEN:
                log.warning("%s cannot be read, so every file counts as somebody else's: %s", self.path, error)
            self._stamp = _BROKEN
            return None
        return self._marks


_BROKEN = (-1, -1)


def _key(file: Path) -> str:
    return os.path.realpath(file)


def _inside(real: str, folder: Path) -> tuple[str, ...]:
    """The parts of a path below a folder; none where it is not there."""
    path = Path(real)
    return path.relative_to(folder).parts if path.is_relative_to(folder) and path != folder else ()
