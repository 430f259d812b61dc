"""The state and the log of Dream for one memory, stored beside its revisions where no tool writes.

`dream.json` has the cursor and the backoff. `dreams.jsonl` gets one line before a pass changes anything and one when it
has ended; together they tell after a crash whether the change was applied. Methods block; writing raises StorageError.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nanobot.agent.memory.store import HistoryEntry, MemoryStore, entry_spans, parse_entry, storage_errors
from nanobot.security.files.paths import PathDeniedError
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.text import json_objects, strict_json

_ANCHOR_BYTES = 256
"""Bytes of the log before the cursor that are hashed to detect a rewritten log."""
_MAX_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class DreamState:
    """The cursor in the log and the revisions, and the backoff after failures."""

    begun: bool = False
    """Whether there was a run before."""
    offset: int = 0
    anchor: str = ""
    change: int = 0
    """Number of the last revision read."""
    failures: int = 0
    retry_at: float = 0.0
    failed_size: int = 0
    """Size of the log at the last failure."""
    error: str = ""


class PassOutcome(StrEnum):
    """How a pass ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    CONTINUE_INTERRUPTED = "broken off"
    """The process ended before anything changed."""


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """An edit of a pass, as shown to people."""

    action: str
    before: Sequence[str]
    after: str = ""
    why: str = ""
    key: str = ""
    """Key of the resulting fact."""
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class DreamPass:
    """One pass: one model call and what it changed."""

    number: int
    at: str
    outcome: PassOutcome
    reason: str = ""
    who: str = ""
    model: str = ""
    calls: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    entries: int = 0
    """New log entries it was shown."""
    bytes_before: int = 0
    bytes_after: int = 0
    edits: Sequence[AppliedEdit] = ()
    refused: Sequence[str] = ()
    before: str = ""
    after: str = ""
    """Hashes of MEMORY.md before and after."""
    archived: str = ""
    """Text appended to ARCHIVE.md."""
    since: int = 0
    """Number of the last revision before it."""
    change: int | None = None
    """Number of its revision."""
    restored: int | None = None
    """Number of the revision that restored the memory; 0 if that changed nothing."""


@dataclass(frozen=True, slots=True)
class NewEntries:
    """New log entries, and the offset where the log ends."""

    end: int
    entries: Sequence[HistoryEntry] = ()
    ends: Sequence[int] = ()
    """End offset of each entry."""


class DreamLog:
    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._state = memory.revisions.folder / "dream.json"
        self._lines = memory.revisions.folder / "dreams.jsonl"
        self._files = memory.revisions.files

    def state(self) -> DreamState:
        """Load the state; the initial one if it cannot be read."""
        with suppress(OSError, PathDeniedError, ValueError, TypeError):
            with self._files.read(self._state) as file:
                data: Any = json.loads(file.read())
            names = DreamState.__dataclass_fields__
            kinds = {name: type(getattr(DreamState(), name)) for name in names}
            return DreamState(**{name: kinds[name](data[name]) for name in names if name in data})
        return DreamState()

    def save(self, state: DreamState) -> None:
        """Store the state."""
        with (
            storage_errors("The state of Dream cannot be stored"),
            self._files.own_location(self._state) as place,
        ):
            place.replace((json.dumps(asdict(state)) + "\n").encode(), PRIVATE_FILE)

    def add(self, dream_pass: DreamPass, *, begun: bool = False) -> None:
        """Append a pass that is about to change something (`begun`), or has ended."""
        row = {name: value for name, value in asdict(dream_pass).items() if value not in ("", None, (), [])}
        with storage_errors("The Dream pass cannot be recorded"), self._files.own_location(self._lines) as place:
            place.append((strict_json({**row, "begun": True} if begun else row) + "\n").encode())

    def passes(self) -> list[DreamPass]:
        """Return the finished passes, newest first."""
        return [dream_pass for dream_pass, begun in reversed(self._rows().values()) if not begun]

    def open_pass(self) -> DreamPass | None:
        """Return a pass that began to change something and has no recorded end; None if there is none."""
        return next((dream_pass for dream_pass, begun in reversed(self._rows().values()) if begun), None)

    def next_number(self) -> int:
        return max(self._rows(), default=0) + 1

    def news(self, state: DreamState, limit: int) -> NewEntries:
        """Return the log entries after the cursor; the last `limit` ones if the log was never read or was rewritten.

        Raises StorageError.
        """
        size = self.size()
        if state.begun and size == state.offset:
            return NewEntries(size)
        is_continued = state.begun and size > state.offset and self.anchor_at(state.offset) == state.anchor
        begin = state.offset if is_continued else max(0, size - _MAX_READ_BYTES)
        data = self._read(begin, size - begin)
        text = data.decode("utf-8", "surrogateescape")
        entries = [
            (parse_entry(_replace_invalid(text[at:end])), begin + len(text[:end].encode("utf-8", "surrogateescape")))
            for at, end in entry_spans(text)
        ]
        entries = entries if is_continued else entries[-limit:]
        return NewEntries(begin + len(data), [entry for entry, _ in entries], [end for _, end in entries])

    def size(self) -> int:
        """Return the size of HISTORY.md in bytes."""
        try:
            return self._memory.history_file.stat().st_size
        except OSError:
            return 0

    def anchor_at(self, offset: int) -> str:
        """Hash the bytes before an offset, to detect a rewritten log. Raises StorageError."""
        begin = max(0, offset - _ANCHOR_BYTES)
        return content_hash(self._read(begin, offset - begin))

    def _read(self, begin: int, size: int) -> bytes:
        with storage_errors("HISTORY.md cannot be read"):
            try:
                with self._files.read(self._memory.history_file) as file:
                    file.seek(begin)
                    return file.read(size)
            except FileNotFoundError:
                return b""

    def _rows(self) -> dict[int, tuple[DreamPass, bool]]:
        """Return the last line of each pass by number, and whether it only announces the pass."""
        try:
            with self._files.read(self._lines) as file:
                rows = list(json_objects(file.read()))
        except (OSError, PathDeniedError):
            return {}
        passes: dict[int, tuple[DreamPass, bool]] = {}
        for row in rows:
            if (dream_pass := _pass_of(row)) is not None:
                passes[dream_pass.number] = (dream_pass, row.get("begun") is True)
        return passes


def _replace_invalid(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def content_hash(data: bytes | None) -> str:
    """Return a short hash of a file's content; empty for no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()[:16]


def _pass_of(row: Mapping[str, Any]) -> DreamPass | None:
    try:
        values = {name: row[name] for name in DreamPass.__dataclass_fields__ if name in row}
        edits = [
            AppliedEdit(**{name: edit[name] for name in AppliedEdit.__dataclass_fields__ if name in edit})
            for edit in values.pop("edits", ())
        ]
        return DreamPass(
            **{**values, "number": int(row["number"]), "outcome": PassOutcome(row["outcome"]), "edits": edits}
        )
    except (KeyError, TypeError, ValueError):
        return None
