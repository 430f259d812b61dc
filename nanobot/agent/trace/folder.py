"""The folder of traces: a file of lines a session, and what prompts are made of, stored once for all turns.

    traces/<stem>.jsonl      the newest turns of a session, a line a turn or a few
    traces/<stem>.jsonl.1    those before them
    traces/blobs/<hash>      a system prompt, a set of tools or of limits, as it was sent

No secret gets in here. Nobody waits for the disk: after a power cut the last lines may be missing.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Container, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from nanobot.agent.trace.turn_trace import Facts, Piece
from nanobot.security.secrets import Redactor
from nanobot.session.lines import encode
from nanobot.session.stems import stem_of
from nanobot.utils.files import (
    PRIVATE_FILE,
    line_end,
    make_private_folder,
    open_lines,
    write_atomic,
    write_in_place,
    write_whole,
)
from nanobot.utils.text import json_objects

log = logging.getLogger(__name__)

_TEXT, _WORD, _NAME = 200, 160, 80
"""Characters kept of what was said, of one value in the arguments of a call, and of a tool's name."""
_ARGUMENTS = 1000
_BEGAN = frozenset({"at", "message", "history", "until", "system", "tools", "limits"})
"""What the first word counts for: a turn that is taken up after a crash says it again."""
_REFERENCE = re.compile(rb'"(?:system|tools|limits)": ?"([0-9a-f]{24})"')
_DAY_S = 86_400
_MOST_LOOKS = 5


@dataclass(frozen=True, slots=True)
class TraceCaps:
    """How much is kept: bytes a file of a session (there are two), bytes in all, days."""

    file_bytes: int = 1 << 20
    total_bytes: int = 64 << 20
    days: int = 30


class TraceFolder:
    """One folder of traces. Not for two threads at once; several processes may write."""

    def __init__(self, path: Path, redactor: Redactor | None = None, caps: TraceCaps | None = None) -> None:
        self.path = path
        self._blobs = path / "blobs"
        self._redactor = redactor or Redactor()
        self._caps = caps or TraceCaps()
        self._made: dict[int, tuple[object, str, bytes]] = {}
        self._there: set[str] = set()
        """Blobs that were looked for in this write."""
        self._sweep_at = 0.0
        self._refused = False

    # --- writing

    def write(self, pieces: list[Piece]) -> None:
        """Append these. Never raises for the disk: what it refuses is lost, and said once in the log."""
        lines: dict[str, list[bytes]] = {}
        self._there.clear()
        try:
            if not self._blobs.is_dir():
                make_private_folder(self._blobs)
            for piece in pieces:
                lines.setdefault(stem_of(piece.facts["session"]), []).append(self._line(piece))
            for stem, some in lines.items():
                self._append(self.path / f"{stem}.jsonl", b"".join(some))
            self._refused = False
        except OSError as error:
            if not self._refused:
                log.warning("No traces are written: %s", error)
            self._refused = True

    def _line(self, piece: Piece) -> bytes:
        """The line, without secrets and without what is long."""
        clean, facts = self._redactor, piece.facts
        for name in ("message", "text"):
            if name in facts:
                facts[name] = clean.head(facts[name], _TEXT)
        for notice in facts.get("notices", ()):
            notice["text"] = clean.head(notice["text"], _TEXT)
        for step in facts.get("steps", ()):
            for call in step.get("calls", ()):
                call["tool"] = clean.head(str(call.get("tool")), _NAME)  # a model may call anything
                call["args"] = self._arguments(call.get("args", {}))
                if "asked" in call:
                    call["asked"] = self._arguments(call["asked"])
                if "error" in call:
                    call["error"] = clean.head(call["error"], _TEXT)
        return encode({**facts, **{name: self._keep(content) for name, content in piece.prompt.items()}})

    def _arguments(self, arguments: Facts) -> Facts:
        clean: Facts = self._redactor.value(arguments, _WORD)
        written = json.dumps(clean, ensure_ascii=False, default=str)
        return clean if len(written) <= _ARGUMENTS else {"...": self._redactor.head(written, _ARGUMENTS)}

    def _keep(self, content: object) -> str:
        """See that this is stored; the name it goes by. What did not change costs a look a write."""
        made = self._made.get(id(content))
        if made is None:
            if len(self._made) > 64:
                self._made.clear()
            clean = self._redactor.texts(_plain(content))
            text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False, default=str)
            data = text.encode("utf-8", "backslashreplace")
            made = self._made[id(content)] = (content, _name_of(data), data)
        _, name, data = made
        if name not in self._there:
            self._store(self._blobs / name, data)
            self._there.add(name)
        return name

    def _store(self, path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            if path.stat().st_size == len(data):
                return
        write_in_place(path, data)

    def _append(self, path: Path, data: bytes) -> None:
        """Whole lines in one write, so that those of two processes never mix."""
        self._make_room(path, len(data))
        descriptor = open_lines(path)
        try:  # behind half a line: a full disk or a kill left it, or another process is writing
            write_whole(descriptor, line_end(descriptor) + data)
        finally:
            os.close(descriptor)

    def _make_room(self, path: Path, size: int) -> None:
        """A full file becomes the older one. Where two processes do so at once, older traces may go early."""
        with suppress(OSError):  # there is none yet; or, on Windows, somebody reads it: then it grows until next time
            if path.stat().st_size + size > self._caps.file_bytes:
                os.replace(path, _older(path))

    # --- sweeping

    def sweep_if_due(self) -> None:
        """Once a day, by whichever process comes first: throw away what is old or too much. Never raises."""
        if time.monotonic() < self._sweep_at:
            return
        self._sweep_at = time.monotonic() + _DAY_S
        marker = self.path / ".swept"
        try:
            if marker.exists() and time.time() - marker.stat().st_mtime < _DAY_S:
                return
            marker.touch(PRIVATE_FILE)
            os.utime(marker)
            self.sweep()
        except OSError as error:
            log.warning("Old traces stay: %s", error)

    def sweep(self) -> None:
        """Throw away traces that are old, the oldest while there are too many, and what no trace refers to any more.

        Raises OSError.
        """
        now, total = time.time(), 0
        files = sorted(((path.stat(), path) for path in self._files()), key=lambda one: -one[0].st_mtime)
        used: set[str] = set()
        for stat, path in files:
            total += stat.st_size
            if now - stat.st_mtime > self._caps.days * _DAY_S or total > self._caps.total_bytes:
                path.unlink(missing_ok=True)
            else:
                used.update(name.decode() for name in _REFERENCE.findall(path.read_bytes()))
        for blob in self._blobs.iterdir():
            # A turn stores what it is made of before it says so: what is new may be about to be referred to.
            if blob.name not in used and now - blob.stat().st_mtime > _DAY_S:
                blob.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [*self.path.glob("*.jsonl"), *self.path.glob("*.jsonl.1")] if self.path.is_dir() else []

    # --- reading

    def turns(self, key: str) -> list[Facts]:
        """All that is known of each turn of a session, the oldest first. What cannot be read is left out."""
        found: dict[str, Facts] = {}
        path = self.path / f"{stem_of(key)}.jsonl"
        for facts in _lines_of_both(path):
            if facts.get("session") == key:
                merge(found.setdefault(str(facts.get("turn")), {}), facts)
        return list(found.values())

    def keys(self) -> list[str]:
        """The sessions that have traces."""
        first = (next(_lines(path), {}).get("session") for path in self._files())
        return list(dict.fromkeys(key for key in first if isinstance(key, str)))

    def blob(self, name: str) -> str | None:
        """What goes by this name; None where it is gone or damaged."""
        try:
            data = (self._blobs / Path(name).name).read_bytes()
        except OSError:
            return None
        return data.decode() if _name_of(data) == name else None

    def forget(self, key: str, turns: Container[str]) -> None:
        """Throw away what is known of these turns, and of those of the session that said nothing (a slash command).

        Raises OSError.
        """
        path = self.path / f"{stem_of(key)}.jsonl"
        asked = {facts.get("turn") for facts in _lines_of_both(path) if "model" in facts}
        for place in (path, _older(path)):
            lines = [*_lines(place)]
            kept = [
                facts
                for facts in lines
                if facts.get("session") != key or (facts.get("turn") not in turns and facts.get("turn") in asked)
            ]
            if not kept:
                place.unlink(missing_ok=True)
            elif len(kept) < len(lines):
                write_atomic(place, b"".join(encode(facts) for facts in kept))


def merge(known: Facts, more: Facts) -> None:
    """Add what a later line says of a turn: lists grow, how it began stays, the rest is said anew."""
    for name, fact in more.items():
        if isinstance(fact, list) and isinstance(known.get(name), list):
            known[name] += fact
        elif name not in known or name not in _BEGAN:
            known[name] = fact


def _lines(path: Path) -> Iterator[Facts]:
    with suppress(OSError):
        yield from json_objects(path.read_bytes())


def _lines_of_both(path: Path) -> list[Facts]:
    """The older file and the newer one, as they were at one moment: read again where one became the other meanwhile."""
    lines: list[Facts] = []
    for _ in range(_MOST_LOOKS):
        before = _identity(path)
        lines = [*_lines(_older(path)), *_lines(path)]
        if _identity(path) == before:
            break
    return lines


def _identity(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _plain(content: object) -> Any:
    return asdict(content) if is_dataclass(content) and not isinstance(content, type) else content


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
