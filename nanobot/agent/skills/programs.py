"""Tells which files of a skill are code, and which are unreadable executables."""

import os

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
