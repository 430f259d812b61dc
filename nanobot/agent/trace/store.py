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
import time
from collections.abc import Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from nanobot.security.secrets import redact_head, redact_texts, redact_value
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

_TEXT_CHARS, _VALUE_CHARS, _ARGUMENTS_CHARS = 200, 160, 1000
"""Characters kept of a text, of one argument value, and of all arguments of a call."""
_BLOBS = ("system", "tools", "limits")
_LEFT_OUT = ("turn_id", "seq", "display")
_AS_IT_IS = frozenset(
    ("type", "t", "at", "workspace", "origin", "model", "provider", "until", "call_id", "question", "outcome", "usage",
     "finish_reason", "phase_seconds")
)  # fmt: skip
"""Fields whose value is ours, or an id that must match the session's."""
_DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """What is kept: bytes per session file (there are two), total bytes, days."""

    file_bytes: int = 1 << 20
    total_bytes: int = 64 << 20
    days: int = 30


class TraceStore:
    """A folder of traces. Not thread-safe; several processes may write."""

    def __init__(self, path: Path, limits: TraceLimits | None = None) -> None:
        self.path = path
        self._blobs = path / "blobs"
        self._limits = limits or TraceLimits()
        self._blob_cache: dict[object, tuple[object, str, bytes]] = {}
        self._stored: set[str] = set()
        """Names of the blobs known to be on the disk while one batch is written."""
        self._has_failed = False

    def write(self, turns: Mapping[tuple[str, str], list[Facts]]) -> None:
        """Append events, by session and turn. Storage failures lose them and are logged once."""
        lines: dict[str, bytes] = {}
        self._stored.clear()
        try:
            make_private_folder(self._blobs)
            for (session, turn), events in turns.items():
                line = {"turn": turn, "session": session, "events": [self._clean(event) for event in events]}
                stem = stem_of(session)
                lines[stem] = lines.get(stem, b"") + encode(line)
            for stem, data in lines.items():
                self._append(self.path / f"{stem}.jsonl", data)
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.warning("traces cannot be written: %s", error)
            self._has_failed = True

    def _clean(self, event: Facts) -> Facts:
        """Return the event redacted and shortened. The session has the texts and results."""
        clean: Facts = {}
        for name, value in event.items():
            if name in _LEFT_OUT or value is None:
                continue
            if name == "content" and event.get("ok"):
                clean[name] = ""
            elif name in _BLOBS:
                clean[name] = self._store_blob(value)
            elif name in ("arguments", "asked"):
                clean[name] = redact_value(value, _VALUE_CHARS)
                text = json.dumps(clean[name], ensure_ascii=False, default=str)
                if len(text) > _ARGUMENTS_CHARS:
                    clean[name] = {"...": redact_head(text, _ARGUMENTS_CHARS)}
            else:
                clean[name] = value if name in _AS_IT_IS else redact_value(value, _TEXT_CHARS)
        return clean

    def _store_blob(self, content: object) -> str:
        """Store the content and return its name. The time of the file is that of its last use, to the day."""
        key = id(content) if isinstance(content, list) else content
        cached = self._blob_cache.get(key)
        if cached is None:
            if len(self._blob_cache) > 64:
                self._blob_cache.clear()
            plain = asdict(content) if is_dataclass(content) and not isinstance(content, type) else content
            clean = redact_texts(plain)
            text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False, default=str)
            data = text.encode("utf-8", "backslashreplace")
            cached = self._blob_cache[key] = (content, _blob_name(data), data)
        _, name, data = cached
        if name in self._stored:
            return name
        self._stored.add(name)
        path = self._blobs / name
        with suppress(FileNotFoundError):
            status = path.stat()
            if status.st_size == len(data):
                if time.time() - status.st_mtime > _DAY_S:
                    os.utime(path)
                return name
        write_in_place(path, data)
        return name

    def _append(self, path: Path, data: bytes) -> None:
        """Append whole lines in one write, so that lines of two processes never mix. A full file is rotated first."""
        with suppress(OSError):  # no file yet; or on Windows a reader has it open
            if path.stat().st_size + len(data) > self._limits.file_bytes:
                os.replace(path, _older_file(path))
        descriptor = open_for_append(path)
        try:  # a truncated last line gets a line end first
            write_whole(descriptor, missing_newline(descriptor) + data)
        finally:
            os.close(descriptor)

    def sweep_if_due(self) -> None:
        """Delete old traces once a day, in whichever process comes first. Never raises."""
        marker = self.path / ".swept"
        try:
            if marker.exists() and time.time() - marker.stat().st_mtime < _DAY_S:
                return
            marker.touch(PRIVATE_FILE)
            self.sweep()
        except OSError as error:
            log.warning("old traces cannot be deleted: %s", error)

    def sweep(self) -> None:
        """Delete expired traces and blobs, and the oldest traces above the total size. Raises OSError."""
        oldest, total = time.time() - self._limits.days * _DAY_S, 0
        for status, path in sorted(((path.stat(), path) for path in self._files()), key=lambda item: -item[0].st_mtime):
            total += status.st_size
            if status.st_mtime < oldest or total > self._limits.total_bytes:
                path.unlink(missing_ok=True)
        for blob in self._blobs.iterdir():
            if blob.stat().st_mtime < oldest - _DAY_S:
                blob.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return [*self.path.glob("*.jsonl"), *self.path.glob("*.jsonl.1")]

    def turns(self, key: str) -> dict[str, list[Facts]]:
        """Return the events of each turn of a session, oldest first. Unreadable lines are skipped."""
        turns: dict[str, list[Facts]] = {}
        path = self.path / f"{stem_of(key)}.jsonl"
        for line in (*_read_lines(_older_file(path)), *_read_lines(path)):
            if line.get("session") == key:
                turns.setdefault(str(line.get("turn")), []).extend(line["events"])
        return turns

    def keys(self) -> list[str]:
        """Return the keys of the sessions with traces."""
        first = (next(_read_lines(path), {}).get("session") for path in self._files())
        return list(dict.fromkeys(key for key in first if key))

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
        ran = {turn for turn, events in self.turns(key).items() if any(e["type"] == "run_started" for e in events)}
        path = self.path / f"{stem_of(key)}.jsonl"
        for file in (path, _older_file(path)):
            lines = [*_read_lines(file)]
            kept = [
                line
                for line in lines
                if line.get("session") != key or (line.get("turn") in ran and line.get("turn") not in turns)
            ]
            if not kept:
                file.unlink(missing_ok=True)
            elif len(kept) < len(lines):
                write_atomic(file, b"".join(map(encode, kept)))


def _read_lines(path: Path) -> Iterator[Facts]:
    with suppress(OSError):
        yield from json_objects(path.read_bytes())


def _blob_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _older_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
