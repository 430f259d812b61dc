"""What Dream did to one memory: its cursor in the log, its passes, and how to take one back.

A pass is a row of its own, and one revision of MEMORY.md if it changed something; both are written in one transaction,
so a kill leaves both or neither. Restoring puts the text before the pass back, with
later changes by others. Methods block; writing raises StorageError.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from nanobot.agent.memory.due import Due, DueTimes
from nanobot.agent.memory.edits import merge_concurrent_changes
from nanobot.agent.memory.facts import parse_facts, remove_facts
from nanobot.agent.memory.history import HistoryEntry, entry_spans, parse_entry
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, is_like
from nanobot.agent.memory.store import MemoryStore, storage_errors
from nanobot.errors import NanobotError, StorageError
from nanobot.utils import codec

if TYPE_CHECKING:
    from sqlite3 import Connection

_ANCHOR_BYTES = 256
"""Bytes of the log before the cursor that are hashed to detect a rewritten log."""
_MAX_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class DreamState:
    """The cursor in the log and the revisions, and the last failure."""

    begun: bool = False
    """Whether there was a run before."""
    offset: int = 0
    anchor: str = ""
    change: int = 0
    """Number of the last revision read."""
    failed_size: int = 0
    """Size of the log at the last failure."""
    error: str = ""


class PassOutcome(StrEnum):
    """How a pass ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """An edit of a pass, as shown to people."""

    action: str
    before: Sequence[str]
    after: str = ""
    why: str = ""


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
    """The state and the passes of Dream for one memory."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._revisions = memory.revisions
        self._due = DueTimes(memory.revisions.database, "dream")

    def load(self) -> tuple[DreamState, Due]:
        """Return the state and the backoff."""
        due = self._due.get(self._revisions.memory)
        return codec.adapter(DreamState).validate_python(due.state), due

    def save(self, state: DreamState, due: Due) -> None:
        """Store the state and the backoff."""
        self._due.put(self._revisions.memory, replace(due, state=asdict(state)))

    def add(self, dream_pass: DreamPass) -> DreamPass:
        """Store a pass, as a new one if its number is 0. Return it with its number."""
        with self._revisions.writing() as db:
            return self.write(db, dream_pass)

    def write(self, db: "Connection", dream_pass: DreamPass) -> DreamPass:
        """Like `add`, in a transaction of the caller."""
        memory = self._revisions.memory
        if not dream_pass.number:
            query = "SELECT COALESCE(MAX(number), 0) + 1 FROM dream_passes WHERE memory = ?"
            dream_pass = replace(dream_pass, number=db.execute(query, (memory,)).fetchone()[0])
        text = codec.to_json(dream_pass, exclude_defaults=True)
        row = (memory, dream_pass.number, dream_pass.change, text)
        db.execute("INSERT OR REPLACE INTO dream_passes VALUES (?, ?, ?, ?)", row)
        return dream_pass

    def passes(self) -> list[DreamPass]:
        """Return the passes, newest first."""
        try:
            with self._revisions.reading() as db:
                query = "SELECT pass FROM dream_passes WHERE memory = ? ORDER BY number DESC"
                return [codec.from_json(DreamPass, text) for (text,) in db.execute(query, (self._revisions.memory,))]
        except StorageError:
            return []

    def active_passes(self) -> list[DreamPass]:
        """Return the passes that changed something and were not restored or undone, newest first."""
        undone = {change.undoes for change in self._revisions.changes() if change.undoes is not None}
        return [
            dream_pass
            for dream_pass in self.passes()
            if dream_pass.outcome is PassOutcome.CHANGED
            and dream_pass.change not in undone
            and (dream_pass.restored is None or dream_pass.restored in undone)
        ]

    def last_change(self) -> int:
        """Return the number of the last revision."""
        changes = self._revisions.changes()
        return changes[-1].number if changes else 0

    def restore(
        self, number: int | None = None, *, who: str = "", may: Callable[[DreamPass], bool] = lambda target: True
    ) -> DreamPass:
        """Restore the memory to before a pass (by default the last), undoing later passes too. Return that pass.

        Changes by others since then stay. If they cannot be separated from what a pass wrote, nothing is changed.
        Raises NanobotError with the next step.
        """
        memory = self._memory
        with memory.revisions.lock():
            memory.record_changes()
            active = self.active_passes()
            target = next((target for target in active if number in (None, target.number)), None)
            if target is None:
                raise NanobotError(_nothing_to_restore(number, active))
            restored = [later for later in active if later.number >= target.number]
            if not all(map(may, restored)):
                raise NanobotError("Somebody else started that pass; only an owner may restore it.")
            data = memory.file_bytes(memory.memory_file)
            if data is None:
                raise NanobotError("The memory was cleared after that pass. Bring it back first with /memory undo.")
            texts = [memory.revisions.texts(later.change or 0) for later in restored]
            for text in texts:
                data = _rebase(text.after or b"", data, text.before or b"")
            data = _without_forgotten(
                data, self._forgotten_since(restored), memory.file_bytes(memory.memory_file) or b""
            )
            change = memory.change(memory.memory_file, data, ChangedBy.RESTORE, ChangeSource(who=who))
            for later, text in zip(restored, texts, strict=True):
                memory.remove_archived(text.archived)
                self.add(replace(later, restored=change.number if change is not None else 0))
            return target

    def _forgotten_since(self, passes: Sequence[DreamPass]) -> list[str]:
        """Return the facts that were forgotten since the first of these passes, with those that passes had merged into
        them.
        """
        first = passes[-1].change or 0
        changes = self._revisions.changes()
        undone = {change.undoes for change in changes}
        forgot = [
            text
            for change in changes
            if change.number > first and change.number not in undone
            for text in change.forgot
        ]
        return [*forgot, *_sources_of(forgot, passes)]

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
        return hashlib.sha256(self._read(begin, offset - begin)).hexdigest()[:16]

    def _read(self, begin: int, size: int) -> bytes:
        with storage_errors("HISTORY.md cannot be read"):
            try:
                with self._memory.files.read(self._memory.history_file) as file:
                    file.seek(begin)
                    return file.read(size)
            except FileNotFoundError:
                return b""


def _replace_invalid(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _rebase(before: bytes, after: bytes, data: bytes) -> bytes:
    """Apply the change from `before` to `after` to other bytes. Raises NanobotError on a conflict."""
    if before == after:
        return data
    base, update, current = (side.decode("utf-8", "surrogateescape") for side in (before, after, data))
    text, conflicts = merge_concurrent_changes(base, update, current)
    if conflicts:
        lines = "\n".join(conflicts[:5])
        raise NanobotError(
            f"These lines were written later, over what that pass wrote, and would be lost:\n{lines}\nTake them back "
            "first (/memory undo, or in an editor), then try again."
        )
    return text.encode("utf-8", "surrogateescape")


def _without_forgotten(data: bytes, forgot: Sequence[str], current: bytes) -> bytes:
    """Remove facts that were forgotten since and would come back, unless they are in the current memory."""
    text = data.decode("utf-8", "surrogateescape")
    known = {fact.key for fact in parse_facts(current.decode("utf-8", "surrogateescape"))}
    returning = [
        fact
        for fact in parse_facts(text)
        if fact.key not in known and any(is_like(fact.text, forgotten) for forgotten in forgot)
    ]
    return remove_facts(text, returning).encode("utf-8", "surrogateescape") if returning else data


def _sources_of(forgot: Sequence[str], passes: Sequence[DreamPass]) -> Iterator[str]:
    """Yield the facts that these passes merged into the forgotten ones."""
    for edit in (edit for dream_pass in passes for edit in dream_pass.edits if edit.after):
        if any(is_like(edit.after, forgotten) for forgotten in forgot):
            yield from edit.before


def _nothing_to_restore(number: int | None, active: Sequence[DreamPass]) -> str:
    if number is None or not active:
        return "There is no Dream pass to restore."
    known = ", ".join(str(dream_pass.number) for dream_pass in active[:10])
    return f"Dream pass {number} cannot be restored. These can: {known}."
