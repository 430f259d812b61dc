"""File names for session keys: no key leaves the folder, and any file system accepts the name."""

import hashlib
import re

_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?\Z", re.IGNORECASE)
_LONGEST = 160
"""Bytes; a name may have 255 including `.jsonl.utf-16`, a time or a hash."""


def stem_of(key: str) -> str:
    """Return the preferred stem for a key. A key that is not a valid file name gets a hash appended."""
    stem = _UNSAFE.sub("_", key).strip()
    cut = stem.encode()[:_LONGEST].decode(errors="ignore")
    if cut != stem or not stem or stem.startswith(".") or stem.endswith(".") or _RESERVED.match(stem):
        return f"{cut.strip('. ') or 'session'}-{_hash(key)}"
    return stem


def hashed_stem(key: str) -> str:
    """Return the stem for a key whose preferred one belongs to another key."""
    return f"{stem_of(key)}-{_hash(key)}"


def key_of(stem: str) -> str:
    """Return the key of a file that does not name one: the first `_` was a `:`."""
    return stem.replace("_", ":", 1)


def is_terminal_session(key: str) -> bool:
    """Whether a session belongs to the terminal: `cli:...`, or a key without a channel."""
    return key.startswith("cli:") or ":" not in key


def is_temporary(key: str) -> bool:
    """Whether a session belongs to one request of a program and is deleted soon: `api:NAME:~ID`."""
    return key.startswith("api:") and key.rpartition(":")[2].startswith("~")


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
