"""Where files came from: those that were written while words from outside were in play, and attachments of others.

A file like that is read as what it is, in whatever session and however much later: words do not become the owner's by
lying on a disk for a night. What is not in the book is the owner's own.

The book is one JSON file of paths. A path that is written to while nobody else's words are in play is struck out; a
file that is gone keeps its line for a while, since it may come back from a backup. A line for a folder holds for all
that is in it. What people sent, stored conversations and results that were too long for a request are known by where
they lie.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatch
from glob import iglob
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.paths import READ_LATER
from nanobot.security.place_set import folded
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal

if TYPE_CHECKING:
    from nanobot.security.readings import Reading

log = logging.getLogger(__name__)

IN_PART = {
    Provenance.MCP: "(In part from a tool of somebody else's.)",
    Provenance.PERSON: "(In part from somebody else than the owner.)",
}
"""What an entry of the log of old conversations says behind its words, which are trusted no more than they were."""

_DOCUMENTS = (
    ".pdf",
    ".doc",
    ".docx",
    ".xls",
    ".xlsx",
    ".ppt",
    ".pptx",
    ".odt",
    ".ods",
    ".odp",
    ".rtf",
    ".epub",
    ".eml",
)
"""How the names of files end that are read as somebody else's wherever they lie."""
_WORD = re.compile(r"[^\s;|&<>()'\"`$=]+")
_GLOB = frozenset("*?[")
_GOES_TO = re.compile(r"\b(?:cd|pushd)\s+([^\s;|&<>()'\"`$]+)")
_MOST = 20_000
"""Files the book has lines for; of more the oldest go."""
_MOST_WORDS = 200
"""Words of a command, and files that a pattern stands for, that are looked up where they lie."""
_SAID = re.compile(rb'"(?:own_)?provenance": ?"(\w+)"')
_LONGEST_SESSION = 16 * 1024 * 1024
_SPILLED = re.compile(r"-(mcp|person|mail|web)-\d+\.txt$")
"""The name of a file with a result that was too long for a request, and held words from outside."""


class FileBook:
    """The book, shared with every other process of this data folder. Methods block; none is slow."""

    def __init__(self, path: Path, media: Path, workspace: Path | None = None) -> None:
        """`media` is where attachments are kept, a folder a channel: those are other people's without a line."""
        self.path = path
        self._media = Path(os.path.realpath(media))
        self._workspace = None if workspace is None else Path(os.path.realpath(workspace))
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
        if (placed := self._of_place(real)) is not None:
            return placed
        marks = self._read()
        return Provenance.WEB if marks is None else _nearest(marks, real)

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """The least trusted of the files that a command names, by their names or by a pattern, wherever they lie.

        `folder` is where it runs.
        """
        if self._read() is None:
            return Provenance.WEB
        found = self._files_in(command, folder)
        return least_trusted(found.values()) if found else None

    def run_by(self, command: str, folder: Path) -> tuple[Provenance, str] | None:
        """Whose words a command that runs in this folder may do, or may put where later turns read them, since it names
        or runs a file that holds them, and which file that is; None where it only shows and moves such files.
        """
        from nanobot.security.shell.runs import only_handles, run_by_custom  # most books are empty

        marks = self._read()
        if marks is None:
            return Provenance.WEB, str(self.path)
        found = self._files_in(command, folder)
        if found and only_handles(command) and not self._may_teach(command, folder):
            found = {}
        if marks and (patterns := run_by_custom(command, folder)):
            root = _key(folder if self._workspace is None else self._workspace) + os.sep
            found |= {
                file: mark
                for file, mark in marks.items()
                if is_outside(mark) and file.startswith(root) and any(_fits(file, one) for one in patterns)
            }
        if not found:
            return None
        worst = least_trusted(found.values())
        return worst, next(file for file, mark in found.items() if mark is worst)

    def reading(self, command: str, folder: Path, words: Provenance | None) -> "Reading":
        """Watch which such files this command reads, which is about to run in that folder. To be closed.

        `words` are those it is made of, or brings, where they are from outside: what it plainly writes is marked by
        them at once, so that a crash leaves no file unmarked. Raises StorageError.
        """
        from nanobot.security.readings import Reading  # only a command needs these
        from nanobot.security.shell.writes import files_written

        if words is not None:
            for file in files_written(command, folder):
                self.mark(file, words)
        return Reading(self, command, folder, self._workspace or folder)

    def others_places(self) -> tuple[list[str], list[str]]:
        """Files that may hold somebody else's words, and folders in which all may."""
        marks = self._read() or {}
        outside = [name for name, mark in marks.items() if is_outside(mark)]
        trees = [name for name in outside if os.path.isdir(name)]  # noqa: PTH112 of many
        files, own = list(set(outside).difference(trees)), self._workspace
        if own is not None:
            files.append(str(own / "memory" / "HISTORY.md"))
            trees += [str(own / "sessions"), str(own / ".nanobot" / "spill")]
        return files, [*trees, str(self._media)]

    def documents_in(self, command: str, folder: Path) -> list[str]:
        """The documents that a command names, by a pattern too: somebody writes those for others, as letters are."""
        if not any(ending in command.lower() for ending in _DOCUMENTS):
            return []
        from nanobot.security.shell.runs import words_of

        words = [*dict.fromkeys([*_WORD.findall(command), *words_of(command)])]
        return [place for place in _places_of(words, command, folder) if place.lower().endswith(_DOCUMENTS)]

    def mark(self, file: Path, provenance: Provenance) -> None:
        """From now on the file is at most this trusted. Raises StorageError."""
        self._change([(_key(file), provenance)])

    def mark_changed(self, folders: Iterable[Path], since_ns: int, provenance: Provenance) -> None:
        """What was changed in these folders since that moment, by `time.time_ns`, is at most this trusted.

        For commands, whose doings nobody sees. A folder of which all is new gets a line as a whole. Raises
        StorageError.
        """
        roots = dict.fromkeys(map(_key, folders))
        ours = {root: _OURS if Path(root) == self._workspace else frozenset[str]() for root in roots}
        found = [name for root in roots for name in _changed(root, since_ns - _TICK_NS, but_for=ours[root])[0]]
        if found:
            self._change([(name, provenance) for name in found])

    def clear(self, file: Path) -> None:
        """The file was written anew, whole, by the owner's words alone. Raises StorageError."""
        marks, real = self._read() or {}, _key(file)
        if _nearest(marks, str(Path(real).parent)) is not None:
            self._change([(real, Provenance.OWNER)])  # the folder's line would hold for it
        elif real in marks:
            self._change([(real, None)])

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
                    if provenance is Provenance.OWNER:
                        marks[name] = provenance
                    elif provenance is not None:
                        marks[name] = least_trusted(filter(None, [before, provenance]))
                kept = dict(list(marks.items())[-_MOST:])
                told = json.dumps({"version": 1, "files": kept}, ensure_ascii=True)
                write_atomic(self.path, told + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise refusal(f"{self.path} cannot be changed", error) from error

    def _files_in(self, command: str, folder: Path | None) -> dict[str, Provenance]:
        """The files with somebody else's words that a command names, each with whose they are."""
        from nanobot.security.shell.runs import words_of  # 5 ms that only a command costs

        marks = self._read() or {}
        words = [*dict.fromkeys([*_WORD.findall(command), *words_of(command)])]
        patterns = [word.rpartition("/")[2] for word in words if set(word) & _GLOB]
        told = "\n".join([command, *words])
        found = {
            file: mark
            for file, mark in marks.items()
            if is_outside(mark)
            and (_is_named(name := file.rpartition(os.sep)[2], told) or any(fnmatch(name, one) for one in patterns))
        }
        for place in islice(_places_of(words, command, folder), _MOST_WORDS):
            if place not in found and (words_there := self.of(Path(place))) is not None:
                found[place] = words_there
        return found

    def _may_teach(self, command: str, folder: Path) -> bool:
        """Whether a command names, or runs in, a place that is read into later turns."""
        from nanobot.security.shell.runs import words_of, written_by

        here = _inside(_key(folder), self._workspace) if self._workspace is not None else ()
        words = {folded(part) for word in (*_WORD.findall(command), *words_of(command), *here) for part in _parts(word)}
        patterns = {folded(part) for word in written_by(command) for part in _parts(word) if set(part) & _GLOB}
        return not words.isdisjoint(READ_LATER) or any(fnmatch(name, one) for name in READ_LATER for one in patterns)

    def _of_place(self, real: str) -> Provenance | None:
        """What is known of a file by where it lies."""
        if inside := _inside(real, self._media):
            return Provenance.MAIL if inside[0] == "email" else Provenance.PERSON
        inside = () if self._workspace is None else _inside(real, self._workspace)
        if inside[:1] == ("sessions",) and inside[1:]:
            return _of_session(real)
        if inside == ("memory", "HISTORY.md"):
            return _of_log(real)
        if inside[:2] == ("memory", "chats") or inside[:3] == ("memory", ".book", "chats"):
            return Provenance.PERSON
        if inside[:2] == (".nanobot", "spill") and (spilled := _SPILLED.search(inside[-1])):
            return Provenance(spilled[1])
        return None

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


def _changed(folder: str, since_ns: int, *, but_for: frozenset[str] | None = None) -> tuple[list[str], bool]:
    """The files in a folder that were made, written or renamed since then; and whether that is all there is in it.

    `but_for`: of the folder at the top, what is left out; that one is never told as a whole.
    """
    found: list[str] = []
    whole = True
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if folder.endswith(_GIT) and entry.name != "hooks":
                    continue
                if folder.endswith(_HOOKS) and entry.name.endswith(".sample"):
                    continue  # git brings them, and runs none of them
                if entry.is_dir(follow_symlinks=False):
                    if entry.name in _OF_PACKAGES or (but_for and entry.name in but_for):
                        continue
                    below, all_of_it = _changed(entry.path, since_ns)
                    found += below
                    whole = whole and all_of_it
                elif entry.is_file(follow_symlinks=False):
                    about = entry.stat(follow_symlinks=False)
                    if (
                        max(about.st_ctime_ns, about.st_mtime_ns) >= since_ns
                    ):  # on Windows the first is when it was made
                        found.append(entry.path)
                    else:
                        whole = False
    except OSError:
        return found, False  # gone already, or nothing that we could read either
    return ([folder] if whole and len(found) > _MANY and but_for is None else found), whole


_TICK_NS = 20_000_000
"""The clock of a file system may be so far behind."""
_MANY = 20
"""Files that get lines of their own where all of a folder is new."""
_OURS = frozenset({"sessions", "cron", ".nanobot"})
_OF_PACKAGES = frozenset({
    ".venv", "venv", "node_modules", "site-packages", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".tox", ".cache",
})  # fmt: skip
"""Folders of a workspace that we write ourselves, and those of installed packages."""
_GIT = f"{os.sep}.git"
"""Where git keeps its own; but for hooks none of it is words."""
_HOOKS = f"{_GIT}{os.sep}hooks"


def _nearest(marks: Mapping[str, Provenance], real: str) -> Provenance | None:
    """What the book says of a file, or of the nearest folder around it; None for the owner's own."""
    mark = marks.get(real)
    while marks and mark is None and (real := os.path.dirname(real)) not in ("", os.sep):  # noqa: PTH120 part of a text
        mark = marks.get(real)
    return mark if mark is not None and is_outside(mark) else None


def _of_session(real: str) -> Provenance | None:
    """The least trusted words that a stored conversation holds; where it does not say so, somebody's."""
    try:
        with Path(real).open("rb") as file:
            text = file.read(_LONGEST_SESSION + 1)
    except OSError:
        return None
    if len(text) > _LONGEST_SESSION:
        return Provenance.WEB
    words = least_trusted([said.decode() for said in set(_SAID.findall(text))] or [Provenance.PERSON])
    return words if is_outside(words) else None


def _of_log(real: str) -> Provenance | None:
    """The least trusted words that the log of old conversations was made of, as its entries say it."""
    try:
        text = Path(real).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return least_trusted(found) if (found := [kind for kind, mark in IN_PART.items() if mark in text]) else None


def _is_named(name: str, told: str) -> bool:
    """Whether a command names a file of this name: not only as a part of a longer word."""
    return name in told and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", told) is not None


def _parts(word: str) -> list[str]:
    return re.split(r"[\\/]", word)


def _fits(file: str, pattern: str) -> bool:
    return fnmatch(file if "/" in pattern else file.rpartition(os.sep)[2], pattern)


def _places_of(words: Iterable[str], command: str, folder: Path | None) -> Iterator[str]:
    """Files that these words of a command lead to, from where it runs or goes to."""
    if folder is None:
        return
    bases = [folder, *(folder / Path(there).name if there.startswith("~") else folder / there
                       for there in _GOES_TO.findall(command))]  # fmt: skip
    for word in words:
        if "\0" in word or len(word) > 4_000:
            continue
        for base in bases:
            # as text: the folder may not be there before the command makes it, and the word may be no path at all
            place = os.path.normpath(os.path.join(base, os.path.expanduser(word)))  # noqa: PTH111, PTH118
            if set(word) & _GLOB:
                yield from islice(iglob(place), _MOST_WORDS)  # noqa: PTH207 as a shell does it
            elif os.path.isfile(place):  # noqa: PTH113
                yield place


def _key(file: Path) -> str:
    return os.path.realpath(file)


def _inside(real: str, folder: Path) -> tuple[str, ...]:
    """The parts of a path below a folder; none where it is not there."""
    path = Path(real)
    return path.relative_to(folder).parts if path.is_relative_to(folder) and path != folder else ()
