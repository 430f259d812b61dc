"""From a session key to the stem of its file, so that no key leaves the folder and any file system takes the name."""

import hashlib
import re

_UNSAFE = re.compile(r'[<>:"/\\|?*\x00-\x1f\x7f\ud800-\udfff]')
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com\d|lpt\d)(?:\..*)?\Z", re.IGNORECASE)
_LONGEST = 160
"""Bytes: a name may have 255, and `.jsonl.corrupt`, a time or a hash come behind it."""


def stem_of(key: str) -> str:
    """The stem a key asks for first. What could not be a name by itself carries a hash of the key."""
    stem = _UNSAFE.sub("_", key).strip()
    cut = stem.encode()[:_LONGEST].decode(errors="ignore")
    if cut != stem or not stem or stem.startswith(".") or stem.endswith(".") or _RESERVED.match(stem):
        return f"{cut.strip('. ') or 'session'}-{_hash(key)}"
    return stem


def other_stem_of(key: str) -> str:
    """The stem for a key whose first choice belongs to another key."""
    return f"{stem_of(key)}-{_hash(key)}"


def key_of(stem: str) -> str:
    """The key of a file that does not say its own: the first `_` was a `:`."""
    return stem.replace("_", ":", 1)


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:8]
