"""Revisions of a memory: every version of its files, who made each change and when, and where each fact came from.

A table of the database of nanobot's state; the files stay plain Markdown, and a fact is identified by its words. One
action may change several files: its revisions are a group, written in one transaction before the files. After a kill in
between, the next look takes the action back. Methods block.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.agent.memory.facts import (
    PIN,
    Fact,
    add_fact,
    decode_escaped,
    encode_escaped,
    fact_words,
    parse_facts,
    remove_facts,
)
from nanobot.agent.memory.files import SCHEMA, MemoryFiles
from nanobot.errors import StorageError
from nanobot.messages.types import ChatMessage, Provenance, is_outside, is_synthetic, shown_text
from nanobot.utils import codec
from nanobot.utils.clock import timestamp
from nanobot.utils.database import reading, writing
from nanobot.utils.files import make_private_folder
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import clip_line

ARCHIVE = "ARCHIVE.md"
_MAX_QUOTE_CHARS = 300
_KEPT_TEXTS = 1_000
"""So many of the newest revisions keep their texts, and the last two of each file."""
_ALIKE = 0.7
"""Share of common words from which two facts count as the same when one of them is forgotten."""


class ChangedBy(StrEnum):
    """Who or what changed a memory."""

    CONSOLIDATION = "consolidation"
    AGENT = "agent"
    """A file tool, in a turn."""
    HAND = "hand"
    """An editor, or another program."""
    FORGET = "forget"
    UNDO = "undo"
    SHARE = "share"
    EDIT = "edit"
    PIN = "pin"
    LESSON = "lesson"
    RESET = "reset"
    DREAM = "dream"
    RESTORE = "restore"
    """Back to before a Dream pass."""


@dataclass(frozen=True, slots=True)
class ChangeSource:
    """Where a change came from: the messages it was made of, and their trust."""

    session: str = ""
    who: str = ""
    rows: Sequence[ChatMessage] = ()
    provenance: Provenance = Provenance.OWNER
    origins: Mapping[str, Mapping[str, Any]] | None = None
    """Known origins of facts, by key: those of facts that were merged from others."""

    def origin_of(self, fact: Fact) -> dict[str, Any]:
        """Return the stored origin of a fact: the message that shares most words with it, users' messages first."""
        if self.origins is not None:
            return dict(self.origins.get(fact.key, {}))
        words = fact_words(fact.text)
        candidates = [
            (len(words & fact_words(shown_text(row))), row)
            for row in self.rows
            if row.get("role") in ("user", "assistant") and not is_synthetic(row)
        ]
        is_stated_by_owner = any(
            common and common >= 0.6 * len(words) and row["role"] == "user" and row.get("provenance") == "owner"
            for common, row in candidates
        )
        trust = Provenance.OWNER if is_stated_by_owner else self.provenance
        common, best = max(candidates, key=lambda item: item[0] + (item[1]["role"] == "user") / 2, default=(0, None))
        details: dict[str, Any] = {"session": self.session, "who": self.who}
        if best is not None and common:
            details |= {
                "turn": best.get("turn_id"),
                "said_at": best.get("timestamp"),
                "who": best.get("sender_id") or self.who or best["role"],
                "quote": clip_line(" ".join(shown_text(best).split()), _MAX_QUOTE_CHARS),
            }
        details["provenance"] = trust.value if is_outside(trust) else ""
        return {name: value for name, value in details.items() if value}


UNKNOWN_SOURCE = ChangeSource()


class PassOutcome(StrEnum):
    """How a Dream pass ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class AppliedEdit:
    """An edit of a Dream pass, as shown to people."""

    action: str
    before: Sequence[str]
    after: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class DreamPass:
    """What a revision tells of a Dream pass: one model call and what it changed, perhaps nothing."""

    number: int
    at: str
    outcome: PassOutcome
    reason: str = ""
    who: str = ""
    model: str = ""
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    entries: int = 0
    """New log entries it was shown."""
    bytes_before: int = 0
    bytes_after: int = 0
    edits: Sequence[AppliedEdit] = ()
    refused: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Revision:
    """A change of one file."""

    number: int
    at: str
    by: ChangedBy
    file: str
    group: int
    """Number of the first revision of the same action."""
    is_first: bool = False
    """Whether there was no file before."""
    is_change: bool = True
    added: Sequence[dict[str, Any]] = ()
    """Facts: key, text, and the origin of each."""
    removed: Sequence[str] = ()
    who: str = ""
    undoes: Sequence[int] = ()
    """Groups that it takes back, newest first."""
    forgot: Sequence[str] = ()
    """Texts of facts that must not be learned again from older messages."""
    dream: DreamPass | None = None
    log_read: int | None = None
    """Up to where HISTORY.md is read with it; Dream goes on from there."""

    @property
    def is_initial(self) -> bool:
        """Whether it only records the content found at first, by an unknown author."""
        return self.by is ChangedBy.HAND and self.is_first

    def to_json(self) -> dict[str, Any]:
        """The change for programs, without the stored texts."""
        return {
            "number": self.number,
            "at": self.at,
            "by": self.by,
            "file": self.file,
            "added": [dict(entry) for entry in self.added],
            "removed": list(self.removed),
            "who": self.who,
            "undoes": self.undoes[0] if self.undoes else None,
        }


@dataclass(frozen=True, slots=True)
class FactOrigin:
    """The revision that added a fact, and the origin it recorded."""

    change: Revision
    details: Mapping[str, Any]

    @property
    def is_lesson(self) -> bool:
        """Whether code learned the fact; models do not see it and cannot remove it."""
        return self.change.by is ChangedBy.LESSON


class RevisionLog:
    """The revisions of some files, which `memory` names in the database; every change of ours goes through it."""

    def __init__(self, files: MemoryFiles, memory: str) -> None:
        self.files = files
        self.database = files.database
        self.memory = memory
        name = hashlib.sha256(memory.encode("utf-8", "replace")).hexdigest()[:16]
        self._lock_file = self.database.parent / "memory" / f"{name}.lock"
        self._known: list[Revision] = []
        self._last_row: str | None = None
        """The last of them as stored."""
        self._mutex = threading.RLock()
        self._depth = 0

    def changes(self) -> list[Revision]:
        """Return all revisions, oldest first; none if the database cannot be read. Parses only new ones."""
        try:
            with self._mutex, reading(self.database, SCHEMA) as db:
                query = "FROM memory_revisions WHERE memory = ? AND number"
                last = self._known[-1].number if self._known else 0
                state = db.execute(f"SELECT COUNT(*), MAX(number), revision {query} <= ?", (self.memory, last))
                count, _, row = state.fetchone()
                if (count, row) != (len(self._known), self._last_row):  # a deleted number may be given again
                    self._known, self._last_row, last = [], None, 0
                rows = [
                    row for (row,) in db.execute(f"SELECT revision {query} > ? ORDER BY number", (self.memory, last))
                ]
                self._known = [*self._known, *(codec.from_json(Revision, row) for row in rows)]
                self._last_row = rows[-1] if rows else self._last_row
                return self._known
        except StorageError:
            return []

    def texts(self, change: Revision) -> tuple[bytes | None, bytes | None]:
        """Return the content of the file before and after a change, None for no file. Raises StorageError if they are
        not stored any more.
        """
        rows = self._versions(change.file, change.number)
        if not all(is_kept for _, _, is_kept in rows):
            raise StorageError("This version is no longer stored.")
        return (rows[1][1] if len(rows) > 1 else None), rows[0][1]

    def _last(self, file: str) -> tuple[Revision | None, bytes | None, bytes | None]:
        """Return a file's newest revision, and its content before and after it. Raises StorageError."""
        rows = [*self._versions(file), (None, None, True), (None, None, True)]
        return codec.from_json(Revision, rows[0][0]) if rows[0][0] else None, rows[1][1], rows[0][1]

    def _versions(self, file: str, number: int = 1 << 62) -> list[tuple[str | None, bytes | None, bool]]:
        """Return the revision of a file at this number and the one before it: as stored, its text, whether it is
        kept.
        """
        with reading(self.database, SCHEMA) as db:
            return db.execute(
                "SELECT revision, text, is_kept FROM memory_revisions WHERE memory = ? AND file = ? AND number <= ?"
                " ORDER BY number DESC LIMIT 2",
                (self.memory, file, number),
            ).fetchall()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Reentrant lock around a read-modify-write of memory files, across threads and processes. Raises
        StorageError.
        """
        with self._mutex, ExitStack() as stack:
            if not self._depth:
                try:
                    make_private_folder(self._lock_file.parent)
                    stack.enter_context(file_lock(self._lock_file))
                except OSError as error:
                    raise storage_error("The revision log of the memory cannot be opened", error) from error
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    @property
    def dream_lock_file(self) -> Path:
        return self._lock_file.with_suffix(".dream.lock")

    def record(self, by: ChangedBy = ChangedBy.HAND, source: ChangeSource = UNKNOWN_SOURCE) -> None:
        """Record what an editor or a tool changed as revisions; an action of ours that a kill or a full disk
        interrupted is taken back. Raises StorageError.
        """
        with self.lock():
            changes: list[Revision] = []
            for file in self.files.fact_files.values():
                data = self.files.file_bytes(file)
                last, before, after = self._last(file.name)
                if data == after:
                    continue
                if last is not None and last.by not in (ChangedBy.HAND, ChangedBy.AGENT) and data == before:
                    self._take_back([change for change in self.group(last.group) if change.by is last.by])
                else:
                    changes += self.add({file.name: data}, by, source)
            for change in changes if by is ChangedBy.AGENT else ():
                self._restore_pinned(change)

    def change(
        self,
        files: Mapping[str, bytes | None],
        by: ChangedBy,
        source: ChangeSource = UNKNOWN_SOURCE,
        *,
        archived: Sequence[Fact] = (),
        **details: Any,
    ) -> None:
        """Replace the content of memory files, by name (None deletes one), and add facts to the archive, as one action
        with a revision for each file. `details` are further fields of these. Unrecorded edits are recorded first.
        Raises StorageError; the files are then unchanged.
        """
        with self.lock():
            self.record()
            files = {**self._with_archived(archived), **files}
            changes = self.add(files, by, source, **details)
            try:
                for change in changes:
                    if change.is_change:
                        self.files.write(self.files.fact_files[change.file], files[change.file])
            except StorageError:
                with suppress(StorageError):
                    self._take_back(changes)
                raise

    def _take_back(self, changes: Sequence[Revision]) -> None:
        """Take back an action that was not applied, or only in part. Raises StorageError."""
        for change in changes:
            file = self.files.fact_files[change.file]
            before, after = self.texts(change)
            if self.files.file_bytes(file) == after != before:
                self.files.write(file, before)
        with writing(self.database, SCHEMA) as db:
            numbers = [(self.memory, change.number) for change in changes]
            db.executemany("DELETE FROM memory_revisions WHERE memory = ? AND number = ?", numbers)

    def _restore_pinned(self, change: Revision) -> None:
        """Put back pinned facts that the agent's tools removed or reworded: only a person may. Raises StorageError."""
        before, after = map(decode_escaped, self.texts(change))
        text = after
        for fact in (fact for fact in parse_facts(before) if fact.pinned):
            facts = parse_facts(text)
            if not any(other.pinned and other.text == fact.text for other in facts):
                text = remove_facts(text, [other for other in facts if other.key == fact.key])
                heading = fact.heading if any(other.heading == fact.heading for other in facts) else ""
                text = add_fact(text, heading, f"{fact.text} {PIN}")
        if text != after:
            files, source = {change.file: encode_escaped(text)}, ChangeSource(who="nanobot")
            self.change(files, ChangedBy.PIN, source, group=change.group)

    def _with_archived(self, facts: Sequence[Fact]) -> dict[str, bytes | None]:
        """Return the archive with facts added under today's date; nothing if it has them all."""
        text = archive = decode_escaped(self.files.file_bytes(self.files.archive_file) if facts else None)
        known = {fact.key for fact in parse_facts(archive)}
        for fact in facts:
            if fact.key not in known:
                text = add_fact(text, f"{self.files.clock.now():%Y-%m-%d}", fact.text)
        return {ARCHIVE: encode_escaped(text)} if text != archive else {}

    def add(
        self,
        files: Mapping[str, bytes | None],
        by: ChangedBy,
        source: ChangeSource = UNKNOWN_SOURCE,
        *,
        group: int | None = None,
        **details: Any,
    ) -> list[Revision]:
        """Store that these files have this content, or are about to, as one action. Return the revisions: one for each
        file that changes, but with `details`, which are further fields, at least one. Raises StorageError.
        """
        with writing(self.database, SCHEMA) as db:
            query = "SELECT text FROM memory_revisions WHERE memory = ? AND file = ? ORDER BY number DESC LIMIT 1"
            before = {file: (db.execute(query, (self.memory, file)).fetchone() or [None])[0] for file in files}
            changed = [file for file in files if files[file] != before[file]]
            if not changed and any(details.values()):
                changed = [*files][-1:]
            row = db.execute("SELECT MAX(number) FROM memory_revisions WHERE memory = ?", (self.memory,)).fetchone()
            first = (row[0] or 0) + 1
            changes = []
            for number, file in enumerate(changed, first):
                old, new = _facts(before[file]), _facts(files[file])
                change = Revision(
                    number,
                    timestamp(self.files.clock),
                    by,
                    file,
                    group or first,
                    is_first=before[file] is None,
                    is_change=files[file] != before[file],
                    added=[
                        {"key": key, "text": fact.text, **source.origin_of(fact)}
                        for key, fact in new.items()
                        if key not in old
                    ],
                    removed=[fact.text for key, fact in old.items() if key not in new],
                    who=source.who,
                    **details,
                )
                row = (self.memory, number, file, files[file], codec.to_json(change, exclude_defaults=True))
                db.execute("INSERT INTO memory_revisions VALUES (?, ?, ?, ?, 1, ?)", row)
                changes.append(change)
            db.execute(
                "UPDATE memory_revisions AS old SET text = NULL, is_kept = 0"
                " WHERE memory = ?1 AND number <= ?2 AND is_kept AND (SELECT COUNT(*) FROM memory_revisions AS later"
                " WHERE later.memory = ?1 AND later.file = old.file AND later.number > old.number) > 1",
                (self.memory, first - _KEPT_TEXTS),
            )
        return changes

    def group(self, number: int) -> list[Revision]:
        """Return the revisions of one action, oldest first."""
        return [change for change in self.changes() if change.group == number]

    def undone(self) -> set[int]:
        """Return the groups that were taken back, and not brought back by undoing a restore."""
        undone: set[int] = set()
        for change in reversed(self.changes()):
            if change.group not in undone:
                undone.update(change.undoes)
        return undone

    def last_undoable(self) -> list[Revision]:
        """Return the newest action that is neither an undo nor undone; empty if there is none. The initial snapshot of
        a file cannot be undone.
        """
        undone = self.undone()
        for change in reversed(self.changes()):
            is_undo = change.by is ChangedBy.UNDO or not change.is_change
            if change.group not in undone and not is_undo and not change.is_initial:
                return self.group(change.group)
        return []

    def passes(self) -> list[DreamPass]:
        """Return all Dream passes, newest first."""
        passes = {change.dream.number: change.dream for change in self.changes() if change.dream is not None}
        return [*passes.values()][::-1]

    def dream_state(self) -> tuple[int | None, list[DreamPass]]:
        """Return how far the log was read, None if never, and the passes that failed since, newest first."""
        failed: list[DreamPass] = []
        for change in reversed(self.changes()):
            if change.log_read is not None:
                return change.log_read, failed
            failed += [change.dream] if change.dream is not None else []
        return None, failed

    def active_passes(self) -> dict[int, int]:
        """Return the groups of the Dream passes that changed something and were not taken back, by the number of the
        pass, newest first.
        """
        undone = self.undone()
        return {
            change.dream.number: change.group
            for change in reversed(self.changes())
            if change.dream is not None and change.is_change and change.group not in undone
        }

    def origins(self) -> dict[str, FactOrigin]:
        """Return the newest origin of each fact that ever existed, by key."""
        origins: dict[str, FactOrigin] = {}
        for change in self.changes():
            for details in change.added if change.file != ARCHIVE else ():
                if change.by not in (ChangedBy.UNDO, ChangedBy.RESTORE) or details["key"] not in origins:
                    origins[details["key"]] = FactOrigin(change, details)
        return origins

    def forgotten(self) -> dict[str, Revision]:
        """Return the forgotten facts and by which change each was forgotten, without undone ones."""
        undone = self.undone()
        return {text: change for change in self.changes() if change.group not in undone for text in change.forgot}


def is_like(fact: str, other: str) -> bool:
    """Whether two facts say nearly the same, so that forgetting one forgets the other."""
    words, other_words = fact_words(fact), fact_words(other)
    return bool(words and other_words) and len(words & other_words) >= _ALIKE * min(len(words), len(other_words))


def encodable(text: str) -> str:
    """The text with invalid bytes of a file, which are surrogates, replaced."""
    return text.encode("utf-8", "replace").decode()


def _facts(data: bytes | None) -> dict[str, Fact]:
    return {fact.key: fact for fact in parse_facts((data or b"").decode("utf-8-sig", "replace"))}
