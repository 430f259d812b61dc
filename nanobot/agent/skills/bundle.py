"""Reads a skill from a folder or zip into memory, so that what a person reviews is what is installed.

Refused: paths that leave the folder or are special on some system, links, devices, and oversized bundles.
"""

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath

from nanobot.agent.skills.manual import SKILL_FILE
from nanobot.errors import NanobotError
from nanobot.utils.storage_error import os_reason

MAX_FILES = 500
MAX_BYTES = 20_000_000
_MAX_ZIP_BYTES = 50_000_000
_MAX_NAME_CHARS = 120

_SPECIAL_NAME = re.compile(
    r'[<>:"|?*\\]|^\s|[\s.]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)',
    re.IGNORECASE,
)
"""A name that leads elsewhere, or that some system refuses or changes, such as that of a device on Windows."""
_LITTER = frozenset({"__macosx", ".ds_store", ".git", "__pycache__", "thumbs.db", "desktop.ini"})
"""Files of systems and tools that are skipped."""

_CODE = frozenset((
    ".py", ".pyw", ".sh", ".bash", ".zsh", ".fish", ".js", ".mjs", ".cjs", ".ts", ".mts", ".tsx", ".jsx", ".rb", ".pl",
    ".php", ".lua", ".r", ".go", ".rs", ".c", ".cc", ".cpp", ".java", ".swift", ".kts", ".ps1", ".psm1", ".bat", ".cmd",
    ".vbs", ".wsf", ".applescript", ".scpt", ".command", ".awk", ".tcl", ".desktop", ".ipynb",
))  # fmt: skip
_UNREADABLE = frozenset((
    ".exe", ".dll", ".so", ".dylib", ".o", ".a", ".jar", ".class", ".wasm", ".pyc", ".pyd", ".node", ".bin", ".msi",
    ".dmg", ".pkg", ".deb", ".rpm", ".apk", ".appimage", ".com", ".scr", ".lnk",
))  # fmt: skip
_TEXT = frozenset([".md", ".txt", ".rst", ".json", ".yaml", ".yml", ".toml", ".csv", ".html", ".xml", ".svg", ".css"])
"""Never programs, whatever their mode."""
_MAGIC = (
    b"\x7fELF", b"MZ", b"\xca\xfe\xba\xbe", b"\xfe\xed\xfa\xce", b"\xfe\xed\xfa\xcf", b"\xce\xfa\xed\xfe",
    b"\xcf\xfa\xed\xfe", b"\0asm", b"!<arch>",
)  # fmt: skip


class BundleError(NanobotError):
    """Not an installable skill; the text says why."""


@dataclass(frozen=True, slots=True)
class BundledFile:
    """One file; `path` is relative, with `/`."""

    path: str
    data: bytes
    executable: bool = False

    @property
    def is_unreadable(self) -> bool:
        """Whether it is an executable that cannot be reviewed."""
        return self._suffix in _UNREADABLE or self.data.startswith(_MAGIC)

    @property
    def is_program(self) -> bool:
        """Whether it is code, by its suffix, first bytes or mode."""
        may_run = self.executable and self._suffix not in _TEXT
        return may_run or self._suffix in _CODE or self.data.startswith(b"#!") or self.is_unreadable

    @property
    def is_binary(self) -> bool:
        return b"\0" in self.data[:8192]

    @property
    def _suffix(self) -> str:
        return PurePosixPath(self.path).suffix.lower()


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
    if not source.exists():
        raise BundleError(f"{source} does not exist. Name a folder with a {SKILL_FILE}, or a zip of one.")
    if not source.is_dir() and not source.is_file():
        raise BundleError(f"{source} is neither a folder nor a file.")
    name, size = (source.resolve().name if source.is_dir() else source.stem), 0
    by_path: dict[str, BundledFile] = {}
    for file in _read_folder(source) if source.is_dir() else _read_zip(source):
        _check_path(file.path)
        if file.path in by_path:
            raise BundleError(f"{source} contains {file.path} twice.")
        by_path[file.path] = file
        size += len(file.data)
        if len(by_path) > MAX_FILES:
            raise BundleError(f"{source} contains more than {MAX_FILES} files, too many for a skill.")
        if size > MAX_BYTES:
            raise BundleError(f"{source} unpacks to more than {MAX_BYTES // 1_000_000} MB, too large for a skill.")
    manuals = [PurePosixPath(path) for path in by_path if PurePosixPath(path).name == SKILL_FILE]
    if not manuals:
        similar = next((path for path in by_path if PurePosixPath(path).name.lower() == SKILL_FILE.lower()), None)
        hint = f" Rename {similar} to {SKILL_FILE}, in capitals." if similar else ""
        raise BundleError(f"{source} contains no {SKILL_FILE}.{hint}")
    depth = min(len(path.parts) for path in manuals)
    folders = [path.parent for path in manuals if len(path.parts) == depth]
    if len(folders) > 1:
        shown = ", ".join(map(str, folders[:20]))
        raise BundleError(f"{source} contains several skills ({shown}). Name the folder of one.")
    if depth > 1:
        prefix, name = f"{folders[0]}/", folders[0].name
        by_path = {path.removeprefix(prefix): file for path, file in by_path.items() if path.startswith(prefix)}
    return Bundle(source, name, tuple(replace(file, path=path) for path, file in sorted(by_path.items())))


def _read_folder(folder: Path) -> Iterator[BundledFile]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name.lower() not in _LITTER)
        for name in sorted([*names, *folders]):
            path = Path(parent, name)
            status = path.lstat()
            if stat.S_ISDIR(status.st_mode) or name.lower() in _LITTER:
                continue
            if stat.S_ISLNK(status.st_mode):
                raise BundleError(f"{path} is a link. A skill must contain its files: replace the link by the file.")
            if not stat.S_ISREG(status.st_mode):
                raise BundleError(f"{path} is a device, a pipe or a socket, not a file.")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            executable = os.name == "posix" and bool(status.st_mode & 0o111)
            yield BundledFile(path.relative_to(folder).as_posix(), data, executable)


def _raise(error: OSError) -> None:
    raise error


def _read_zip(path: Path) -> Iterator[BundledFile]:
    if path.stat().st_size > _MAX_ZIP_BYTES:
        raise BundleError(f"{path} is larger than {_MAX_ZIP_BYTES // 1_000_000} MB, too large for a skill.")
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.orig_filename  # unmodified; `filename` is normalized
                mode = info.external_attr >> 16
                if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise BundleError(f"{name} in {path} is a link or a device. A skill must contain its files.")
                if name.endswith("/") or any(part.lower() in _LITTER for part in name.split("/")):
                    continue
                if info.flag_bits & 0x1:
                    raise BundleError(f"{path} is encrypted. Unpack it yourself and name the folder.")
                if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # unpacked without a limit
                    raise BundleError(f"{path} uses an unsupported compression. Unpack it, and name the folder.")
                with archive.open(info) as file:
                    yield BundledFile(name, file.read(MAX_BYTES + 1), bool(mode & 0o111))
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise BundleError(f"{path} is not a readable zip: {os_reason(error)}") from error


def _check_path(path: str) -> None:
    """Raise for a path that leaves the folder or is special on some system."""
    shown = ascii(path)[:_MAX_NAME_CHARS]
    for part in path.split("/"):
        if not part.isprintable() or not part or _SPECIAL_NAME.search(part):
            raise BundleError(f"{shown} is not a valid name on every system. Rename it.")
        if len(part.encode()) > _MAX_NAME_CHARS:
            raise BundleError(f"{shown} is too long.")
