"""A set of places (files and folders), and whether a path lies in one of them: by name, and by what the disk says.

Links are followed to where a place really is, also when they are made later. Where upper and lower case, or two
spellings of the same letters, may mean the same file, the disk is asked; where it cannot say, they are the same.
"""

import errno
import itertools
import os
import stat
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FRESH_S = 0.05
"""How long what was looked up is believed unseen: a call judges the same path several times."""
_TRUSTED_S = 5.0
"""How long it is believed where no folder on the way has changed."""
_MOST_FILES = 200_000
_IGNORED = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])
"""Characters that HFS+ leaves out when it compares names (Apple's Technical Note TN1150)."""


def followed(path: str | os.PathLike[str]) -> str:
    """Where a path really leads, links and `..` included, whether it is there or not. Raises OSError."""
    for again in (True, True, True, True, False):
        try:
            return os.path.realpath(path)
        except OSError as error:
            if error.errno != errno.EINVAL or not again:  # a link that was one no more when it was read
                raise
    raise AssertionError("the last try has raised")


def key_of(path: str | os.PathLike[str]) -> str:
    """A real path as this host compares it. On macOS and Windows case does not count."""
    text = os.path.normcase(path)
    return folded(text) if sys.platform == "darwin" else text


def folded(text: str) -> str:
    """A name without what some file systems do not look at: case, how an accent is put together."""
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).casefold().translate(_IGNORED))


def with_parents(path: str) -> Iterator[str]:
    """A path and every folder above it."""
    while True:
        yield path
        above = os.path.dirname(path)  # noqa: PTH120 - as text it costs a tenth
        if above == path:
            return
        path = above


@dataclass(frozen=True, slots=True)
class _Looked:
    """What was found of some places. The names are where they are said to be, and where they really are."""

    at: float
    stamps: list[int]
    names: frozenset[str]
    exact: frozenset[str]
    alike: dict[str, str]


class PlaceSet:
    """Some places, looked up anew when a folder on the way to them has changed. Safe to use from several threads."""

    def __init__(self, places: Iterable[Path]) -> None:
        self._written = tuple(dict.fromkeys(os.path.abspath(place.expanduser()) for place in places))  # noqa: PTH100
        self._watched = sorted(_folders_above(self._written))
        self._seen: _Looked | None = None
        self._checked_at = 0.0
        self._linked: tuple[float, dict[int, list[str]]] | None = None

    def __bool__(self) -> bool:
        return bool(self._written)

    def holds(self, real: str | os.PathLike[str]) -> bool:
        """Whether a real path is one of these places or inside one."""
        return self.place_of(real) is not None

    def place_of(self, real: str | os.PathLike[str]) -> str | None:
        """The place that holds this real path, if one does. Close spellings count where the disk does not deny it."""
        if not self._written:
            return None
        looked = self._look()
        for path in with_parents(os.fspath(real)):
            if key_of(path) in looked.exact:
                return path
            place = looked.alike.get(folded(path))
            if place is not None and _may_be_the_same(path, place):
                return place
        return None

    def contains_exactly(self, real: str | os.PathLike[str]) -> bool:
        """Whether it is in one of these places for sure: what is given to tools is not given by a likeness."""
        exact = self._look().exact
        return any(key_of(path) in exact for path in with_parents(os.fspath(real)))

    @property
    def names(self) -> frozenset[str]:
        """Where the places are said to be, and where they really are."""
        return self._look().names

    def below(self, real: str | os.PathLike[str]) -> Iterator[str]:
        """The places that lie inside this folder, relative to it, with `/`."""
        inside = os.fspath(real).rstrip(os.sep) + os.sep
        for name in sorted(self._look().names):
            if key_of(name).startswith(key_of(inside)):
                yield name[len(inside) :].replace(os.sep, "/")

    def other_name_of(self, found: os.stat_result) -> str | None:
        """The file in these places that has just these bytes under another name (a hard link), if there is one.

        Costs a look through all of them, so it is remembered for a few seconds.
        """
        now = time.monotonic()
        if self._linked is None or now - self._linked[0] > _TRUSTED_S:
            self._linked = (now, self._by_inode())
        for path in self._linked[1].get(found.st_ino, ()):
            try:
                if os.path.samestat(found, os.lstat(path)):
                    return path
            except OSError:
                continue
        return None

    def _look(self) -> _Looked:
        now, seen = time.monotonic(), self._seen
        if seen is not None and now - self._checked_at < _FRESH_S:
            return seen
        stamps = [_stamp(folder) for folder in self._watched]
        self._checked_at = now
        if seen is None or seen.stamps != stamps or now - seen.at > _TRUSTED_S:
            # a place that is a link is held by its own name too: nobody may put another in its stead
            names = frozenset(map(followed, self._written)).union(self._written)
            exact = frozenset(map(key_of, names))
            seen = self._seen = _Looked(now, stamps, names, exact, {folded(name): name for name in names})
        return seen

    def _by_inode(self) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        waiting, count = sorted(self._look().names), 0
        while waiting and count < _MOST_FILES:
            place = waiting.pop()
            try:
                kind = os.lstat(place)
                if not stat.S_ISDIR(kind.st_mode):
                    found.setdefault(kind.st_ino, []).append(place)
                    continue
                with os.scandir(place) as entries:
                    for entry in entries:
                        count += 1
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(entry.path)
                        else:
                            found.setdefault(entry.inode(), []).append(entry.path)
            except OSError:
                continue
        return found


def _folders_above(places: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for place in places:
        for above in itertools.islice(with_parents(place), 1, None):
            if above in found:
                break
            found.add(above)
    return found


def _stamp(folder: str) -> int:
    try:
        return os.stat(folder).st_mtime_ns  # noqa: PTH116
    except OSError:
        return 0


def _may_be_the_same(path: str, place: str) -> bool:
    """Whether two spellings may name one file here: as the disk says, and yes where neither is there to ask about."""
    try:
        there = os.lstat(place)
    except OSError:
        return not os.path.lexists(path)
    try:
        return os.path.samestat(there, os.lstat(path))
    except OSError:
        return False
