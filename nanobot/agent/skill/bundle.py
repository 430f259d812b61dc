"""A skill as somebody hands it over, a folder or a zip, read whole and safely before anything is done with it.

What is shown to a person is what is installed: all of it is in memory by then. Refused are names that leave the folder
or that some system takes for something else, links, devices, two names that are one on another system, and more than a
skill can need. Sizes are counted as bytes come out, whatever the zip says of itself.
"""

import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from nanobot.agent.skill.manual import SKILL_FILE
from nanobot.agent.skill.programs import is_program
from nanobot.errors import NanobotError

MOST_FILES = 500
MOST_BYTES = 20_000_000
_LARGEST_ZIP = 50_000_000
_LONGEST_NAME = 120
_DEEPEST = 8
_PIECE = 64 * 1024

_ODD = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_OF_WINDOWS = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{name}{number}" for name in ("com", "lpt") for number in range(1, 10)}
)
_LITTER = frozenset({"__macosx", ".ds_store", ".git", "__pycache__", "thumbs.db", "desktop.ini"})
"""What systems and tools leave in folders, and nobody means to hand over."""


class BundleError(NanobotError):
    """This is no skill that can be taken; the words say why."""


@dataclass(frozen=True, slots=True)
class BundledFile:
    """A file of a skill: its path in it, with `/`, and what it holds."""

    path: str
    data: bytes
    executable: bool = False

    @property
    def is_program(self) -> bool:
        """Whether it is code."""
        return is_program(self.path, self.data[:8], executable=self.executable)


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files of one skill."""

    source: Path
    """The folder or zip it came from."""
    name: str
    """What its folder or zip is called."""
    files: tuple[BundledFile, ...]

    @property
    def manual(self) -> bytes:
        """Its SKILL.md."""
        return next(file.data for file in self.files if file.path == SKILL_FILE)

    @property
    def size(self) -> int:
        """All bytes of it."""
        return sum(len(file.data) for file in self.files)


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    data: bytes
    executable: bool


def read_bundle(source: Path) -> Bundle:
    """The skill in a folder (or at its SKILL.md) or in a zip. Raises BundleError, OSError."""
    if source.name == SKILL_FILE and source.is_file():
        source = source.parent
    if source.is_dir():
        return _bundle(source, source.resolve().name, _of_folder(source))
    if not source.exists():
        raise BundleError(f"There is nothing at {source}. Name a folder with a {SKILL_FILE}, or a zip of one.")
    if not source.is_file():
        raise BundleError(f"{source} is neither a folder nor a file.")
    return _bundle(source, source.stem, _of_zip(source))


def _bundle(source: Path, name: str, entries: Iterator[_Entry]) -> Bundle:
    found: dict[str, _Entry] = {}
    for entry in entries:
        if entry.path in found:
            raise BundleError(f"{source} holds {entry.path} twice.")
        found[entry.path] = entry
        if len(found) > MOST_FILES:
            raise BundleError(f"{source} holds more than {MOST_FILES} files: that is no skill.")
    _check_clashes(source, list(found))
    manuals = [path for path in found if PurePosixPath(path).name == SKILL_FILE]
    tops = sorted((path for path in manuals), key=lambda path: path.count("/"))
    if not tops:
        near = next((path for path in found if PurePosixPath(path).name.lower() == SKILL_FILE.lower()), None)
        hint = f" {near} has to be called {SKILL_FILE}, in capitals." if near else ""
        raise BundleError(f"{source} holds no {SKILL_FILE}.{hint}")
    if tops[0] != SKILL_FILE:
        others = [path for path in tops if path.count("/") == tops[0].count("/")]
        if len(others) > 1:
            folders = ", ".join(str(PurePosixPath(path).parent) for path in others[:20])
            raise BundleError(f"{source} holds several skills ({folders}). Name the folder of one.")
        folder = f"{PurePosixPath(tops[0]).parent}/"
        found = {path.removeprefix(folder): entry for path, entry in found.items() if path.startswith(folder)}
        name = PurePosixPath(folder).name
    files = (BundledFile(path, entry.data, entry.executable) for path, entry in sorted(found.items()))
    return Bundle(source, name, tuple(files))


# --- folders


def _of_folder(folder: Path) -> Iterator[_Entry]:
    total = 0
    for path, status in _walked(folder, folder, 0):
        relative = path.relative_to(folder).as_posix()
        _check_name(relative)
        if stat.S_ISLNK(status.st_mode):
            raise BundleError(f"{path} is a link. A skill brings its files itself: put the file there instead.")
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{path} is a device, a pipe or a socket, not a file.")
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            data = _within(file, MOST_BYTES - total, folder)
        total += len(data)
        yield _Entry(relative, data, os.name == "posix" and bool(status.st_mode & 0o111))


def _walked(folder: Path, top: Path, depth: int) -> Iterator[tuple[Path, os.stat_result]]:
    """All that is no folder; litter is passed over."""
    if depth > _DEEPEST:
        raise BundleError(f"{top} is more than {_DEEPEST} folders deep: that is no skill.")
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.lower() in _LITTER:
            continue
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walked(Path(entry.path), top, depth + 1)
        else:
            yield Path(entry.path), status


# --- zips


def _of_zip(path: Path) -> Iterator[_Entry]:
    if path.stat().st_size > _LARGEST_ZIP:
        raise BundleError(f"{path} is larger than {_LARGEST_ZIP // 1_000_000} MB: that is no skill.")
    try:
        with zipfile.ZipFile(path) as archive:
            yield from _unpacked(path, archive)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise BundleError(f"{path} is no zip that can be read: {error}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise BundleError(f"{path} is packed in a way that is not understood: {error}") from error


def _unpacked(path: Path, archive: zipfile.ZipFile) -> Iterator[_Entry]:
    infos = archive.infolist()
    if len(infos) > 4 * MOST_FILES:
        raise BundleError(f"{path} holds more than {MOST_FILES} files: that is no skill.")
    total = 0
    for info in infos:
        name = info.orig_filename  # as it stands in the zip: `filename` is tidied up already
        is_folder = name.endswith("/")
        _check_name(name.rstrip("/") if is_folder else name)
        mode = info.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFLNK:
            raise BundleError(f"{name} in {path} is a link. A skill brings its files itself.")
        if kind and kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise BundleError(f"{name} in {path} is a device or a pipe, not a file.")
        if is_folder or any(part.lower() in _LITTER for part in name.split("/")):
            continue
        if info.flag_bits & 0x1:
            raise BundleError(f"{path} is locked with a password. Unpack it yourself, and name the folder.")
        with archive.open(info) as file:
            data = _within(file, MOST_BYTES - total, path)
        total += len(data)
        yield _Entry(name, data, bool(mode & 0o111))


def _within(file: IO[bytes], most: int, source: Path) -> bytes:
    """All of a file, unless that is more than is left to take."""
    pieces, taken = [], 0
    while piece := file.read(_PIECE):
        taken += len(piece)
        if taken > most:
            raise BundleError(f"{source} unpacks to more than {MOST_BYTES // 1_000_000} MB: that is no skill.")
        pieces.append(piece)
    return b"".join(pieces)


# --- names


def _check_name(name: str) -> None:
    """Raise for a path that leads out of its folder, or means something else on some system."""
    shown = ascii(name)[:_LONGEST_NAME]
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise BundleError(f"{shown} leads out of the skill's folder.")
    if len(parts) > _DEEPEST + 1:
        raise BundleError(f"{shown} is more than {_DEEPEST} folders deep.")
    for part in parts:
        odd = _ODD.search(part) or any(unicodedata.category(letter) in ("Cf", "Cs", "Zl", "Zp") for letter in part)
        if not part or part == "." or odd or part != part.strip() or part.endswith("."):
            raise BundleError(f"{shown} is no name that every system takes. Rename it.")
        if part.partition(".")[0].lower() in _OF_WINDOWS:
            raise BundleError(f"{shown} is the name of a device on Windows. Rename it.")
        if len(part.encode()) > _LONGEST_NAME:
            raise BundleError(f"{shown} is too long a name.")


def _check_clashes(source: Path, paths: list[str]) -> None:
    """Raise for two names that are one where case or the way letters are put together makes no difference."""
    seen: dict[str, str] = {}
    for path in paths:
        for place in (path, *map(str, PurePosixPath(path).parents)):
            if place == ".":
                continue
            key = unicodedata.normalize("NFC", place).casefold()
            if seen.setdefault(key, place) != place:
                raise BundleError(f"{source}: {seen[key]} and {place} are one file on other systems. Rename one.")
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if both := sorted(folders & set(paths)):
        raise BundleError(f"{source}: {both[0]} is a file and a folder at once.")
