"""Which untrusted files a command reads, named or not: `grep -r`, `$(ls)`, `make`, a script.

The kernel reports it on Linux, with inotify(7): opening to read, map or run counts; stat, listing and writing do not.
Elsewhere every command counts as having read all untrusted files.
"""

import os
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from hashlib import sha1, sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.messages.types import Provenance, least_trusted

if TYPE_CHECKING:
    import ctypes

DOCUMENTS = (
    ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".ods", ".odp", ".rtf", ".epub", ".eml",
)  # fmt: skip
"""Documents are other people's content wherever they lie, once a command reads them."""
_READERS = re.compile(
    r"\b(?:antiword|catdoc|catppt|docx2txt|libreoffice|mutool|ocrmypdf|odt2txt|pdf2txt|pdfgrep|pdftohtml|pdftotext|soffice|"
    r"tesseract|unrtf|xls2csv|xlsx2csv)\b"
)
"""Programs that print the content of documents and pictures."""
_MAX_FOLDERS = 1_000
_MAX_FILES = 500
"""Files untrusted by location (attachments, conversations) that are checked one by one."""
_MAX_ENTRIES = 50_000
"""Workspace entries searched for a renamed file."""
_MAX_BLOB = 4 * 1024 * 1024
_SHOWN_WHOLE = 8_000
"""Characters of output that the model sees completely; the rest of longer output is in a file it has not read."""
_OBJECTS = f"{os.sep}.git{os.sep}objects{os.sep}"
_READ = 0x1 | 0x10  # IN_ACCESS, IN_CLOSE_NOWRITE
_OVERFLOW, _FOLDER, _ONCE = 0x4000, 0x4000_0000, 0x8000_0000
_EVENT = struct.Struct("iIII")
_BUFFER = 64 * 1024


class ReadWatcher:
    """Watches files, and the direct contents of folders, until `close`. Methods block briefly."""

    def __init__(self, files: Iterable[str], folders: Iterable[str] = ()) -> None:
        """Missing files are skipped. Raises OSError if watching is not possible, or not for so many files."""
        self._kernel = _kernel()
        self._descriptor = int(self._kernel.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))
        if self._descriptor < 0:
            raise OSError("The limit of inotify instances is reached.")
        self._watched: dict[int, str] = {}
        try:
            for name in files:
                self._watch(name, _READ | _ONCE)
            for name in folders:
                self._watch(name, _READ)
        except OSError:
            self.close()
            raise

    def paths(self) -> set[str] | None:
        """The paths read since the last call; None if the event queue overflowed."""
        read_paths: set[str] = set()
        while data := _read_events(self._descriptor):
            position = 0
            while position < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, position)
                name = os.fsdecode(data[position + _EVENT.size : position + _EVENT.size + length].rstrip(b"\0"))
                position += _EVENT.size + length
                if mask & _OVERFLOW:
                    return None
                if mask & _READ and not mask & _FOLDER and number in self._watched:
                    read_paths.add(os.path.join(self._watched[number], name) if name else self._watched[number])  # noqa: PTH118
        return read_paths

    def close(self) -> None:
        """Stop watching. Call once. The kernel takes 15 ms for it, which nobody waits for."""
        threading.Thread(target=os.close, args=(self._descriptor,), name="stop-watching").start()

    def _watch(self, name: str, mask: int) -> None:
        import ctypes

        number = self._kernel.inotify_add_watch(self._descriptor, os.fsencode(name), mask)
        if number >= 0:
            self._watched[number] = name
        elif not isinstance(error := OSError(ctypes.get_errno(), "It cannot be watched"), _UNREADABLE):
            raise error


_UNREADABLE = (FileNotFoundError, NotADirectoryError, PermissionError)
"""Files that we cannot open cannot be read by processes with no more rights than ours."""


@cache
def _kernel() -> "ctypes.CDLL":
    if sys.platform != "linux":
        raise OSError("This system does not report which files are opened.")
    import ctypes  # slow import (5 ms)

    return ctypes.CDLL(None, use_errno=True)


def _read_events(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BUFFER)
    except BlockingIOError:
        return b""


class FileReadWatcher:
    """Watches one command, from before it starts until `close`. A renamed or linked file is recognized by its inode."""

    def __init__(
        self,
        provenance_of: Callable[[Path], Provenance | None],
        mark: Callable[[Path, Provenance], None],
        command: str,
        workspace: Path,
        files: Iterable[str],
        trees: Iterable[str],
    ) -> None:
        """`mark` lowers the trust in a file. `files`, and all in `trees`, may hold untrusted content."""
        self._provenance_of, self._mark = provenance_of, mark
        self._command = command
        self._workspace = workspace
        self._files, self._trees = [*files], [*trees]
        self._blobs = _blobs_of(self._files[:_MAX_FILES]) if "git" in command else {}
        self._before = {name: status for name in (*self._files, *self._trees) if (status := _stat(name)) is not None}
        try:
            self._watch: ReadWatcher | None = ReadWatcher(self._files, _folders_in(self._trees))
        except OSError:
            self._watch = None  # everything counts as read

    def provenance(self, printed: str) -> Provenance | None:
        """The least trusted provenance read so far, given the command's output; None if it is the owner's."""
        from nanobot.security.shell.programs import names_its_sources

        self._follow_renames()
        read = self._watch.paths() if self._watch is not None else None
        if read is None:
            read = {*self._files, *(name for tree in self._trees for name in islice(_paths_in(tree), _MAX_FILES))}
        elif 0 < len(printed) < _SHOWN_WHOLE and names_its_sources(self._command):
            read = {name for name in read if os.path.basename(name) in printed}  # noqa: PTH119 of many
        marks = [self._provenance_of(Path(name)) for name in read]
        if any(name.lower().endswith(DOCUMENTS) for name in read) or _READERS.search(self._command):
            marks.append(Provenance.PERSON)
        if "git" in self._command:
            self._follow_into_git(read)
        untrusted = [mark for mark in marks if mark is not None]
        return least_trusted(untrusted) if untrusted else None

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def _follow_renames(self) -> None:
        """Mark files that were moved or linked under their new names. Raises StorageError."""
        moved = {
            (before.st_dev, before.st_ino): name
            for name, before in self._before.items()
            if (now := _stat(name)) is None or now.st_nlink > before.st_nlink or now.st_ino != before.st_ino
        }
        if not moved:
            return
        marks = {name: mark for name in moved.values() if (mark := self._provenance_of(Path(name))) is not None}
        for name, mark in marks.items():
            if _OBJECTS in name and not os.path.exists(name):  # noqa: PTH110 git has packed its copy of the file
                self._mark(Path(name.partition(_OBJECTS)[0] + _OBJECTS, "pack"), mark)
        for path in islice(_paths_in(str(self._workspace)), _MAX_ENTRIES):
            status = _stat(path)
            name = moved.get((status.st_dev, status.st_ino), path) if status is not None else path
            if name != path and name in marks:
                self._mark(Path(path), marks[name])

    def _follow_into_git(self, read: Iterable[str]) -> None:
        """Mark git's copies of such files, which are named by their content: a later `git show` reads them."""
        for name, ids in [*self._blobs.items(), *_blobs_of(read).items()]:
            mark = self._provenance_of(Path(name))
            parents = Path(name).parents
            objects = next((parent / ".git" / "objects" for parent in parents if (parent / ".git").is_dir()), None)
            if objects is None or mark is None:
                continue
            for blob in (objects / blob_id[:2] / blob_id[2:] for blob_id in ids):
                if blob.is_file():
                    self._mark(blob, mark)


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


def _paths_in(tree: str) -> Iterator[str]:
    for folder, folders, files in os.walk(tree):
        yield from (os.path.join(folder, name) for name in (*folders, *files))  # noqa: PTH118 of many
