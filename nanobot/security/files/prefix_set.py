"""A set of files and folders, and whether a path lies in one of them, by name and by what the file system says.

Links are followed, also those made later. Where letter case or Unicode normalization may make two names one file, the
file system is asked; where it cannot answer, the names count as equal.
"""

import itertools
import os
import stat
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FRESH_S = 0.05
"""Seconds a resolution is used without a check: a call checks the same path several times."""
_TRUSTED_S = 5.0
"""Seconds a resolution is used while no parent folder has changed."""
_MAX_FILES = 200_000
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that HFS+ leaves out when it compares names (Apple's Technical Note TN1150)."""


def key_of(path: str | os.PathLike[str]) -> str:
    """A real path as this host compares it: without case on macOS and Windows."""
    text = os.path.normcase(path)
    return fold_case(text) if sys.platform == "darwin" else text


def fold_case(text: str) -> str:
    """A name without differences that some file systems ignore: letter case, Unicode normalization."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold().translate(_IGNORED))


def with_parents(path: str) -> Iterator[str]:
    """A path and every folder above it."""
    while True:
        yield path
        above = os.path.dirname(path)  # noqa: PTH120 - a tenth of the cost of Path.parent
        if above == path:
            return
        path = above


class _Resolved(NamedTuple):
    """The paths of a set as they were resolved at a time. `names` are the given and the resolved ones."""

    at: float
    stamps: list[int]
    names: frozenset[str]
    exact: frozenset[str]
    similar: dict[str, str]


class PrefixSet:
    """Files and folders, resolved again when a parent folder has changed. Safe to use from several threads."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._given = tuple(dict.fromkeys(os.path.abspath(path.expanduser()) for path in paths))  # noqa: PTH100
        self._watched = sorted(_folders_above(self._given))
        self._resolved: _Resolved | None = None
        self._checked_at = 0.0
        self._inodes: tuple[float, dict[int, list[str]]] | None = None

    def __bool__(self) -> bool:
        return bool(self._given)

    def contains(self, real: str | os.PathLike[str]) -> bool:
        """Whether a real path is one of these paths or inside one."""
        return self.find_prefix(real) is not None

    def find_prefix(self, real: str | os.PathLike[str]) -> str | None:
        """The path of this set that contains the real path. Similar names count unless the file system denies it."""
        if not self._given:
            return None
        resolved = self._resolve()
        for path in with_parents(os.fspath(real)):
            if key_of(path) in resolved.exact:
                return path
            similar = resolved.similar.get(fold_case(path))
            if similar is not None and _may_be_same_file(path, similar):
                return similar
        return None

    def contains_exactly(self, real: str | os.PathLike[str]) -> bool:
        """Whether it certainly lies in one of these paths: similar names do not give access."""
        exact = self._resolve().exact
        return any(key_of(path) in exact for path in with_parents(os.fspath(real)))

    @property
    def names(self) -> frozenset[str]:
        """The paths, as given and resolved."""
        return self._resolve().names

    def below(self, real: str | os.PathLike[str]) -> Iterator[str]:
        """The paths inside this folder, relative to it, with `/`."""
        inside = os.fspath(real).rstrip(os.sep) + os.sep
        for name in sorted(self._resolve().names):
            if key_of(name).startswith(key_of(inside)):
                yield name[len(inside) :].replace(os.sep, "/")

    def other_name_of(self, status: os.stat_result) -> str | None:
        """The file below these paths that is a hard link of the given one, if any.

        Scans all of them; the result of the scan is reused for a few seconds.
        """
        now = time.monotonic()
        if self._inodes is None or now - self._inodes[0] > _TRUSTED_S:
            self._inodes = (now, self._by_inode())
        for path in self._inodes[1].get(status.st_ino, ()):
            with suppress(OSError):
                if os.path.samestat(status, os.lstat(path)):
                    return path
        return None

    def _resolve(self) -> _Resolved:
        now, resolved = time.monotonic(), self._resolved
        if resolved is not None and now - self._checked_at < _FRESH_S:
            return resolved
        stamps = [_mtime(folder) for folder in self._watched]
        self._checked_at = now
        if resolved is None or resolved.stamps != stamps or now - resolved.at > _TRUSTED_S:
            # a link belongs to the set by its own name too, so that nobody can replace it
            names = frozenset(follow_all(self._given)).union(self._given)
            exact = frozenset(map(key_of, names))
            resolved = self._resolved = _Resolved(now, stamps, names, exact, {fold_case(name): name for name in names})
        return resolved

    def _by_inode(self) -> dict[int, list[str]]:
        paths: dict[int, list[str]] = {}
        waiting, count = sorted(self._resolve().names), 0
        while waiting and count < _MAX_FILES:
            path = waiting.pop()
            with suppress(OSError):
                if not stat.S_ISDIR((status := os.lstat(path)).st_mode):
                    paths.setdefault(status.st_ino, []).append(path)
                    continue
                with os.scandir(path) as entries:
                    for entry in entries:
                        count += 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        else:
                            paths.setdefault(entry.inode(), []).append(entry.path)
        return paths


def follow_all(paths: Iterable[str]) -> Iterator[str]:
    """Resolve absolute paths, a folder that several of them share once."""
    known: dict[str, str] = {}

    def resolve(path: str) -> str:
        if path not in known:
            folder, name = os.path.split(path)
            if not name:
                known[path] = path  # the root
            else:
                real = os.path.join(resolve(folder), name)  # noqa: PTH118
                known[path] = os.path.realpath(real) if os.path.islink(real) else real  # noqa: PTH114
        return known[path]

    # Windows has several names for one file
    return map(os.path.realpath if os.name == "nt" else resolve, paths)


def _folders_above(paths: Iterable[str]) -> set[str]:
    folders: set[str] = set()
    for path in paths:
        for above in itertools.islice(with_parents(path), 1, None):
            if above in folders:
                break
            folders.add(above)
    return folders


def _mtime(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _may_be_same_file(path: str, other: str) -> bool:
    """Whether two similar names may be one file: as the file system says, and yes if neither exists."""
    with suppress(OSError):
        return os.path.samestat(os.lstat(path), os.lstat(other))
    return not os.path.lexists(path) and not os.path.lexists(other)
