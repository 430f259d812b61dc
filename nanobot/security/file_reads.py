"""Which files with untrusted content a command reads, named or not: `grep -r`, `$(ls)`, `make`, a script.

On Linux the kernel reports which files are opened. Elsewhere every command counts as having read all untrusted files. A
file that the command renamed or linked is recognized by its inode.
"""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha1, sha256
from itertools import islice
from pathlib import Path
from typing import Protocol

from nanobot.messages.types import Provenance, least_trusted
from nanobot.utils.read_watch import ReadWatcher

_MAX_FOLDERS = 1_000
_MAX_FILES = 500
"""Files untrusted by location (attachments, conversations) that are checked one by one."""
_MAX_ENTRIES = 50_000
"""Workspace entries searched for a renamed file."""
_SHOWN_WHOLE = 8_000
"""Characters of output that the model sees completely; the rest of longer output is in a file it has not read."""
_READERS = frozenset({
    "antiword", "catdoc", "catppt", "docx2txt", "libreoffice", "mutool", "ocrmypdf", "odt2txt", "pdf2txt.py", "pdfgrep",
    "pdftohtml", "pdftotext", "soffice", "tesseract", "unrtf", "xls2csv", "xlsx2csv",
})  # fmt: skip
"""Programs that print the content of documents and pictures."""
_MAX_BLOB = 4 * 1024 * 1024
_IN_DIFF = re.compile(r"^(?:diff --git|\+\+\+|---|[\w^~./-]+:).*$", re.MULTILINE)
"""Lines of git output that name the file whose old content follows: no open file tells about that."""


class ProvenanceLookup(Protocol):
    """What the watcher needs of `ProvenanceStore`. Methods block."""

    def of(self, file: Path) -> Provenance | None:
        """The provenance of a file; None if it is the owner's."""
        ...

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """The least trusted provenance of the files that this text names."""
        ...

    def documents_in(self, command: str, folder: Path) -> list[str]:
        """The documents that a command names."""
        ...

    def mark(self, file: Path, provenance: Provenance) -> None:
        """Lower the trust in a file to this provenance. Raises StorageError."""
        ...

    def untrusted_paths(self) -> tuple[list[str], list[str]]:
        """Files that may hold untrusted content, and folders in which all files may."""
        ...


class FileReadWatcher:
    """Watches one command, from before it starts until `close`."""

    def __init__(self, store: ProvenanceLookup, command: str, folder: Path, workspace: Path) -> None:
        self._store = store
        self._workspace = workspace
        self._command = command
        self._folder = folder
        files, trees = store.untrusted_paths()
        self._blobs = _blobs_of(islice(files, _MAX_FILES)) if "git" in command else {}
        self._watch: ReadWatcher | None = None
        self._documents = frozenset(store.documents_in(command, folder))
        self._before = {name: status for name in (*files, *trees) if (status := _stat(name)) is not None}
        try:
            self._watch = ReadWatcher((*files, *self._documents), _folders_in(trees))
        except OSError:
            return  # without a watch, everything counts as read

    def provenance(self, printed: str) -> Provenance | None:
        """The least trusted provenance read so far, given the command's output; None if it is the owner's."""
        self._follow_renames()
        read = self._watch.paths() if self._watch is not None else None
        files = self._all_untrusted() if read is None else self._shown_of(read, printed)
        marks = [self._store.of(Path(name)) for name in files]
        if self._shows_documents(read):
            marks.append(Provenance.PERSON)
        if "git" in self._command:
            self._follow_into_git(read if read is not None else self._before)
            headers = "\n".join(_IN_DIFF.findall(printed))
            marks.append(self._store.named_in(headers) if headers else None)
        untrusted = [mark for mark in marks if mark is not None]
        return least_trusted(untrusted) if untrusted else None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _shown_of(self, read: set[str], printed: str) -> set[str]:
        """The files read whose content may be in the output."""
        from nanobot.security.shell.file_runs import names_its_sources

        if 0 < len(printed) < _SHOWN_WHOLE and names_its_sources(self._command):
            return {name for name in read if os.path.basename(name) in printed}  # noqa: PTH119 of many
        return read

    def _shows_documents(self, read: set[str] | None) -> bool:
        from nanobot.security.shell.parse import read_line
        from nanobot.security.shell.wrappers import expand_wrappers

        if self._documents and (read is None or not self._documents.isdisjoint(read)):
            return True
        return any(command.name in _READERS for command in expand_wrappers(read_line(self._command)))

    def _follow_renames(self) -> None:
        """Mark files that were moved or linked under their new names. Raises StorageError."""
        moved = {
            (before.st_dev, before.st_ino): name
            for name, before in self._before.items()
            if (now := _stat(name)) is None or now.st_nlink > before.st_nlink or now.st_ino != before.st_ino
        }
        if not moved:
            return
        marks = {name: self._store.of(Path(name)) for name in moved.values()}
        for entry in islice(_entries(self._workspace), _MAX_ENTRIES):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                name = moved.get((status.st_dev, status.st_ino))
                if name is not None and entry.path != name and (mark := marks[name]) is not None:
                    self._store.mark(Path(entry.path), mark)

    def _follow_into_git(self, read: Iterable[str]) -> None:
        """Mark git's copies of such files, which are named by their content: a later `git show` reads them."""
        for name, ids in [*self._blobs.items(), *_blobs_of(read).items()]:
            mark = self._store.of(Path(name))
            parents = Path(name).parents
            objects = next((parent / ".git" / "objects" for parent in parents if (parent / ".git").is_dir()), None)
            if objects is None or mark is None:
                continue
            for blob in (objects / blob_id[:2] / blob_id[2:] for blob_id in ids):
                if blob.is_file():
                    self._store.mark(blob, mark)

    def _all_untrusted(self) -> list[str]:
        files, trees = self._store.untrusted_paths()
        return [*files, *(name for tree in trees for name in islice(_files_in(tree), _MAX_FILES))]


def _blobs_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The git object ids of these files by path, for SHA-1 and SHA-256; empty files are left out, being no one's."""
    ids: dict[str, list[str]] = {}
    for name in names:
        with suppress(OSError):
            file = Path(name)
            if 0 < file.stat().st_size <= _MAX_BLOB and file.is_file():
                content = file.read_bytes()
                blob = b"blob %d\0" % len(content) + content
                ids[name] = [make(blob, usedforsecurity=False).hexdigest() for make in (sha1, sha256)]
    return ids


def _folders_in(trees: list[str]) -> Iterator[str]:
    """These folders and all below them. Raises OSError if there are too many."""
    for count, (folder, _, _) in enumerate(entry for tree in trees for entry in os.walk(tree)):
        if count == _MAX_FOLDERS:
            raise OSError("Too many folders to watch.")
        yield folder


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name, follow_symlinks=False)  # noqa: PTH116 of many
    except OSError:
        return None


def _entries(folder: str | Path) -> "Iterator[os.DirEntry[str]]":
    """All entries below a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def _files_in(tree: str) -> Iterator[str]:
    for folder, _, names in os.walk(tree):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 of many
