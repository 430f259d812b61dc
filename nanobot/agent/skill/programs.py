"""Which files of a skill are code, and which are executables that nobody can read."""

import hashlib
import os
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
_TEXTS = frozenset({".md", ".txt", ".rst", ".json", ".yaml", ".yml", ".toml", ".csv", ".html", ".xml", ".svg", ".css"})
"""What is no program, whatever a zip says of its rights."""
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
_MOST_FILES = 2_000
_HEAD = 8


def is_unreadable(name: str, head: bytes) -> bool:
    """Whether a file is an executable of which one cannot see what it does."""
    return _suffix(name) in _UNREADABLE or head.startswith(_MAGIC)


def is_program(name: str, head: bytes, *, executable: bool = False) -> bool:
    """Whether a file is code: by its name, how it begins, or that it may be run."""
    suffix = _suffix(name)
    may_run = executable and suffix not in _TEXTS
    return may_run or suffix in _CODE or head.startswith(b"#!") or is_unreadable(name, head)


def digest(data: bytes) -> str:
    """What pins a program."""
    return hashlib.sha256(data).hexdigest()


class Digests:
    """The programs in folders, each with its digest. A file is read when it is new or has changed, else it costs a stat
    and a look at how it begins."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int, int], str]] = {}

    def of(self, folder: Path) -> dict[str, str]:
        """By their paths in the folder, with `/`; empty for what is no program or cannot be read. Never raises."""
        found: dict[str, str] = {}
        for path in _files(folder):
            try:
                status = path.stat()
                stamp = status.st_ino, status.st_mtime_ns, status.st_size
                known = self._known.get(str(path))
                if known is None or known[0] != stamp:
                    known = self._known[str(path)] = (stamp, _digest_of(path, status.st_mode))
            except OSError:
                continue
            if known[1]:
                found[path.relative_to(folder).as_posix()] = known[1]
        return found


def _digest_of(path: Path, mode: int) -> str:
    with path.open("rb") as file:
        head = file.read(_HEAD)
        if not is_program(path.name, head, executable=os.name == "posix" and bool(mode & 0o111)):
            return ""
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Plain files below, a bounded number of them; links are not followed."""
    seen = 0
    for where, _, names in os.walk(folder):
        for name in names:
            path = Path(where, name)
            if path.is_symlink() or not path.is_file():
                continue
            seen += 1
            if seen > _MOST_FILES:
                return
            yield path


def _suffix(name: str) -> str:
    return os.path.splitext(name)[1].lower()  # noqa: PTH122 - a name, and asked of every file
