"""Reads a skill from a folder or zip into memory, so that what a person reviews is what is installed; installs and
removes skills of a workspace, atomically and without losing the previous one.

skills/<name>/                      the skill
skills/.new-<name>/                 being written; renamed once everything is synced
skills/.replaced/<name>-<time>/     what was replaced or removed

Names that begin with a dot are not skills.
"""

import os
import re
import secrets
import shutil
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath

from nanobot.agent.skills.manual import SKILL_FILE
from nanobot.errors import NanobotError
from nanobot.utils.files import sync_folder
from nanobot.utils.storage_error import os_reason, storage_error

MAX_FILES = 500
MAX_BYTES = 20_000_000
_MAX_ZIP_BYTES = 50_000_000
_MAX_NAME_CHARS = 120

_SPECIAL_NAME = re.compile(r'[<>:"|?*\\]|^\s|[\s.]$|^(?:con|prn|aux|nul|com\d|lpt\d)(?:\.|$)', re.IGNORECASE)
"""A name that leads elsewhere, or that some system refuses or changes, such as that of a device on Windows."""
_LITTER = frozenset({"__macosx", ".ds_store", ".git", "__pycache__", "thumbs.db", "desktop.ini"})

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
    def suffix(self) -> str:
        return PurePosixPath(self.path).suffix.lower()

    @property
    def is_unreadable(self) -> bool:
        """Whether it is an executable that cannot be reviewed."""
        return self.suffix in _UNREADABLE or self.data.startswith(_MAGIC)

    @property
    def is_program(self) -> bool:
        """Whether it is code, by its suffix, first bytes or mode."""
        may_run = self.executable and self.suffix not in _TEXT
        return may_run or self.suffix in _CODE or self.data.startswith(b"#!") or self.is_unreadable

    @property
    def is_binary(self) -> bool:
        return b"\0" in self.data[:8192]


@dataclass(frozen=True, slots=True)
class Bundle:
    """All files of one skill. `name` is that of its folder, or of the zip that has it at the top level."""

    source: Path
    name: str
    files: tuple[BundledFile, ...]

    @property
    def manual(self) -> bytes:
        return next(file.data for file in self.files if file.path == SKILL_FILE)

    @property
    def size(self) -> int:
        return sum(len(file.data) for file in self.files)


def read_bundle(source: Path) -> Bundle:
    """Read the skill in a folder (or at its SKILL.md) or in a zip. Raises BundleError, OSError.

    Refused: paths that leave the folder or are special on some system, links, devices, and what is too large.
    """
    if source.name == SKILL_FILE and source.is_file():
        source = source.parent
    if not source.is_dir() and not source.is_file():
        raise BundleError(f"{source} does not exist. Name a folder with a {SKILL_FILE}, or a zip of one.")
    size = 0
    by_path: dict[PurePosixPath, BundledFile] = {}
    for file in _read_folder(source) if source.is_dir() else _read_zip(source):
        _check_path(file.path)
        if (path := PurePosixPath(file.path)) in by_path:
            raise BundleError(f"{source} contains {file.path} twice.")
        by_path[path] = file
        size += len(file.data)
        if len(by_path) > MAX_FILES or size > MAX_BYTES:
            limits = f"{MAX_FILES} files or {MAX_BYTES // 1_000_000} MB"
            raise BundleError(f"{source} contains more than {limits}, too much for a skill.")
    folders = sorted((path.parent for path in by_path if path.name == SKILL_FILE), key=lambda path: len(path.parts))
    if not folders:
        similar = next((path for path in by_path if path.name.lower() == SKILL_FILE.lower()), None)
        hint = f" Rename {similar} to {SKILL_FILE}, in capitals." if similar else ""
        raise BundleError(f"{source} contains no {SKILL_FILE}.{hint}")
    top, *others = [folder for folder in folders if len(folder.parts) == len(folders[0].parts)]
    if others:
        shown = ", ".join(map(str, [top, *others][:20]))
        raise BundleError(f"{source} contains several skills ({shown}). Name the folder of one.")
    name = top.name or (source.resolve().name if source.is_dir() else source.stem)
    inside = {path.relative_to(top).as_posix(): by_path[path] for path in by_path if path.is_relative_to(top)}
    return Bundle(source, name, tuple(replace(file, path=path) for path, file in sorted(inside.items())))


def _read_folder(folder: Path) -> Iterator[BundledFile]:
    for parent, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = sorted(name for name in folders if name.lower() not in _LITTER)
        for path in (Path(parent, name) for name in sorted([*names, *folders]) if name.lower() not in _LITTER):
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            if not stat.S_ISREG(mode):
                raise BundleError(f"{path} is a link, a device or a pipe. A skill must contain its files.")
            with path.open("rb") as file:
                data = file.read(MAX_BYTES + 1)
            yield BundledFile(path.relative_to(folder).as_posix(), data, os.name == "posix" and bool(mode & 0o111))


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
                # other compressions are unpacked without a limit
                if info.flag_bits & 0x1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    problem = "is encrypted or uses an unsupported compression"
                    raise BundleError(f"{path} {problem}. Unpack it yourself and name the folder.")
                with archive.open(info) as file:
                    yield BundledFile(name, file.read(MAX_BYTES + 1), bool(mode & 0o111))
    except (zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError, ValueError, RuntimeError) as error:
        raise BundleError(f"{path} is not a readable zip: {os_reason(error)}") from error


def _check_path(path: str) -> None:
    """Raise for a path that leaves the folder or is special on some system."""
    for part in path.split("/"):
        if not part.isprintable() or not part or _SPECIAL_NAME.search(part) or len(part.encode()) > _MAX_NAME_CHARS:
            raise BundleError(f"{ascii(path)[:_MAX_NAME_CHARS]} is not a valid name on every system. Rename it.")


def install_skill(target: Path, bundle: Bundle) -> None:
    """Install the skill as this folder. One that is there is kept in `.replaced`. Blocks. Raises StorageError."""
    new_folder = target.with_name(f".new-{target.name}")
    try:
        shutil.rmtree(new_folder, ignore_errors=True)  # of an install that was killed
        new_folder.mkdir(parents=True)
        for file in bundle.files:
            path = new_folder / PurePosixPath(file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as written:
                written.write(file.data)
                written.flush()
                os.fsync(written.fileno())
            path.chmod(0o755 if file.executable else 0o644)
        for folder in {(new_folder / file.path).parent for file in bundle.files}:
            sync_folder(folder)
        replaced = _move_to_replaced(target) if os.path.lexists(target) else None
        new_folder.rename(target)  # at once: if we are killed in between, there is no skill
        for folder in (target.parent, *([replaced.parent] if replaced else [])):
            sync_folder(folder)
    except OSError as error:
        shutil.rmtree(new_folder, ignore_errors=True)
        raise storage_error(f"The skill {target.name} cannot be installed", error) from error


def remove_skill(folder: Path) -> Path:
    """Remove the skill in this folder and return where it is kept. Raises StorageError."""
    try:
        kept_as = _move_to_replaced(folder)
        sync_folder(kept_as.parent)
        sync_folder(folder.parent)
        return kept_as
    except OSError as error:
        raise storage_error(f"The skill {folder.name} cannot be removed", error) from error


def _move_to_replaced(folder: Path) -> Path:
    """Move a skill, or the link to one, out of the way. Raises OSError."""
    replaced_as = folder.parent / ".replaced" / f"{folder.name}-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    replaced_as.parent.mkdir(exist_ok=True)
    folder.rename(replaced_as)
    return replaced_as
