"""Tells which files of a skill are code, and which are unreadable executables."""

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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
_MAX_FILES = 2_000
_HEAD_BYTES = 8


def is_unreadable(name: str, head: bytes) -> bool:
    """Whether a file is an executable that cannot be reviewed."""
    return _suffix(name) in _UNREADABLE or head.startswith(_MAGIC)


def is_program(name: str, head: bytes, *, executable: bool = False) -> bool:
    """Whether a file is code, by its suffix, first bytes or mode."""
    suffix = _suffix(name)
    may_run = executable and suffix not in _TEXT_SUFFIXES
    return may_run or suffix in _CODE or head.startswith(b"#!") or is_unreadable(name, head)


def digest(data: bytes) -> str:
    """SHA-256 as hex."""
    return hashlib.sha256(data).hexdigest()


class Digests:
    """Digests of the programs in folders, cached by file stamps."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}

    def of(self, folder: Path) -> dict[str, str]:
        """Return the digests by relative path, with `/`. Links and unreadable files are included, since they may be
        programs. Never raises.
        """
        digests: dict[str, str] = {}
        for path in _files(folder):
            if len(digests) > _MAX_FILES:
                break
            if digest := self._digest_cached(path):
                digests[path.relative_to(folder).as_posix()] = digest
        return digests

    def _digest_cached(self, path: Path) -> str:
        try:
            status = path.lstat()
            if not stat.S_ISREG(status.st_mode):
                return "no file"
            stamp = status.st_ino, status.st_mtime_ns, status.st_size, status.st_ctime_ns  # ctime cannot be set back
            known = self._known.get(str(path))
            if known is None or known[0] != stamp:
                known = self._known[str(path)] = (stamp, _digest_of(path, status.st_mode))
        except OSError:
            return "unreadable"
        return known[1]


def _digest_of(path: Path, mode: int) -> str:
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if not is_program(path.name, head, executable=os.name == "posix" and bool(mode & 0o111)):
            return ""
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Yield all files, and links to folders, which are not followed."""
    for parent, folders, names in os.walk(folder):
        yield from (Path(parent, name) for name in names)
        yield from (Path(parent, name) for name in folders if Path(parent, name).is_symlink())


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - a name, and asked of every file
