"""Reads a skill from a folder or zip, completely and safely, before anything else is done with it.

Everything is read into memory, so that what a person reviews is what is installed. Refused: paths that leave the folder
or are special on some system, links, devices, names that clash on another system, and oversized bundles. Sizes are
counted while unpacking, not taken from the zip's headers.
"""

import os
import re
import stat
import struct
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import IO

from nanobot.agent.skills.manual import SKILL_FILE
from nanobot.errors import NanobotError
from nanobot.utils.storage_error import os_reason

MAX_FILES = 500
MAX_BYTES = 20_000_000
_MAX_ZIP_BYTES = 50_000_000
_MAX_NAME_CHARS = 120
_MAX_DEPTH = 8
_CHUNK_BYTES = 64 * 1024

_INVALID = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_WINDOWS_DEVICES = frozenset(
    {"con", "prn", "aux", "nul"} | {f"{name}{number}" for name in ("com", "lpt") for number in range(1, 10)}
)
_LITTER = frozenset({"__macosx", ".ds_store", ".git", "__pycache__", "thumbs.db", "desktop.ini"})
"""Files of systems and tools that are skipped."""

_CODE = frozenset(
    {".py", ".pyw", ".sh", ".bash", ".zsh", ".fish", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".jsx", ".rb", ".pl"}
    | {".php", ".lua", ".r", ".go", ".rs", ".c", ".cc", ".cpp", ".java", ".swift", ".kts", ".ps1", ".psm1", ".bat"}
    | {".cmd", ".vbs", ".wsf", ".applescript", ".scpt", ".command", ".awk", ".tcl", ".desktop", ".ipynb"}
)
_UNREADABLE = frozenset(
    {".exe", ".dll", ".so", ".dylib", ".o", ".a", ".jar", ".class", ".wasm", ".pyc", ".pyd", ".node", ".bin", ".msi"}
    | {".dmg", ".pkg", ".deb", ".rpm", ".apk", ".appimage", ".com", ".scr", ".lnk"}
)
_TEXT_SUFFIXES = frozenset(
    {".md", ".txt", ".rst", ".json", ".yaml", ".yml", ".toml", ".csv", ".html", ".xml", ".svg", ".css"}
)
"""Never programs, whatever their mode."""
_MAGIC = (
    b"\x7fELF",
    b"MZ",
    b"\xca\xfe\xba\xbe",
    b"\xfe\xed\xfa\xce",
    b"\xfe\xed\xfa\xcf",
    b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe",
    b"\0asm",
    b"!<arch>",
)


class BundleError(NanobotError):
    """Not an installable skill; the text says why."""


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file; `path` is relative, with `/`."""

    path: str
    data: bytes
    executable: bool = False

    @property
    def is_program(self) -> bool:
        return is_program(self.path, self.data[:8], executable=self.executable)


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files of one skill."""

    source: Path
    """The folder or zip it was read from."""
    name: str
    """Name of that folder or zip."""
    files: tuple[BundledFile, ...]

    @property
    def manual(self) -> bytes:
        """The content of SKILL.md."""
        return next(file.data for file in self.files if file.path == SKILL_FILE)

    @property
    def size(self) -> int:
        """Total bytes."""
        return sum(len(file.data) for file in self.files)


def read_bundle(source: Path) -> Bundle:
    """Read the skill in a folder (or at its SKILL.md) or in a zip. Raises BundleError, OSError."""
    if source.name == SKILL_FILE and source.is_file():
        source = source.parent
    if source.is_dir():
        return _bundle(source, source.resolve().name, _read_folder(source))
    if not source.exists():
        raise BundleError(f"{source} does not exist. Name a folder with a {SKILL_FILE}, or a zip of one.")
    if not source.is_file():
        raise BundleError(f"{source} is neither a folder nor a file.")
    return _bundle(source, source.stem, _read_zip(source))


def _bundle(source: Path, name: str, files: Iterator[BundledFile]) -> Bundle:
    by_path: dict[str, BundledFile] = {}
    for file in files:
        if file.path in by_path:
            raise BundleError(f"{source} contains {file.path} twice.")
        by_path[file.path] = file
        if len(by_path) > MAX_FILES:
            raise BundleError(f"{source} contains more than {MAX_FILES} files, too many for a skill.")
    _check_clashes(source, list(by_path))
    manuals = [path for path in by_path if PurePosixPath(path).name == SKILL_FILE]
    if not manuals:
        similar = next((path for path in by_path if PurePosixPath(path).name.lower() == SKILL_FILE.lower()), None)
        hint = f" Rename {similar} to {SKILL_FILE}, in capitals." if similar else ""
        raise BundleError(f"{source} contains no {SKILL_FILE}.{hint}")
    depth = min(path.count("/") for path in manuals)
    if depth:
        topmost = [path for path in manuals if path.count("/") == depth]
        if len(topmost) > 1:
            folders = ", ".join(str(PurePosixPath(path).parent) for path in topmost[:20])
            raise BundleError(f"{source} contains several skills ({folders}). Name the folder of one.")
        folder = f"{PurePosixPath(topmost[0]).parent}/"
        by_path = {path.removeprefix(folder): file for path, file in by_path.items() if path.startswith(folder)}
        name = PurePosixPath(folder).name
    return Bundle(source, name, tuple(replace(file, path=path) for path, file in sorted(by_path.items())))


# --- folders


def _read_folder(folder: Path) -> Iterator[BundledFile]:
    total = 0
    for path, status in _walk(folder, folder, 0):
        relative = path.relative_to(folder).as_posix()
        _check_name(relative)
        if stat.S_ISLNK(status.st_mode):
            raise BundleError(f"{path} is a link. A skill must contain its files: replace the link by the file.")
        if not stat.S_ISREG(status.st_mode):
            raise BundleError(f"{path} is a device, a pipe or a socket, not a file.")
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(path, flags), "rb") as file:
            data = _read_limited(file, MAX_BYTES - total, folder)
        total += len(data)
        yield BundledFile(relative, data, os.name == "posix" and bool(status.st_mode & 0o111))


def _walk(folder: Path, top: Path, depth: int) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield everything that is not a folder, except litter."""
    if depth > _MAX_DEPTH:
        raise BundleError(f"{top} is more than {_MAX_DEPTH} folders deep, too deep for a skill.")
    with os.scandir(folder) as scan:
        entries = sorted(scan, key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.lower() in _LITTER:
            continue
        status = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(Path(entry.path), top, depth + 1)
        else:
            yield Path(entry.path), status


# --- zips


def _read_zip(path: Path) -> Iterator[BundledFile]:
    if path.stat().st_size > _MAX_ZIP_BYTES:
        raise BundleError(f"{path} is larger than {_MAX_ZIP_BYTES // 1_000_000} MB, too large for a skill.")
    try:
        with zipfile.ZipFile(path) as archive:
            yield from _read_members(path, archive)
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, OverflowError) as error:
        raise BundleError(f"{path} is not a readable zip: {os_reason(error)}") from error
    except (NotImplementedError, RuntimeError) as error:
        raise BundleError(f"{path} uses an unsupported compression: {error}") from error


def _read_members(path: Path, archive: zipfile.ZipFile) -> Iterator[BundledFile]:
    infos = archive.infolist()
    if len(infos) > 4 * MAX_FILES:
        raise BundleError(f"{path} contains more than {MAX_FILES} files, too many for a skill.")
    total = 0
    for info in infos:
        name = info.orig_filename  # unmodified; `filename` is normalized
        is_folder = name.endswith("/")
        _check_name(name.rstrip("/") if is_folder else name)
        mode = info.external_attr >> 16
        kind = stat.S_IFMT(mode)
        if kind == stat.S_IFLNK:
            raise BundleError(f"{name} in {path} is a link. A skill must contain its files.")
        if kind and kind not in (stat.S_IFREG, stat.S_IFDIR):
            raise BundleError(f"{name} in {path} is a device or a pipe, not a file.")
        if is_folder or any(part.lower() in _LITTER for part in name.split("/")):
            continue
        if info.flag_bits & 0x1:
            raise BundleError(f"{path} is encrypted. Unpack it yourself and name the folder.")
        with archive.open(info) as file:
            data = _read_limited(file, MAX_BYTES - total, path)
        total += len(data)
        yield BundledFile(name, data, bool(mode & 0o111))


def _read_limited(file: IO[bytes], max_bytes: int, source: Path) -> bytes:
    """Read a file unless it exceeds the remaining size."""
    chunks, size = [], 0
    while chunk := file.read(_CHUNK_BYTES):
        size += len(chunk)
        if size > max_bytes:
            raise BundleError(f"{source} unpacks to more than {MAX_BYTES // 1_000_000} MB, too large for a skill.")
        chunks.append(chunk)
    return b"".join(chunks)


# --- names


def _check_name(name: str) -> None:
    """Raise for a path that leaves the folder or is special on some system."""
    shown = ascii(name)[:_MAX_NAME_CHARS]
    parts = name.split("/")
    if not name or name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:", name):
        raise BundleError(f"{shown} leads outside of the skill's folder.")
    if len(parts) > _MAX_DEPTH + 1:
        raise BundleError(f"{shown} is more than {_MAX_DEPTH} folders deep.")
    for part in parts:
        is_invalid = _INVALID.search(part) or any(
            unicodedata.category(character) in ("Cf", "Cs", "Zl", "Zp") for character in part
        )
        if not part or part == "." or is_invalid or part != part.strip() or part.endswith("."):
            raise BundleError(f"{shown} is not a valid name on every system. Rename it.")
        if part.partition(".")[0].lower() in _WINDOWS_DEVICES:
            raise BundleError(f"{shown} is the name of a device on Windows. Rename it.")
        if len(part.encode()) > _MAX_NAME_CHARS:
            raise BundleError(f"{shown} is too long.")


def _check_clashes(source: Path, paths: list[str]) -> None:
    """Raise for two names that are equal on systems that ignore case or Unicode normalization."""
    seen: dict[str, str] = {}
    for path in paths:
        for name_or_parent in (path, *map(str, PurePosixPath(path).parents)):
            if name_or_parent == ".":
                continue
            key = unicodedata.normalize("NFC", name_or_parent).casefold()
            if seen.setdefault(key, name_or_parent) != name_or_parent:
                raise BundleError(
                    f"{source}: {seen[key]} and {name_or_parent} are the same file on other systems. Rename one."
                )
    folders = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if both := sorted(folders & set(paths)):
        raise BundleError(f"{source}: {both[0]} is both a file and a folder.")


def is_unreadable(name: str, head: bytes) -> bool:
    """Whether a file is an executable that cannot be reviewed."""
    return _suffix(name) in _UNREADABLE or head.startswith(_MAGIC)


def is_program(name: str, head: bytes, *, executable: bool = False) -> bool:
    """Whether a file is code, by its suffix, first bytes or mode."""
    suffix = _suffix(name)
    may_run = executable and suffix not in _TEXT_SUFFIXES
    return may_run or suffix in _CODE or head.startswith(b"#!") or is_unreadable(name, head)


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - a name, and asked of every file
