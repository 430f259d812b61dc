"""Who runs on this host. A pid that a command tells of itself is one inside its wall, and says nothing out here."""

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

SWAP_LINKS = Path(__file__).parents[1] / "programs" / "swap_links.py"


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


@contextmanager
def swapping(inside: Path, link: Path, target: Path, times: int = 4_000) -> "Iterator[subprocess.Popen[bytes]]":
    """Put a link where a folder or a file was, and back, again and again."""
    command = [sys.executable, "-IS", str(SWAP_LINKS), str(inside), str(link), str(target), str(times)]
    with subprocess.Popen(command) as child:
        yield child


def until_served(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until a gateway that was started answers on this port."""
    while True:
        try:
            httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False)
        except httpx.TransportError:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        else:
            return
