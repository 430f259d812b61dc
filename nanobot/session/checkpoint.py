"""The half-done turn on disk: what it accepted, which calls really started, what the model was saying.

The session is the log of a turn; this file holds the little that the session cannot: a message before it is a row, the
text of a step that has not ended, and which of the calls in the last row began to run. It is made when a turn begins
and gone when it is saved, so a file that is there is of a turn that is running, or that a crash cut off.

A write reaches the system at once and so outlives the process. Only the start of calls that must not run twice is
waited for on the disk: after a power cut, nobody may believe that they never ran.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from nanobot.session.lines import Row, encode
from nanobot.session.stems import other_stem_of, stem_of
from nanobot.utils.files import line_end, open_lines, sync_data, write_whole
from nanobot.utils.refusals import refusal
from nanobot.utils.text import json_objects

log = logging.getLogger(__name__)

_SAYS_NOTHING_S = 3600


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that a turn took on, as it was handed in."""

    turn_id: str
    message: Row


@dataclass(frozen=True, slots=True)
class HalfDone:
    """What a crash left of a session's turns, oldest first."""

    accepted: tuple[Accepted, ...] = ()
    text: str = ""
    """What the model was saying in the last step that said something."""
    after: int = 0
    """How many messages the session had then. If it has more by now, the text is one of them."""
    started: frozenset[str] | None = None
    """Ids of the calls of the last step that began to run; None where nobody wrote it down, and then each may have."""

    def __bool__(self) -> bool:
        """Whether there is anything to take up."""
        return bool(self.accepted or self.text.strip())

    @property
    def turn_id(self) -> str:
        """The turn that was running; empty where nobody wrote it down."""
        return self.accepted[-1].turn_id if self.accepted else ""

    @property
    def tries(self) -> int:
        """How often the running turn has begun."""
        return sum(1 for one in self.accepted if one.turn_id == self.turn_id)


class Checkpoint:
    """The half-done turn of one session, in a folder of its own. Only who holds the session may write it."""

    def __init__(self, folder: Path, key: str, *, every_s: float = 0.1) -> None:
        """Partial text is written every so many seconds, also when the model falls silent: so much may be missing."""
        self._every_s = every_s
        self._written_at = time.monotonic()
        self._unwritten: list[str] = []
        self._after = 0
        self._key = key
        plain, other = folder / f"{stem_of(key)}.jsonl", folder / f"{other_stem_of(key)}.jsonl"
        found = _read(plain)
        taken = _is_of_another(found, key) or os.path.exists(other)  # noqa: PTH110 every turn asks: kept lean
        self._path = other if taken else plain
        self._found: bytes | None = _read(other) if taken else found
        self._descriptor: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._refused = False
        self._closed = False
        self._has_started = b'"started"' in (self._found or b"")

    def accept(self, turn_id: str, message: Row) -> None:
        """A turn begins with this message, or is taken up with it again. Never raises: it is a row of the session soon.

        On a disk that refuses there will be no file, and after a crash each call may have run.
        """
        self._write({"key": self._key, "turn": turn_id, "message": message})

    def partial(self, text: str) -> None:
        """More of what the model is saying in this step. Never raises: what is lost is said again."""
        self._unwritten.append(text)
        due_s = self._written_at + self._every_s - time.monotonic()
        if due_s <= 0:
            self._write_partial()
        elif self._timer is None:
            with suppress(RuntimeError):  # without an event loop the next piece writes it
                self._timer = asyncio.get_running_loop().call_later(due_s, self._write_partial)

    def session_has(self, messages: int) -> None:
        """The session has so many messages: what was said so far is among them, what is said from now on is not."""
        self._forget_partial()
        self._after = messages

    def step_begins(self) -> None:
        """The calls that began so far have their results: in the step that follows, their ids may come again.

        Never raises: where that is not written down, a call that never ran may be told as one that perhaps did.
        """
        if self._has_started:
            self._has_started = False
            self._write({"key": self._key, "step": True})

    async def calls_start(self, call_ids: Sequence[str], *, durable: bool) -> None:
        """These calls run from now on; on the disk when this returns, if they must not run twice.

        Raises StorageError where a file that says otherwise could not be corrected: then they must not run.
        """
        if self._refused and self._descriptor is None:
            return
        try:
            self._append({"key": self._key, "started": list(call_ids)})
            self._has_started = True
            if durable and self._descriptor is not None:
                await asyncio.to_thread(sync_data, self._descriptor)
        except OSError as error:
            raise refusal("The start of a tool call cannot be written down", error) from error

    def load(self) -> HalfDone:
        """What a crash left. Half a line at the end is what the crash cut; it goes. Never raises."""
        found, self._found = self._found, None  # each turn begins with this: its file is read once
        data = _read(self._path) if found is None else found
        return _half_done(_entries(data, self._key)) if data else HalfDone()

    def discard(self) -> None:
        """The turn is over: nothing is half done. Never raises."""
        self._forget_partial()
        self.close()
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("the half-done turn stays on the disk: %s", error)

    def close(self) -> None:
        """Let go of the file and leave it there, for the next start; nothing more is written."""
        if self._unwritten:
            self._write_partial()
        self._forget_partial()
        self._closed = True
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write_partial(self) -> None:
        self._written_at = time.monotonic()
        self._write({"key": self._key, "after": self._after, "text": "".join(self._unwritten)})
        self._forget_partial()

    def _forget_partial(self) -> None:
        self._unwritten.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, row: Row) -> None:
        try:
            self._append(row)
        except OSError as error:
            if not self._refused:
                log.warning("the running turn is not written down as it goes: %s", error)
            self._refused = True

    def _append(self, row: Row) -> None:
        if self._closed:
            return
        self._found = None
        if self._descriptor is None:
            self._descriptor = open_lines(self._path)
            write_whole(self._descriptor, line_end(self._descriptor))
        write_whole(self._descriptor, encode(row))


def keys_left(folder: Path) -> Iterator[str]:
    """The sessions with a half-done turn: running ones, also of other processes, and those that a crash cut off.

    A file that a crash left before its first line was whole says nothing, and goes after an hour.
    """
    for path in sorted(folder.glob("*.jsonl")) if folder.is_dir() else ():
        with suppress(OSError):
            key = next((row.get("key") for row in json_objects(path.read_bytes())), None)
            if isinstance(key, str):
                yield key
            elif time.time() - path.stat().st_mtime > _SAYS_NOTHING_S:
                path.unlink()


def _half_done(rows: list[Row]) -> HalfDone:
    accepted: list[Accepted] = []
    text: list[str] = []
    after = 0
    started: set[str] = set()
    for row in rows:
        if isinstance(message := row.get("message"), dict):
            accepted.append(Accepted(str(row.get("turn", "")), message))
        if isinstance(piece := row.get("text"), str):
            if (at := row.get("after", 0)) != after:
                text.clear()
                after = at
            text.append(piece)
        if row.get("step") is True:
            started.clear()
        if isinstance(ids := row.get("started"), list):
            started.update(map(str, ids))
    return HalfDone(tuple(accepted), "".join(text), after, frozenset(started) if accepted else None)


def _read(path: Path) -> bytes:
    """What a file holds; nothing where there is none."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        log.warning("what a crash may have left of a turn cannot be read: %s", error)
        return b""


def _is_of_another(data: bytes, key: str) -> bool:
    """Whether a turn of another key, whose name is the same, left this."""
    keys = {row.get("key") for row in json_objects(data)}
    return bool(keys) and key not in keys


def _entries(data: bytes, key: str) -> list[Row]:
    return [row for row in json_objects(data) if row.get("key") == key]
