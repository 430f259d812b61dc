"""Who runs on this host. A pid that a command tells of itself is one inside its wall, and says nothing out here."""

import secrets
from contextlib import suppress
from pathlib import Path


def running(*words: str) -> list[int]:
    """Who runs with exactly these words as its command line."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (place / "cmdline").read_bytes() == b"".join(word.encode() + b"\0" for word in words):
                found.append(int(place.name))
    return found


def unlikely_number() -> str:
    return str(secrets.randbelow(10**6) + 10**6)
