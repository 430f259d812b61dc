"""Which files with somebody else's words a command reads, named or not: `grep -r`, `$(ls)`, `make`, a script.

Where the kernel tells who opens a file, that is known. Where it does not, a command that may read what it does not name
counts as having read all such files below the folders that it names, and below the one it runs in. A file that it gave
another name, or a second one, is found again by its inode.
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
from nanobot.utils.opened import OpenedFiles

_MOST_FOLDERS = 1_000
_MOST_FILES = 500
"""Files by their place (attachments, conversations) that are asked about one by one."""
_MOST_ENTRIES = 50_000
"""Of a workspace that are looked through for a file under another name."""
_ALL_OF_IT = 8_000
"""Characters that are shown whole: what was too long for a request lies in a file, with words that nobody has seen."""
_READERS = frozenset({
    "antiword", "catdoc", "catppt", "docx2txt", "libreoffice", "mutool", "ocrmypdf", "odt2txt", "pdf2txt.py", "pdfgrep",
    "pdftohtml", "pdftotext", "soffice", "tesseract", "unrtf", "xls2csv", "xlsx2csv",
})  # fmt: skip
"""Programs that print what stands in documents and pictures, whoever names these."""
_LARGEST_BLOB = 4 * 1024 * 1024
_IN_DIFF = re.compile(r"^(?:diff --git|\+\+\+|---|[\w^~./-]+:).*$", re.MULTILINE)
"""Lines of git's that name the file whose older words follow: those lie in no file of that name."""


class Book(Protocol):
    """What is known of files. The methods block."""

    def of(self, file: Path) -> Provenance | None:
        """Whose words it holds; None for the owner's own."""
        ...

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """The least trusted of the files that this text names."""
        ...

    def documents_in(self, command: str, folder: Path) -> list[str]:
        """The documents that it names: somebody's letters, whoever put them there."""
        ...

    def mark(self, file: Path, provenance: Provenance) -> None:
        """From now on the file is at most this trusted. Raises StorageError."""
        ...

    def others_places(self) -> tuple[list[str], list[str]]:
        """Files that may hold somebody else's words, and folders in which all may."""
        ...


class Reading:
    """One command, from before it begins until `close`."""

    def __init__(self, book: Book, command: str, folder: Path, workspace: Path) -> None:
        self._book = book
        self._workspace = workspace
        self._command = command
        self._folder = folder
        files, trees = book.others_places()
        self._blobs = _blobs_of(islice(files, _MOST_FILES)) if "git" in command else {}
        self._watch: OpenedFiles | None = None
        self._documents = frozenset(book.documents_in(command, folder))
        self._stood = {name: found for name in (*files, *trees) if (found := _stat(name)) is not None}
        try:
            self._watch = OpenedFiles((*files, *self._documents), _folders_in(trees))
        except OSError:
            return  # then what it may have read counts

    def words(self, printed: str) -> Provenance | None:
        """The least trusted of what was read until now, `printed` being what the command said; None for the owner's."""
        self._follow()
        read = self._watch.paths() if self._watch is not None else None
        found = [] if read is None else [self._book.of(Path(name)) for name in self._shown_of(read, printed)]
        if read is None:
            found.append(self._within_reach())
        if self._shows_documents(read):
            found.append(Provenance.PERSON)
        if "git" in self._command:
            self._follow_into_git(read if read is not None else self._stood)
            told = "\n".join(_IN_DIFF.findall(printed))
            found.append(self._book.named_in(told) if told else None)
        known = [words for words in found if words is not None]
        return least_trusted(known) if known else None

    def close(self) -> None:
        """It has ended."""
        if self._watch is not None:
            self._watch.close()

    def _shown_of(self, read: set[str], printed: str) -> set[str]:
        """Of what was read, that of which something may be in what was printed."""
        from nanobot.security.shell.runs import names_its_sources

        if 0 < len(printed) < _ALL_OF_IT and names_its_sources(self._command):
            return {name for name in read if os.path.basename(name) in printed}  # noqa: PTH119 of many
        return read

    def _shows_documents(self, read: set[str] | None) -> bool:
        from nanobot.security.shell.words import read_line
        from nanobot.security.shell.wrappers import unwrapped

        if self._documents and (read is None or not self._documents.isdisjoint(read)):
            return True
        return any(one.name in _READERS for one in unwrapped(read_line(self._command)))

    def _follow(self) -> None:
        """What was moved or linked keeps its mark under its new name. Raises StorageError."""
        lost = {
            (before.st_dev, before.st_ino): name
            for name, before in self._stood.items()
            if (now := _stat(name)) is None or now.st_nlink > before.st_nlink or now.st_ino != before.st_ino
        }
        if not lost:
            return
        words = {name: self._book.of(Path(name)) for name in lost.values()}
        for entry in islice(_entries(self._workspace), _MOST_ENTRIES):
            with suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                name = lost.get((found.st_dev, found.st_ino))
                if name is not None and entry.path != name and (mark := words[name]) is not None:
                    self._book.mark(Path(entry.path), mark)

    def _follow_into_git(self, read: Iterable[str]) -> None:
        """What git keeps of such a file is named by its content, and marked there: a later `git show` reads that."""
        for name, ids in [*self._blobs.items(), *_blobs_of(read).items()]:
            words = self._book.of(Path(name))
            kept = next((one / ".git" / "objects" for one in Path(name).parents if (one / ".git").is_dir()), None)
            if kept is None or words is None:
                continue
            for stored in (kept / blob[:2] / blob[2:] for blob in ids):
                if stored.is_file():
                    self._book.mark(stored, words)

    def _within_reach(self) -> Provenance | None:
        from nanobot.security.shell.runs import read_below

        below = [os.path.realpath(self._folder / os.path.expanduser(name)) for name in read_below(self._command)]  # noqa: PTH111
        files, trees = self._book.others_places()
        lying = [name for tree in trees for name in islice(_files_in(tree), _MOST_FILES)]
        near = [name for name in (*files, *lying) if any(_is_below(name, one) for one in below)]
        known = [words for name in near if (words := self._book.of(Path(name))) is not None]
        return least_trusted(known) if known else None


def _blobs_of(names: Iterable[str]) -> dict[str, list[str]]:
    """The names that git gives to what these files hold now; of an empty one none, which is everybody's."""
    found: dict[str, list[str]] = {}
    for name in names:
        with suppress(OSError):
            file = Path(name)
            if 0 < file.stat().st_size <= _LARGEST_BLOB and file.is_file():
                content = file.read_bytes()
                blob = b"blob %d\0" % len(content) + content
                found[name] = [make(blob, usedforsecurity=False).hexdigest() for make in (sha1, sha256)]
    return found


def _is_below(name: str, folder: str) -> bool:
    return name == folder or name.startswith(folder.rstrip(os.sep) + os.sep)


def _folders_in(trees: list[str]) -> Iterator[str]:
    """These folders and those in them. Raises OSError where there are too many."""
    for count, (folder, _, _) in enumerate(found for tree in trees for found in os.walk(tree)):
        if count == _MOST_FOLDERS:
            raise OSError("More folders than are watched.")
        yield folder


def _stat(name: str) -> os.stat_result | None:
    try:
        return os.stat(name, follow_symlinks=False)  # noqa: PTH116 of many
    except OSError:
        return None


def _entries(folder: str | Path) -> "Iterator[os.DirEntry[str]]":
    """All that lies below a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            yield entry
            if entry.is_dir(follow_symlinks=False):
                yield from _entries(entry.path)


def _files_in(tree: str) -> Iterator[str]:
    for folder, _, names in os.walk(tree):
        yield from (os.path.join(folder, name) for name in names)  # noqa: PTH118 of many
