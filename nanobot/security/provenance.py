"""Provenance of files: which ones hold untrusted content, because of what was in play when they were written.

Such a file stays untrusted, in whatever session and however much later it is read. A file without a mark is
the owner's.

Marks are stored in one JSON file, by path. Writing a file without untrusted content in play removes its mark. A deleted
file keeps it for a while, since it may come back from a backup. The mark of a folder applies to everything in it.
Attachments, stored conversations and spilled tool results are recognized by their location.
"""

import json
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatch
from glob import iglob
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.files.paths import AUTORUN_FOLDERS, READ_LATER, is_autorun
from nanobot.security.files.prefix_set import fold_case
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

if TYPE_CHECKING:
    from nanobot.security.file_reads import FileReadWatcher

log = logging.getLogger(__name__)

IN_PART = {
    Provenance.MCP: "(In part from a tool of somebody else's.)",
    Provenance.PERSON: "(In part from somebody else than the owner.)",
}
"""Appended to an entry of the history log whose conversation contained untrusted content."""

_DOCUMENTS = (
    ".pdf", ".doc", ".docx", ".xls", ".xlsx", ".ppt", ".pptx", ".odt", ".ods", ".odp", ".rtf", ".epub", ".eml",
)  # fmt: skip
"""Documents are other people's content wherever they lie."""
_WORD = re.compile(r"[^\s;|&<>()'\"`$=]+")
_GLOB = frozenset("*?[")
_CHANGES_TO = re.compile(r"\b(?:cd|pushd)\s+([^\s;|&<>()'\"`$]+)")
_MAX_MARKS = 20_000
"""Approximate limit of stored marks."""
_OTHERS_FOLDERS = (
    ("/var/log", Provenance.WEB),
    ("/var/mail", Provenance.MAIL),
    ("/var/spool/mail", Provenance.MAIL),
    ("~/Mail", Provenance.MAIL),
    ("~/Maildir", Provenance.MAIL),
    ("~/.mail", Provenance.MAIL),
    ("~/Library/Mail", Provenance.MAIL),
    ("~/Downloads", Provenance.WEB),
)
"""Folders where programs store what others have sent or written; inside the workspace files are marked one by one."""
_MAX_WORDS = 200
"""Limit of words of a command, and of matches of a pattern, that are looked up."""
_STORED = re.compile(rb'"(?:own_)?provenance": ?"(\w+)"')
_MAX_SESSION = 16 * 1024 * 1024
_SPILLED = re.compile(r"-(mcp|person|mail|web)-\d+\.txt$")
"""The name of a file with a tool result that was too long for a request and contained untrusted content."""


class ProvenanceStore:
    """The marks, shared with other processes of this data folder. Methods block briefly."""

    def __init__(self, path: Path, media: Path, workspace: Path | None = None) -> None:
        """`media` holds attachments, in a folder for each channel: other people's content without a mark."""
        self.path = path
        self._media = Path(os.path.realpath(media))
        self._workspace = None if workspace is None else Path(os.path.realpath(workspace))
        expand = os.path.expanduser  # without a home nothing matches
        self._outside = tuple((f"{os.path.realpath(expand(path))}{os.sep}", mark) for path, mark in _OTHERS_FOLDERS)
        self._stamp: tuple[int, int] | None = None
        self._marks: dict[str, Provenance] = {}

    @property
    def is_sound(self) -> bool:
        """Whether the file of marks can be read; a missing one counts as empty."""
        return self._read() is not None

    def of(self, file: Path) -> Provenance | None:
        """The provenance of a file's content; None if it is the owner's. Never raises.

        If the marks cannot be read, every file counts as web content; the log says so once.
        """
        real = _key(file)
        if (provenance := self._by_location(real)) is not None:
            return provenance
        marks = self._read()
        if marks is None:
            return Provenance.WEB
        return None if marks.get(real) is Provenance.OWNER else _nearest(marks, real) or self._by_outside_folder(real)

    def named_in(self, command: str, folder: Path | None = None) -> Provenance | None:
        """The least trusted provenance of the files that a command names, directly or by a pattern.

        `folder` is its working directory.
        """
        if self._read() is None:
            return Provenance.WEB
        untrusted = self._files_in(command, folder)
        return least_trusted(untrusted.values()) if untrusted else None

    def find_untrusted_source(self, command: str, folder: Path) -> tuple[Provenance, str] | None:
        """Whose words a command that runs in this folder may do, or may put where later turns read them, since it names
        or runs a file that holds them, and which file that is; None where it only shows and moves such files.
        """
        from nanobot.security.shell.file_runs import (  # imported late: rarely needed
            files_run_by_convention,
            never_runs_files,
        )

        marks = self._read()
        if marks is None:
            return Provenance.WEB, str(self.path)
        untrusted = self._files_in(command, folder)
        if untrusted and never_runs_files(command) and not self._may_persist(command, folder):
            untrusted = {}
        if marks and (patterns := files_run_by_convention(command, folder)):
            root = _key(folder if self._workspace is None else self._workspace) + os.sep
            untrusted |= {
                file: mark
                for file, mark in marks.items()
                if is_outside(mark) and file.startswith(root) and any(_matches(file, pattern) for pattern in patterns)
            }
        if not untrusted:
            return None
        worst = least_trusted(untrusted.values())
        return worst, next(file for file, mark in untrusted.items() if mark is worst)

    def reading(self, command: str, folder: Path, words: Provenance | None) -> "FileReadWatcher":
        """Watch which marked files a command reads that is about to run in this folder. Close the result.

        `words` is the provenance of the command itself or of what it downloads, if untrusted: files that it names as
        output are marked at once, so that a crash leaves none unmarked. Raises StorageError.
        """
        from nanobot.security.file_reads import FileReadWatcher  # imported late: only commands need them
        from nanobot.security.shell.file_runs import files_written

        if words is not None:
            for file in files_written(command, folder):
                self.mark(file, words)
        return FileReadWatcher(self, command, folder, self._workspace or folder)

    def untrusted_paths(self) -> tuple[list[str], list[str]]:
        """Files that may hold untrusted content, and folders in which all files may."""
        marks = self._read() or {}
        outside = [name for name, mark in marks.items() if is_outside(mark) and not name.endswith(_GIT)]
        trees = [name for name in outside if os.path.isdir(name)]  # noqa: PTH112 of many
        files, own = list(set(outside).difference(trees)), self._workspace
        if own is not None:
            files.append(str(own / "memory" / "HISTORY.md"))
            trees += [str(own / "sessions"), str(own / ".nanobot" / "spill")]
        return files, [*trees, str(self._media)]

    def documents_in(self, command: str, folder: Path) -> list[str]:
        """The documents that a command names, directly or by a pattern: they count as other people's content."""
        if not any(ending in command.lower() for ending in _DOCUMENTS):
            return []
        from nanobot.security.shell.file_runs import unquoted_words

        words = [*dict.fromkeys([*_WORD.findall(command), *unquoted_words(command)])]
        return [path for path in _paths_of(words, command, folder) if path.lower().endswith(_DOCUMENTS)]

    def mark(self, file: Path, provenance: Provenance) -> None:
        """Lower the trust in a file to this provenance. Raises StorageError."""
        self._change([(_key(file), provenance)])

    def mark_changed(
        self, folders: Iterable[Path], since_ns: int, provenance: Provenance, brings_trees: bool = False
    ) -> None:
        """Lower the trust in all files of these folders that changed since then (`time.time_ns`).

        For commands, whose writes are not observed. A folder with only new files gets one mark. `brings_trees`: the
        command fetched or unpacked something, so folders named like packages and caches are searched too, and a new
        repository has foreign commits. Raises StorageError.
        """
        roots = dict.fromkeys(map(_key, folders))
        own = {root: _OWN_FOLDERS if Path(root) == self._workspace else frozenset[str]() for root in roots}
        since_ns -= _TICK_NS
        changed = [
            name
            for root in roots
            for name in _find_changed(root, since_ns, skip=own[root], brings_trees=brings_trees)[0]
        ]
        if changed:
            self._change([(name, provenance) for name in changed])

    def clear(self, file: Path) -> None:
        """Remove the mark: the file was rewritten completely from trusted content. Raises StorageError."""
        marks, real = self._read() or {}, _key(file)
        if _nearest(marks, str(Path(real).parent)) is not None or self._by_outside_folder(real) is not None:
            self._change([(real, Provenance.OWNER)])  # overrides the mark of its folder
        elif real in marks:
            self._change([(real, None)])

    def _change(self, changes: Iterable[tuple[str, Provenance | None]]) -> None:
        try:
            make_private_folder(self.path.parent)
            with file_lock(self.path.with_suffix(".lock")):
                marks = self._read()
                if marks is None:
                    raise StorageError(
                        f"{self.path} cannot be read. Move it away; the files it listed count as yours then."
                    )
                marks = dict(marks)
                for name, provenance in changes:
                    before = marks.pop(name, None)
                    if provenance is Provenance.OWNER:
                        marks[name] = provenance
                    elif provenance is not None:
                        marks[name] = least_trusted(filter(None, [before, provenance]))
                payload = json.dumps({"version": 1, "files": _limit(marks)}, ensure_ascii=True)
                write_atomic(self.path, payload + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error

    def _files_in(self, command: str, folder: Path | None) -> dict[str, Provenance]:
        """The untrusted files that a command names, with their provenance."""
        from nanobot.security.shell.file_runs import unquoted_words  # imported late: takes 5 ms

        marks = self._read() or {}
        words = [*dict.fromkeys([*_WORD.findall(command), *unquoted_words(command)])]
        patterns = [word.rpartition("/")[2] for word in words if set(word) & _GLOB]
        text = "\n".join([command, *words])
        untrusted = {
            file: mark
            for file, mark in marks.items()
            if is_outside(mark)
            and (_is_named(name := file.rpartition(os.sep)[2], text) or any(fnmatch(name, glob) for glob in patterns))
        }
        for path in islice(_paths_of(words, command, folder), _MAX_WORDS):
            if path not in untrusted and (mark := self.of(Path(path))) is not None:
                untrusted[path] = mark
        for path in islice(_paths_of(words, command, folder, exists=os.path.isdir), _MAX_WORDS):
            if (mark := self._by_outside_folder(_key(Path(path)))) is not None:
                untrusted[path] = mark
        for path in _repositories(command, folder):
            if (mark := self.of(Path(path, "HEAD"))) is not None:
                untrusted[path] = mark
        return untrusted

    def _may_persist(self, command: str, folder: Path) -> bool:
        """Whether a command names or runs in a path that later turns read, or may write files that programs run by
        themselves."""
        from nanobot.security.shell.file_runs import files_written, output_words, unquoted_words

        here = _inside(_key(folder), self._workspace) if self._workspace is not None else ()
        words = {
            fold_case(part)
            for word in (*_WORD.findall(command), *unquoted_words(command), *here)
            for part in _parts(word)
        }
        patterns = {fold_case(part) for word in output_words(command) for part in _parts(word) if set(part) & _GLOB}
        enters = {fold_case(part) for word in (*_CHANGES_TO.findall(command), *here) for part in _parts(word)}
        return (
            not words.isdisjoint(READ_LATER)
            or any(fnmatch(name, pattern) for name in READ_LATER for pattern in patterns)
            or not enters.isdisjoint(AUTORUN_FOLDERS)
            or any(is_autorun(file) for file in files_written(command, folder))
        )

    def _by_location(self, real: str) -> Provenance | None:
        """The provenance that follows from a file's location."""
        if inside := _inside(real, self._media):
            return Provenance.MAIL if inside[0] == "email" else Provenance.PERSON
        inside = () if self._workspace is None else _inside(real, self._workspace)
        if inside[:1] == ("sessions",) and inside[1:]:
            return _of_session(real)
        if inside == ("memory", "HISTORY.md"):
            return _of_log(real)
        if inside[:2] == ("memory", "chats"):
            return Provenance.PERSON
        if inside[:2] == (".nanobot", "spill") and (spilled := _SPILLED.search(inside[-1])):
            return Provenance(spilled[1])
        return None

    def _by_outside_folder(self, real: str) -> Provenance | None:
        """The provenance of a path outside of the workspace that follows from its folder."""
        if self._workspace is not None and f"{real}{os.sep}".startswith(f"{self._workspace}{os.sep}"):
            return None
        return next((mark for folder, mark in self._outside if f"{real}{os.sep}".startswith(folder)), None)

    def _read(self) -> dict[str, Provenance] | None:
        """The current marks; None if they cannot be read."""
        try:
            status = self.path.stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp != self._stamp:
                files = json.loads(self.path.read_text(encoding="utf-8"))["files"]
                self._marks = {str(name): least_trusted([str(mark)]) for name, mark in files.items()}
                self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._marks = None, {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            if self._stamp != _BROKEN:
                log.warning("%s cannot be read, so every file counts as untrusted: %s", self.path, error)
            self._stamp = _BROKEN
            return None
        return self._marks


_BROKEN = (-1, -1)


def _find_changed(
    folder: str, since_ns: int, *, skip: frozenset[str] | None = None, brings_trees: bool = False
) -> tuple[list[str], bool]:
    """The files in a folder that were made, written or renamed since then, and whether these are all its files.

    `skip`: subfolders that the top folder leaves out; it never gets a mark as a whole. Folders of packages and caches
    are searched if a command `brings_trees`. Otherwise they are skipped, since installing and running programs fills
    them, unless they are as new as the folder around them.
    """
    changed: list[str] = []
    packages: list[str] = []
    whole = True
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if folder.endswith(_GIT) and entry.name != "hooks":
                    continue
                if folder.endswith(_HOOKS) and entry.name.endswith(".sample"):
                    continue  # git creates them and runs none of them
                if entry.is_dir(follow_symlinks=False):
                    if skip and entry.name in skip:
                        continue
                    if entry.name in _PACKAGE_FOLDERS and not brings_trees:
                        packages.append(entry.path)
                        continue
                    if brings_trees and entry.name == ".git" and _is_new_repository(entry.path, since_ns):
                        changed.append(entry.path)
                    below, is_whole = _find_changed(entry.path, since_ns, brings_trees=brings_trees)
                    changed += below
                    whole = whole and is_whole
                elif entry.is_file(follow_symlinks=False):
                    if _is_new(entry.stat(follow_symlinks=False), since_ns):
                        changed.append(entry.path)
                    else:
                        whole = False
    except OSError:
        return changed, False  # it vanished, or we cannot read it either
    if whole and skip is None:
        changed += [package for package in packages if _holds_only_new(package, since_ns)]
    return ([folder] if whole and len(changed) > _MANY and skip is None else changed), whole


def _is_new(status: os.stat_result, since_ns: int) -> bool:
    """Whether a file was made, written or renamed since then. On Windows ctime is the time of creation."""
    return max(status.st_ctime_ns, status.st_mtime_ns) >= since_ns


def _holds_only_new(folder: str, since_ns: int) -> bool:
    """Whether a folder holds files, all of them new."""
    count = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                if not _is_new(os.lstat(os.path.join(parent, name)), since_ns):  # noqa: PTH118 of many
                    return False
                count += 1
    return count > 0


def _is_new_repository(git: str, since_ns: int) -> bool:
    """Whether this `.git` was made since then: later commands change HEAD or config, never both."""
    try:
        return all(_is_new(os.stat(os.path.join(git, name)), since_ns) for name in ("HEAD", "config"))  # noqa: PTH116, PTH118
    except OSError:
        return False


def _limit(marks: dict[str, Provenance]) -> dict[str, Provenance]:
    """Reduce the marks to the limit. The smallest folder with enough marked files gets one mark for all, so a file may
    become less trusted, never more. Marks of the owner's files stay.
    """
    while len(marks) > _MAX_MARKS:
        spare = len(marks) - _MAX_MARKS + _MAX_MARKS // 10  # leaves room for the next marks
        below: Counter[str] = Counter()
        for name, mark in marks.items():
            folder = os.path.dirname(name) if is_outside(mark) else ""  # noqa: PTH120 part of a text
            while folder not in ("", os.path.dirname(folder)):  # noqa: PTH120
                below[folder] += 1
                folder = os.path.dirname(folder)  # noqa: PTH120
        most = max(below.values(), default=0)
        if most < 2:
            break  # all of them are the owner's
        wanted = min(spare, most)
        folder = min((path for path in below if below[path] >= wanted), key=lambda path: (below[path], -len(path)))
        log.warning("Too many files with untrusted content to list each: everything in %s counts as such now.", folder)
        merged = {name: mark for name, mark in marks.items() if is_outside(mark) and name.startswith(folder + os.sep)}
        mark = least_trusted([*merged.values(), marks.get(folder, Provenance.OWNER)])
        marks = {name: mark for name, mark in marks.items() if name not in merged} | {folder: mark}
    return marks


_TICK_NS = 20_000_000
"""File times may lag behind the clock by this much."""
_MANY = 20
"""More new files than this in a folder of new files share one mark."""
_OWN_FOLDERS = frozenset({"sessions", "cron", ".nanobot"})
"""Folders of a workspace that nanobot itself writes."""
_PACKAGE_FOLDERS = frozenset({
    ".venv", "venv", "node_modules", "site-packages", "__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache",
    ".tox", ".cache",
})  # fmt: skip
"""Folders of installed packages and caches."""
_GIT = f"{os.sep}.git"
"""git's own folder; only its hooks are content."""
_HOOKS = f"{_GIT}{os.sep}hooks"


def _nearest(marks: Mapping[str, Provenance], real: str) -> Provenance | None:
    """The mark of a file or of the nearest folder around it; None if it is the owner's."""
    mark = marks.get(real)
    while marks and mark is None and (real := os.path.dirname(real)) not in ("", os.sep):  # noqa: PTH120 part of a text
        mark = marks.get(real)
    return mark if mark is not None and is_outside(mark) else None


def _of_session(real: str) -> Provenance | None:
    """The least trusted provenance in a stored conversation; PERSON if it names none."""
    try:
        with Path(real).open("rb") as file:
            text = file.read(_MAX_SESSION + 1)
    except OSError:
        return None
    if len(text) > _MAX_SESSION:
        return Provenance.WEB
    provenance = least_trusted([value.decode() for value in set(_STORED.findall(text))] or [Provenance.PERSON])
    return provenance if is_outside(provenance) else None


def _of_log(real: str) -> Provenance | None:
    """The least trusted provenance that the entries of the history log name."""
    try:
        text = Path(real).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    kinds = [kind for kind, remark in IN_PART.items() if remark in text]
    return least_trusted(kinds) if kinds else None


def _is_named(name: str, text: str) -> bool:
    """Whether a command contains this file name as a word of its own."""
    return name in text and re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text) is not None


def _parts(word: str) -> list[str]:
    return re.split(r"[\\/]", word)


def _matches(file: str, pattern: str) -> bool:
    return fnmatch(file if "/" in pattern else file.rpartition(os.sep)[2], pattern)


def _bases_of(command: str, folder: Path) -> list[Path]:
    """The working directory of a command, and the folders it changes to."""
    targets = _CHANGES_TO.findall(command)
    return [folder, *(folder / (Path(target).name if target.startswith("~") else target) for target in targets)]


def _repositories(command: str, folder: Path | None) -> Iterator[str]:
    """The git folders of the repositories whose history a command shows."""
    if folder is None or ("git" not in command and "tig" not in command):
        return
    from nanobot.security.shell.file_runs import shown_histories

    for repository in shown_histories(command):
        for base in _bases_of(command, folder) if "\0" not in repository else ():
            path = Path(os.path.realpath(base / os.path.expanduser(repository)))  # noqa: PTH111 never raises
            yield from islice(filter(None, map(_git_folder_of, (path, *path.parents))), 1)


def _git_folder_of(folder: Path) -> str | None:
    """The git folder of the repository whose top, or bare repository, this folder is."""
    git = str(folder / ".git")
    if os.path.isdir(git):  # noqa: PTH112 a name of any length
        return git
    if os.path.isfile(git):  # noqa: PTH113 a submodule or an additional worktree
        with suppress(OSError):
            return os.path.realpath(folder / Path(git).read_text(errors="replace").removeprefix("gitdir:").strip())
    is_bare = os.path.isfile(folder / "HEAD") and os.path.isdir(folder / "objects")  # noqa: PTH112, PTH113
    return str(folder) if is_bare else None


def _paths_of(
    words: Iterable[str], command: str, folder: Path | None, exists: Callable[[str], bool] = os.path.isfile
) -> Iterator[str]:
    """Existing paths that these words of a command name, relative to its working directory or where it changes to."""
    if folder is None:
        return
    bases = _bases_of(command, folder)
    for word in words:
        if "\0" in word or len(word) > 4_000:
            continue
        for base in bases:
            # as text: the command may create the folder first, and the word may be no path at all
            path = os.path.normpath(os.path.join(base, os.path.expanduser(word)))  # noqa: PTH111, PTH118
            if set(word) & _GLOB:
                yield from islice(iglob(path), _MAX_WORDS)  # noqa: PTH207 as a shell does it
            elif exists(path):
                yield path


def _key(file: Path) -> str:
    return os.path.realpath(file)


def _inside(real: str, folder: Path) -> tuple[str, ...]:
    """The parts of a path below a folder; empty if it lies elsewhere."""
    path = Path(real)
    return path.relative_to(folder).parts if path.is_relative_to(folder) and path != folder else ()
