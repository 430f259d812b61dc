"""The folder of traces: one file of lines per session, and the prompts, stored once for all turns.

traces/<session>-<hash>.jsonl      the newest turns of a session: lines with the events of a turn, one or a few for each
traces/<session>-<hash>.jsonl.1    the turns before them
traces/blobs/<hash>                a system prompt or tool schemas, as sent

Secrets are redacted. Files are not synced: a power cut may lose the last lines.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Container, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nanobot.security.secrets import redact_head, redact_texts, redact_value
from nanobot.session.file_format import encode, hashed_stem
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
_LEFT_OUT = ("turn_id", "seq", "display")
_AS_IT_IS = frozenset(
    ("type", "t", "at", "workspace", "origin", "model", "provider", "until", "limits", "call_id", "question", "outcome",
     "usage", "finish_reason", "phase_seconds")
)  # fmt: skip
"""Fields whose value is ours, or an id that must match the session's."""
_DAY_S = 86_400
_MAX_BLOBS_CACHED = 64


class TraceStore:
    """A folder of traces. Not thread-safe; several processes may write."""

    def __init__(self, path: Path, *, file_bytes: int = 1 << 20, total_bytes: int = 64 << 20, days: int = 30) -> None:
        """What is kept: bytes of each of the two files of a session, bytes in total, days."""
        self.path = path
        self._blobs = path / "blobs"
        self._file_bytes = file_bytes
        self._total_bytes = total_bytes
        self._days = days
        self._blob_cache: dict[object, tuple[object, str, bytes]] = {}
        """Contents with their name and redacted bytes, by text or by identity. Redacting a prompt takes a while."""
        self._has_failed = False

    def write(self, turns: Mapping[tuple[str, str], list[Facts]]) -> None:
        """Append events, by session and turn. Storage failures lose them and are logged once."""
        lines: dict[str, bytes] = {}
        try:
            make_private_folder(self._blobs)
            for (session, turn), events in turns.items():
                line = _line(session, turn, [self._clean(event) for event in events])
                lines[session] = lines.get(session, b"") + line
            for session, data in lines.items():
                self._append(self._file(session), data)
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
            elif name in ("system", "tools"):
                clean[name] = self._store_blob(value)
            elif name in ("arguments", "asked"):
                clean[name] = redact_value(value, _VALUE_CHARS)
                text = json.dumps(clean[name], ensure_ascii=False, default=str)
                if len(text) > _ARGUMENTS_CHARS:
                    clean[name] = {"...": redact_head(text, _ARGUMENTS_CHARS)}
            else:
                clean[name] = value if name in _AS_IT_IS else redact_value(value, _TEXT_CHARS)
        return clean

    def _store_blob(self, content: str | list[Any]) -> str:
        """Store the content and return its name. The time of the file is that of its last use, to the day."""
        key = content if isinstance(content, str) else id(content)
        if key not in self._blob_cache:
            if len(self._blob_cache) >= _MAX_BLOBS_CACHED:
                self._blob_cache.clear()
            clean = redact_texts(content)
            text = clean if isinstance(clean, str) else json.dumps(clean, ensure_ascii=False, default=str)
            data = text.encode("utf-8", "backslashreplace")
            self._blob_cache[key] = (content, _blob_name(data), data)
        _, name, data = self._blob_cache[key]
        path = self._blobs / name
        try:
            status = path.stat()
        except FileNotFoundError:
            status = None
        if status is None or status.st_size != len(data):
            write_in_place(path, data)
        elif time.time() - status.st_mtime > _DAY_S:
            os.utime(path)
        return name

    def _append(self, path: Path, data: bytes) -> None:
        """Append whole lines in one write, so that lines of two processes never mix. A full file is rotated first."""
        with suppress(OSError):  # no file yet; or on Windows a reader has it open
            if path.stat().st_size + len(data) > self._file_bytes:
                path.replace(_older_file(path))
        descriptor = open_for_append(path)
        try:  # a truncated last line gets a line end first
            write_whole(descriptor, missing_newline(descriptor) + data)
        finally:
            os.close(descriptor)

    def sweep_if_due(self) -> None:
        """Once a day, in whichever process comes first, delete what is expired, and the oldest traces above the total
        size. Never raises.
        """
        now, total = time.time(), 0
        oldest, marker = now - self._days * _DAY_S, self.path / ".swept"
        try:
            if marker.exists() and now - marker.stat().st_mtime < _DAY_S:
                return
            marker.touch(PRIVATE_FILE)
            files = sorted(
                ((path.stat(), path) for path in self.path.glob("*.jsonl*")), key=lambda file: -file[0].st_mtime
            )
            for status, path in files:
                total += status.st_size
                if status.st_mtime < oldest or total > self._total_bytes:
                    path.unlink(missing_ok=True)
            for blob in self._blobs.iterdir():
                if blob.stat().st_mtime < oldest - _DAY_S:
                    blob.unlink(missing_ok=True)
        except OSError as error:
            log.warning("old traces cannot be deleted: %s", error)

    def _file(self, session: str) -> Path:
        return self.path / f"{hashed_stem(session)}.jsonl"

    def turns(self, session: str) -> dict[str, list[Facts]]:
        """Return the events of each turn of a session, oldest first. Unreadable lines are skipped."""
        turns: dict[str, list[Facts]] = {}
        path = self._file(session)
        for file in (_older_file(path), path):
            with suppress(OSError):
                for line in json_objects(file.read_bytes()):
                    turns.setdefault(str(line.get("turn")), []).extend(line.get("events", ()))
        return turns

    def blob(self, name: object) -> str | None:
        """Return the content of a blob; None if it is missing or damaged."""
        try:
            data = (self._blobs / Path(str(name)).name).read_bytes()
        except OSError:
            return None
        return data.decode() if _blob_name(data) == name else None

    def forget(self, session: str, turns: Container[str]) -> None:
        """Delete the traces of these turns, and of the session's turns without a model call (slash commands).

        Raises OSError.
        """
        kept = b"".join(
            _line(session, turn, events)
            for turn, events in self.turns(session).items()
            if turn not in turns and any(event["type"] == "run_started" for event in events)
        )
        path = self._file(session)
        if kept:
            write_atomic(path, kept)
        else:
            path.unlink(missing_ok=True)
        _older_file(path).unlink(missing_ok=True)


def _line(session: str, turn: str, events: list[Facts]) -> bytes:
    return encode({"turn": turn, "session": session, "events": events})


def _blob_name(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _older_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")
