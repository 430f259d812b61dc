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
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from glob import iglob
from itertools import islice
from pathlib import Path

from nanobot.errors import StorageError
from nanobot.messages.types import Provenance, is_outside, least_trusted
from nanobot.security.file_reads import DOCUMENTS, FileReadWatcher
from nanobot.security.files.paths import AUTORUN_FOLDERS, READ_LATER, is_autorun
from nanobot.security.files.prefix_set import fold_case
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, write_atomic
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error

log = logging.getLogger(__name__)

IN_PART = {
    Provenance.MCP: "(In part from a tool of somebody else's.)",
    Provenance.PERSON: "(In part from somebody else than the owner.)",
}
"""Appended to an entry of the history log whose conversation contained untrusted content."""

_WORD = re.compile(r"[^\s;|&<>()'\"`$=]+")
_GLOB = frozenset("*?[")
_CHANGES_TO = re.compile(r"\b(?:cd|pushd)\s+([^\s;|&<>()'\"`$]+)")
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
"""Limit of paths that a command names, and of matches of a pattern, that are looked up."""
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

    def find_untrusted_source(self, command: str, folder: Path) -> tuple[Provenance, str] | None:
        """Return the untrusted file that a command run in this folder may execute, or copy to where later turns read
        it, and the file's provenance. None if the command only shows or moves such files.
        """
        from nanobot.security.shell.programs import (  # rarely needed
            files_run_by_convention,
            never_runs_files,
        )

        marks = self._read()
        if marks is None:
            return Provenance.WEB, str(self.path)
        untrusted = {}
        if not never_runs_files(command) or self._may_persist(command, folder):
            untrusted = self._files_in(marks, command, folder)
        if marks and (patterns := files_run_by_convention(command, folder)):
            root = _key(folder if self._workspace is None else self._workspace) + os.sep
            untrusted |= {
                file: mark
                for file, mark in marks.items()
                if is_outside(mark)
                and file.startswith(root)
                and any(fnmatch(file if "/" in glob else file.rpartition(os.sep)[2], glob) for glob in patterns)
            }
        if not untrusted:
            return None
        worst = least_trusted(untrusted.values())
        return worst, next(file for file, mark in untrusted.items() if mark is worst)

    def watch_reads(self, command: str, folder: Path, words: Provenance | None) -> FileReadWatcher:
        """Watch which untrusted files a command reads that is about to run in this folder. Close the result.

        `words` is the provenance of the command itself or of what it downloads, if untrusted: files that it names as
        output are marked at once, so that a crash leaves none unmarked. Raises StorageError.
        """
        from nanobot.security.shell.programs import files_written

        if words is not None:
            for file in files_written(command, folder):
                self.mark(file, words)
        marks, own = self._read() or {}, self._workspace
        untrusted = [name for name, mark in marks.items() if is_outside(mark)]
        named = [
            path
            for path in _existing_paths(command, folder)
            if path.lower().endswith(DOCUMENTS) or self._by_outside_folder(_key(Path(path))) is not None
        ]
        trees = {name for name in [*untrusted, *named] if os.path.isdir(name)}  # noqa: PTH112 of many
        files = {*untrusted, *named} - trees
        trees.add(str(self._media))
        if own is not None:
            files.add(str(own / "memory" / "HISTORY.md"))
            trees |= {str(own / "sessions"), str(own / ".nanobot" / "spill")}
        return FileReadWatcher(self.of, self.mark, command, own or folder, files, trees)

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
                payload = json.dumps({"version": 1, "files": marks}, ensure_ascii=True)
                write_atomic(self.path, payload + "\n", mode=PRIVATE_FILE)
        except OSError as error:
            raise storage_error(f"{self.path} cannot be changed", error) from error

    def _files_in(self, marks: Mapping[str, Provenance], command: str, folder: Path) -> dict[str, Provenance]:
        """The untrusted files that a command names, with their provenance."""
        words = _words_of(command)
        text = "\n".join([command, *words])
        patterns = [word.rpartition("/")[2] for word in words if set(word) & _GLOB]
        untrusted = {
            file: mark
            for file, mark in marks.items()
            if is_outside(mark)
            and (_is_named(name := file.rpartition(os.sep)[2], text) or any(fnmatch(name, glob) for glob in patterns))
        }
        for path in _existing_paths(command, folder):
            if path not in untrusted and (mark := self.of(Path(path))) is not None:
                untrusted[path] = mark
        return untrusted

    def _may_persist(self, command: str, folder: Path) -> bool:
        """Whether a command names or runs in a path that later turns read, or may write files that programs run by
        themselves."""
        from nanobot.security.shell.programs import files_written, output_words

        here = _inside(_key(folder), self._workspace) if self._workspace is not None else ()
        words = {fold_case(part) for word in (*_words_of(command), *here) for part in _parts(word)}
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
            return Provenance.WEB if real.endswith(".zip") else _of_session(real)  # packed words name no provenance
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
        changed += [name for name in packages if all(_find_changed(name, since_ns, brings_trees=True))]
    return ([folder] if whole and len(changed) > _MANY and skip is None else changed), whole


def _is_new(status: os.stat_result, since_ns: int) -> bool:
    """Whether a file was made, written or renamed since then. On Windows ctime is the time of creation."""
    return max(status.st_ctime_ns, status.st_mtime_ns) >= since_ns


def _is_new_repository(git: str, since_ns: int) -> bool:
    """Whether this `.git` was made since then: later commands change HEAD or config, never both."""
    try:
        return all(_is_new(os.stat(os.path.join(git, name)), since_ns) for name in ("HEAD", "config"))  # noqa: PTH116, PTH118
    except OSError:
        return False


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


def _words_of(command: str) -> list[str]:
    """All words of a command that may name a file, as written and without quotes."""
    from nanobot.security.shell.programs import unquoted_words  # imported late: takes 5 ms

    return [*dict.fromkeys([*_WORD.findall(command), *unquoted_words(command)])]


def _existing_paths(command: str, folder: Path) -> list[str]:
    """Existing paths that a command names, directly or by a pattern, where it starts or where it changes to."""
    bases = [folder, *(folder / os.path.expanduser(target) for target in _CHANGES_TO.findall(command))]  # noqa: PTH111
    paths: dict[str, None] = {}
    for word in _words_of(command):
        if "\0" in word or len(word) > 4_000:
            continue
        for base in bases:
            # as text: the command may create the folder first, and the word may be no path at all
            path = os.path.normpath(os.path.join(base, os.path.expanduser(word)))  # noqa: PTH111, PTH118
            if set(word) & _GLOB:
                paths |= dict.fromkeys(islice(iglob(path), _MAX_WORDS))  # noqa: PTH207 as a shell does it
            elif os.path.exists(path):  # noqa: PTH110
                paths[path] = None
    return [*islice(paths, _MAX_WORDS)]


def _key(file: Path) -> str:
    return os.path.realpath(file)


def _inside(real: str, folder: Path) -> tuple[str, ...]:
    """The parts of a path below a folder; empty if it lies elsewhere."""
    path = Path(real)
    return path.relative_to(folder).parts if path.is_relative_to(folder) and path != folder else ()
