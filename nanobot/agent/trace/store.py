"""The folder of traces: one file of lines per session, and the prompts, stored once for all turns.

traces/<stem>.jsonl      the newest turns of a session: lines with the events of a turn, one or a few for each
traces/<stem>.jsonl.1    the turns before them
traces/blobs/<hash>      a system prompt, tool schemas or limits, as sent

Secrets are redacted. Files are not synced: a power cut may lose the last lines.
"""

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from nanobot.security.secrets import Redactor
from nanobot.session.file_names import stem_of
from nanobot.session.lines import encode
from nanobot.utils.files import (
    PRIVATE_FILE,
    make_private_folder,
    missing_newline,
    open_for_append,
    write_atomic,
    write_in_place,
    write_whole,
)
from nanobot.utils.text import json_objects

log = logging.getLogger(__name__)

Facts = dict[str, Any]
"""A JSON object of a trace. The fields are in docs/formats.md."""

_TEXT_CHARS, _VALUE_CHARS = 200, 160
"""Characters kept of a text, and of one argument value."""
_ARGUMENTS_CHARS = 1000
_MAX_KEYS, _MAX_ITEMS, _MAX_DEPTH = 16, 8, 3
_BLOBS = ("system", "tools", "limits")
_LEFT_OUT = ("turn_id", "seq", "display")
_AS_IT_IS = frozenset(
    ("type", "t", "at", "workspace", "origin", "model", "provider", "until", "call_id", "question", "outcome", "usage",
     "finish_reason", "phase_seconds")
)  # fmt: skip
"""Fields whose value is ours, or an id that must match the session's."""
_REFERENCE = re.compile(rb'"(?:system|tools|limits)": ?"([0-9a-f]{24})"')
_DAY_S = 86_400
_MAX_READS = 5


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What is kept: bytes per session file (there are two), total bytes, days."""

    file_bytes: int = 1 << 20
    total_bytes: int = 64 << 20
    days: int = 30


class TraceStore:
    """A folder of traces. Not thread-safe; several processes may write."""

    def __init__(self, path: Path, redactor: Redactor | None = None, limits: TraceLimits | None = None) -> None:
        self.path = path
        self._blobs = path / "blobs"
        self._redactor = redactor or Redactor()
        self._limits = limits or TraceLimits()
        self._blob_cache: dict[int, tuple[object, str, bytes]] = {}
        self._checked_blobs: set[str] = set()
        """Blobs already checked in this write."""
        self._sweep_at = 0.0
        self._has_failed = False

    # --- writing

    def write(self, turns: Mapping[tuple[str, str], list[Facts]]) -> None:
        """Append events, by session and turn. Storage failures lose them and are logged once."""
        lines: dict[str, list[bytes]] = {}
        self._checked_blobs.clear()
        try:
            if not self._blobs.is_dir():
                make_private_folder(self._blobs)
            for (session, turn), events in turns.items():
                line = {"turn": turn, "session": session, "events": [self._clean(event) for event in events]}
                lines.setdefault(stem_of(session), []).append(encode(line))
            for stem, encoded in lines.items():
                self._append(self.path / f"{stem}.jsonl", b"".join(encoded))
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("traces cannot be written: %s", error)
            self._has_failed = True

    def _clean(self, event: Facts) -> Facts:
        """Return the event redacted and shortened. The session has the texts and results."""
        clean: Facts = {}
        for name, value in event.items():
            if name in _LEFT_OUT or value is None or (name == "content" and event.get("ok")):
                continue
            if name in _BLOBS:
                clean[name] = self._store_blob(value)
            elif name in ("arguments", "asked"):
                clean[name] = self._arguments(value)
            else:
                clean[name] = value if name in _AS_IT_IS else self._redactor.value(value, _TEXT_CHARS)
        return clean

    def _arguments(self, arguments: Facts) -> Facts:
        clean: Facts = self._redactor.value(_bound(arguments), _VALUE_CHARS)
        text = json.dumps(clean, ensure_ascii=False, default=str)
        return clean if len(text) <= _ARGUMENTS_CHARS else {"...": self._redactor.head(text, _ARGUMENTS_CHARS)}

    def _store_blob(self, content: object) -> str:
        """Store the content and return its name. Unchanged content costs one stat per write."""
        cached = self._blob_cache.get(id(content))
        if cached is None:
            if len(self._blob_cache) > 64:
                self._blob_cache.clear()
            clean = self._redactor.texts(_to_plain(content))
            text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False, default=str)
            data = text.encode("utf-8", "backslashreplace")
            cached = self._blob_cache[id(content)] = (content, _blob_name(data), data)
        _, name, data = cached
        if name not in self._checked_blobs:
            self._write_blob(self._blobs / name, data)
            self._checked_blobs.add(name)
        return name

    def _write_blob(self, path: Path, data: bytes) -> None:
        with suppress(FileNotFoundError):
            if path.stat().st_size == len(data):
                return
        write_in_place(path, data)

    def _append(self, path: Path, data: bytes) -> None:
        """Append whole lines in one write, so that lines of two processes never mix."""
        self._make_room(path, len(data))
        descriptor = open_for_append(path)
        try:  # a truncated last line gets a line end first
            write_whole(descriptor, missing_newline(descriptor) + data)
        finally:
            os.close(descriptor)

    def _make_room(self, path: Path, size: int) -> None:
        """Rotate a full file. If two processes do so at once, older traces may be lost early."""
        with suppress(OSError):  # no file yet; or on Windows a reader has it open
            if path.stat().st_size + size > self._limits.file_bytes:
                os.replace(path, _older_file(path))

    # --- sweeping

    def sweep_if_due(self) -> None:
        """Delete old traces once a day, in whichever process comes first. Never raises."""
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
            log.warning("old traces cannot be deleted: %s", error)

    def sweep(self) -> None:
        """Delete expired traces, the oldest above the total size, and unreferenced blobs.

        Raises OSError.
        """
        now, total = time.time(), 0
        files = sorted(((path.stat(), path) for path in self._files()), key=lambda item: -item[0].st_mtime)
        used: set[str] = set()
        for stat, path in files:
            total += stat.st_size
            if now - stat.st_mtime > self._limits.days * _DAY_S or total > self._limits.total_bytes:
                path.unlink(missing_ok=True)
            else:
                used.update(name.decode() for name in _REFERENCE.findall(path.read_bytes()))
        for blob in self._blobs.iterdir():
            # Blobs are stored before the line that refers to them, so new ones are kept.
            if blob.name not in used and now - blob.stat().st_mtime > _DAY_S:
                blob.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [*self.path.glob("*.jsonl"), *self.path.glob("*.jsonl.1")] if self.path.is_dir() else []

    # --- reading

    def turns(self, key: str) -> dict[str, list[Facts]]:
        """Return the events of each turn of a session, oldest first. Unreadable lines are skipped."""
        turns: dict[str, list[Facts]] = {}
        for line in _read_both(self.path / f"{stem_of(key)}.jsonl"):
            if line.get("session") == key:
                turns.setdefault(str(line.get("turn")), []).extend(dicts(line.get("events")))
        return turns

    def keys(self) -> list[str]:
        """Return the keys of the sessions with traces."""
        first = (next(_read_lines(path), {}).get("session") for path in self._files())
        return list(dict.fromkeys(key for key in first if isinstance(key, str)))

    def blob(self, name: str) -> str | None:
        """Return the content of a blob; None if it is missing or damaged."""
        try:
            data = (self._blobs / Path(name).name).read_bytes()
        except OSError:
            return None
        return data.decode() if _blob_name(data) == name else None

    def forget(self, key: str, turns: Container[str]) -> None:
        """Delete the traces of these turns, and of the session's turns without a model call (slash commands).

        Raises OSError.
        """
        path = self.path / f"{stem_of(key)}.jsonl"
        turns_with_model = {
            line.get("turn")
            for line in _read_both(path)
            if any(event.get("type") == "run_started" for event in dicts(line.get("events")))
        }
        for file in (path, _older_file(path)):
            lines = [*_read_lines(file)]
            remaining = [
                facts
                for facts in lines
                if facts.get("session") != key
                or (facts.get("turn") not in turns and facts.get("turn") in turns_with_model)
            ]
            if not remaining:
                file.unlink(missing_ok=True)
            elif len(remaining) < len(lines):
                write_atomic(file, b"".join(encode(facts) for facts in remaining))


def dicts(value: object) -> list[Facts]:
    """Return the objects in a list, whatever a file has in its place."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _bound(value: Any, max_depth: int = _MAX_DEPTH) -> Any:
    """Return a copy limited in depth and items. Texts are not shortened."""
    if isinstance(value, dict):
        if max_depth == 0:
            return f"{{{len(value)} keys}}"
        limited = {str(name): _bound(item, max_depth - 1) for name, item in [*value.items()][:_MAX_KEYS]}
        return limited if len(limited) == len(value) else {**limited, "...": f"{len(value) - len(limited)} more"}
    if isinstance(value, list | tuple):
        if max_depth == 0:
            return f"[{len(value)} items]"
        items = [_bound(item, max_depth - 1) for item in value[:_MAX_ITEMS]]
        return items if len(items) == len(value) else [*items, f"... {len(value) - len(items)} more"]
    return value if value is None or isinstance(value, str | bool | int | float) else str(value)


def _read_lines(path: Path) -> Iterator[Facts]:
    with suppress(OSError):
        yield from json_objects(path.read_bytes())


def _read_both(path: Path) -> list[Facts]:
    """Return the lines of both files as of one moment; read again if they were rotated meanwhile."""
    lines: list[Facts] = []
    for _ in range(_MAX_READS):
        before = _identity(path)
        lines = [*_read_lines(_older_file(path)), *_read_lines(path)]
        if _identity(path) == before:
            break
    return lines


def _identity(path: Path) -> int | None:
    with suppress(OSError):
        return path.stat().st_ino
    return None


def _to_plain(content: object) -> Any:
    return asdict(content) if is_dataclass(content) and not isinstance(content, type) else content


def _blob_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _older_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
