"""The half-done turn on disk: what the model was saying when the process died.

It is read after a crash that will hardly come, so nothing here raises: a disk that refuses costs the partial text and a
line in the log, never the answer. A write reaches the system at once and so outlives the process; it is not waited for
on the disk, since after a power cut the session itself, which is, tells how far the turn had come.
"""

import asyncio
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from nanobot.session.lines import Row, encode
from nanobot.session.stems import other_stem_of, stem_of
from nanobot.utils.files import O_BINARY, PRIVATE_FILE, make_private_folder, write_whole

log = logging.getLogger(__name__)


class Checkpoint:
    """The half-done turn of one session, in a folder of its own. Only who holds the session may write it."""

    def __init__(self, folder: Path, key: str, *, every_s: float = 0.1) -> None:
        """Partial text is written every so many seconds, also when the model falls silent: so much may be missing."""
        self._every_s = every_s
        self._written_at = time.monotonic()
        self._unwritten: list[str] = []
        plain, other = folder / f"{stem_of(key)}.jsonl", folder / f"{other_stem_of(key)}.jsonl"
        self._path = other if other.exists() or _is_of_another(plain, key) else plain
        self._key = key
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False

    def partial(self, text: str) -> None:
        """More of what the model is saying in this step."""
        self._unwritten.append(text)
        due_s = self._written_at + self._every_s - time.monotonic()
        if due_s <= 0:
            self._write_partial()
        elif self._timer is None:
            with suppress(RuntimeError):  # without an event loop the next piece writes it
                self._timer = asyncio.get_running_loop().call_later(due_s, self._write_partial)

    def step_ended(self) -> None:
        """What was said so far is in the session now."""
        self._forget_partial()
        if self._descriptor is not None:
            self._write({"key": self._key, "step": "ended"})

    def load(self) -> str:
        """The text a crash left, empty if there is none. Half a line at the end is what the crash cut; it goes."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ""
        except OSError as error:
            log.warning("what a crash may have left of an answer cannot be read: %s", error)
            return ""
        text: list[str] = []
        for row in _entries(data, self._key):
            if row.get("step") == "ended":
                text.clear()
            if isinstance(piece := row.get("text"), str):
                text.append(piece)
        return "".join(text)

    def discard(self) -> None:
        """The turn is over, or was taken up again: nothing is half done."""
        self.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the half-done turn stays on the disk: %s", error)

    def close(self) -> None:
        """Let go of the file and leave it there."""
        self._forget_partial()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_partial(self) -> None:
        self._written_at = time.monotonic()
        self._write({"key": self._key, "text": "".join(self._unwritten)})
        self._forget_partial()

    def _forget_partial(self) -> None:
        self._unwritten.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, row: Row) -> None:
        try:
            if self._descriptor is None:
                make_private_folder(self._path.parent)
                flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | O_BINARY
                self._descriptor = os.open(self._path, flags, PRIVATE_FILE)
                write_whole(self._descriptor, b"\n")  # behind half a line of a crash
            write_whole(self._descriptor, encode(row))
        except OSError as error:
            if not self._refused:
                log.warning("the running answer is not kept as it streams: %s", error)
            self._refused = True


def _is_of_another(path: Path, key: str) -> bool:
    """Whether a turn of another key, whose name is the same, left this file."""
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return bool(data.strip()) and not _entries(data, key)


def _entries(data: bytes, key: str) -> list[Row]:
    rows = []
    for line in data.split(b"\n"):
        try:
            row = json.loads(line.decode())
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and row.get("key") == key:
            rows.append(row)
    return rows
