"""Revisions of a memory: every version of its files, who made each change and when, and where each fact came from.

A table of the database of nanobot's state. The memory files stay plain Markdown; a fact is identified by its words.

A revision is written before the file. After a kill in between the file still has the text before it, and the next look
of `MemoryStore` deletes the revision. Methods block.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from nanobot.agent.memory.due import SCHEMA
from nanobot.agent.memory.facts import Fact, fact_words, parse_facts
from nanobot.errors import StorageError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage, Provenance, is_outside, is_synthetic
from nanobot.utils import codec
from nanobot.utils.clock import Clock, timestamp
from nanobot.utils.database import reading, writing
from nanobot.utils.files import make_private_folder
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import clip_line

_QUOTED = 300
_KEPT_TEXTS = 1_000
"""So many of the newest revisions keep their texts."""
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
    """A person changed the words of a fact."""
    PIN = "pin"
    """A fact was pinned or unpinned."""
    LESSON = "lesson"
    """A recurring failure was learned or unlearned."""
    RESET = "reset"
    DREAM = "dream"
    """A Dream pass."""
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
        details = {"session": self.session} if self.session else {}
        best_row, best_share, trust = None, 0.0, self.provenance
        words = fact_words(fact.text)
        for row in self.rows:
            if row.get("role") not in ("user", "assistant") or is_synthetic(row):
                continue
            common = len(words & fact_words(shown_text(row)))
            share = common + (0.5 if row["role"] == "user" else 0)
            if common >= 0.6 * len(words) and row["role"] == "user" and row.get("provenance") == Provenance.OWNER:
                trust = Provenance.OWNER  # the owner stated it
            if share >= 1 and share > best_share:
                best_row, best_share = row, share
        if best_row is None:
            details |= {"who": self.who} if self.who else {}
            return details | ({"provenance": trust.value} if is_outside(trust) else {})
        return details | {
            name: value
            for name, value in {
                "turn": best_row.get("turn_id"),
                "said_at": best_row.get("timestamp"),
                "who": best_row.get("sender_id") or self.who or best_row["role"],
                "quote": clip_line(" ".join(shown_text(best_row).split()), _QUOTED),
                "provenance": trust.value if is_outside(trust) else "",
            }.items()
            if value
        }


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
    is_first: bool = False
    """Whether there was no file before."""
    is_change: bool = True
    """Whether the text changed; otherwise facts were only stated again, or a Dream pass changed nothing."""
    added: Sequence[dict[str, Any]] = ()
    """Facts: key, text, and the origin of each."""
    removed: Sequence[str] = ()
    who: str = ""
    undoes: Sequence[int] = ()
    """Numbers of the revisions it takes back, newest first."""
    group: int | None = None
    """Number of the first revision of a group that was one action."""
    forgot: Sequence[str] = ()
    """Texts of facts that must not be learned again from older messages."""
    mentioned: Sequence[str] = ()
    """Keys of facts that were stated again."""
    dream: DreamPass | None = None

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
class RevisionTexts:
    """The texts of a revision, None for no file; `archived` is what it appended to the archive."""

    number: int
    by: ChangedBy
    before: bytes | None
    after: bytes | None
    archived: bytes


@dataclass(frozen=True, slots=True)
class FactOrigin:
    """The revision that added a fact, the origin it recorded, and how often the fact was stated again."""

    change: Revision
    details: Mapping[str, Any]
    mentions: int = 0


class RevisionLog:
    """The revisions of one memory, which `memory` names in the database."""

    def __init__(self, database: Path, memory: str, clock: Clock) -> None:
        self.database = database
        self.memory = memory
        self._clock = clock
        name = hashlib.sha256(memory.encode("utf-8", "replace")).hexdigest()[:16]
        self._lock_file = database.parent / "memory" / f"{name}.lock"
        self._known: list[Revision] = []
        """The revisions as last read."""
        self._last_text: str | None = None
        """The last of them as stored."""
        self._mutex = threading.RLock()
        self._depth = 0

    def changes(self) -> list[Revision]:
        """Return all revisions, oldest first; none if the database cannot be read. Parses only new ones."""
        try:
            with self._mutex, reading(self.database, SCHEMA) as db:
                where = "FROM memory_revisions WHERE memory = ? AND number"
                last = (self.memory, self._known[-1].number if self._known else 0)
                count, _, text = db.execute(f"SELECT COUNT(*), MAX(number), revision {where} <= ?", last).fetchone()
                if count != len(self._known) or text != self._last_text:  # a deleted number may be given again
                    self._known, last = [], (self.memory, 0)
                rows = [text for (text,) in db.execute(f"SELECT revision {where} > ? ORDER BY number", last)]
                if rows or not self._known:
                    self._known = [*self._known, *(codec.from_json(Revision, row) for row in rows)]
                    self._last_text = rows[-1] if rows else None
                return self._known
        except StorageError:
            return []

    def texts(self, number: int) -> RevisionTexts:
        """Return the texts of a revision. Raises StorageError if they were dropped."""
        if (texts := self._texts(number=number)) is None or texts.archived is None:
            raise StorageError("This version is no longer stored.")
        return texts

    def last_texts(self, file: str) -> RevisionTexts | None:
        """Return the texts of a file's newest revision. Raises StorageError."""
        return self._texts(file=file)

    def _texts(self, *, number: int | None = None, file: str | None = None) -> RevisionTexts | None:
        with reading(self.database, SCHEMA) as db:
            row = db.execute(
                "SELECT number, json_extract(revision, '$.by'), before, after, archived FROM memory_revisions"
                " WHERE memory = ? AND (number = ? OR file = ?) ORDER BY number DESC LIMIT 1",
                (self.memory, number, file),
            ).fetchone()
        return RevisionTexts(row[0], ChangedBy(row[1]), *row[2:]) if row is not None else None

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

    def dream_lock_file(self) -> Path:
        """The lock file that a running Dream holds."""
        return self._lock_file.with_suffix(".dream.lock")

    def add(
        self,
        file: str,
        data: bytes | None,
        by: ChangedBy,
        source: ChangeSource = UNKNOWN_SOURCE,
        *,
        archived: bytes = b"",
        **details: Any,
    ) -> Revision | None:
        """Store that a file has this content, or is about to. Return the revision, None if there is nothing to store.
        `details` are further fields of it. Raises StorageError.
        """
        with writing(self.database, SCHEMA) as db:
            row = db.execute(
                "SELECT after FROM memory_revisions WHERE memory = ? AND file = ? ORDER BY number DESC LIMIT 1",
                (self.memory, file),
            ).fetchone()
            before = row[0] if row is not None else None
            if data == before and not (archived or any(details.values())):
                return None
            old, new = _facts(before), _facts(data)
            last = db.execute("SELECT MAX(number) FROM memory_revisions WHERE memory = ?", (self.memory,)).fetchone()
            change = Revision(
                number=(last[0] or 0) + 1,
                at=timestamp(self._clock),
                by=by,
                file=file,
                is_first=before is None,
                is_change=data != before,
                added=[
                    {"key": key, "text": fact.text, **source.origin_of(fact)}
                    for key, fact in new.items()
                    if key not in old
                ],
                removed=[fact.text for key, fact in old.items() if key not in new],
                who=source.who,
                **details,
            )
            text = codec.to_json(change, exclude_defaults=True)
            db.execute(
                "INSERT INTO memory_revisions VALUES (?, ?, ?, ?, ?, ?, ?)",
                (self.memory, change.number, file, before, data, archived, text),
            )
            db.execute(
                "UPDATE memory_revisions SET before = NULL, after = NULL, archived = NULL"
                " WHERE memory = ?1 AND number <= ?2 AND archived IS NOT NULL AND number NOT IN"
                " (SELECT MAX(number) FROM memory_revisions WHERE memory = ?1 GROUP BY file)",
                (self.memory, change.number - _KEPT_TEXTS),
            )
        return change

    def delete(self, number: int) -> None:
        """Delete a revision that was not applied. Raises StorageError."""
        with writing(self.database, SCHEMA) as db:
            db.execute("DELETE FROM memory_revisions WHERE memory = ? AND number = ?", (self.memory, number))

    def undone(self) -> set[int]:
        """Return the numbers of the revisions that were taken back, and not brought back by undoing a restore."""
        undone: set[int] = set()
        for change in reversed(self.changes()):
            if change.number not in undone:
                undone.update(change.undoes)
        return undone

    def active_passes(self) -> dict[int, Revision]:
        """Return the Dream passes that changed something and were not taken back, by pass number, newest first."""
        undone = self.undone()
        return {
            change.dream.number: change
            for change in reversed(self.changes())
            if change.dream is not None and change.is_change and change.number not in undone
        }

    def passes(self) -> list[DreamPass]:
        """Return all Dream passes, newest first."""
        return [change.dream for change in reversed(self.changes()) if change.dream is not None]

    def last_undoable(self) -> list[Revision]:
        """Return the newest change that is neither an undo nor undone, with the rest of its group; empty if there is
        none. The initial snapshot of a file cannot be undone, nor can what a look at the archive finds in it: mostly
        facts that another revision put there.
        """
        changes, undone = self.changes(), self.undone()
        for change in reversed(changes):
            is_snapshot = change.by is ChangedBy.HAND and (change.is_first or change.file == "ARCHIVE.md")
            is_undo = change.by is ChangedBy.UNDO or not change.is_change or is_snapshot
            if change.number not in undone and not is_undo:
                first = change.group or change.number
                return [
                    change
                    for change in changes
                    if first in (change.number, change.group) and change.number not in undone
                ]
        return []

    def origins(self) -> dict[str, FactOrigin]:
        """Return the newest origin of each fact that ever existed, by key."""
        origins: dict[str, FactOrigin] = {}
        mentions: dict[str, int] = {}
        for change in self.changes():
            for details in change.added:
                if change.by not in (ChangedBy.UNDO, ChangedBy.RESTORE) or details["key"] not in origins:
                    origins[details["key"]] = FactOrigin(change, details)
            for key in change.mentioned:
                mentions[key] = mentions.get(key, 0) + 1
        return {key: FactOrigin(origin.change, origin.details, mentions.get(key, 0)) for key, origin in origins.items()}

    def forgotten(self) -> dict[str, Revision]:
        """Return the forgotten facts and by which change each was forgotten, without undone ones."""
        undone = self.undone()
        return {text: change for change in self.changes() if change.number not in undone for text in change.forgot}


def is_like(fact: str, other: str) -> bool:
    """Whether two facts say nearly the same, so that forgetting one forgets the other."""
    words, other_words = fact_words(fact), fact_words(other)
    return bool(words and other_words) and len(words & other_words) >= _ALIKE * min(len(words), len(other_words))


def is_lesson(origin: FactOrigin | None) -> bool:
    """Whether code learned the fact; models do not see it and cannot remove it."""
    return origin is not None and origin.change.by is ChangedBy.LESSON


def is_initial_snapshot(change: Revision) -> bool:
    """Whether it only records the content found at first, by an unknown author."""
    return change.by is ChangedBy.HAND and change.is_first


def encodable(text: str) -> str:
    """The text with invalid bytes of a file, which are surrogates, replaced."""
    return text.encode("utf-8", "replace").decode()


def _facts(data: bytes | None) -> dict[str, Fact]:
    return {fact.key: fact for fact in parse_facts((data or b"").decode("utf-8-sig", "replace"))}
