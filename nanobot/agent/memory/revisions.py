"""Revisions of a memory: every version of its files, who made each change and when, and where each fact came from.

Stored in `memory/.book`, where no tool writes and no search looks: `changes.jsonl` with one revision per line, and
`texts/` with the file contents, byte for byte. The memory files stay plain Markdown; a fact is identified by its words.
Unreadable lines are skipped. Methods block.
"""

import hashlib
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from os import SEEK_END
from pathlib import Path
from typing import Any, BinaryIO

from nanobot.agent.memory.facts import Fact, fact_words, parse_facts
from nanobot.errors import StorageError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage, Provenance, is_outside, is_synthetic
from nanobot.security.files.open import FileLocation, Opener, Stamp, stamp_of
from nanobot.security.files.paths import PathDeniedError
from nanobot.utils.clock import Clock, timestamp
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.locks import file_lock
from nanobot.utils.storage_error import storage_error
from nanobot.utils.text import clip_line, json_objects, strict_json

log = logging.getLogger(__name__)

_QUOTED = 300
_KEPT_CHANGES = 1_000
"""The newest revisions keep their texts and all details. Of older ones remains what memory still refers to: the origin
of its facts, and what was forgotten."""
_SWEEP_EVERY = 100
_TAIL = 64
"""Bytes compared to tell whether the log has only been appended to."""
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

    def origin_of(self, fact: Fact) -> dict[str, Any]:
        """Return the stored origin of a fact: the message that shares most words with it, users' messages first."""
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


@dataclass(frozen=True, slots=True)
class Revision:
    """One line of the log. `before` and `after` name the stored texts, None for no file."""

    number: int
    at: str
    by: ChangedBy
    file: str
    before: str | None
    after: str | None
    added: Sequence[Mapping[str, Any]] = ()
    """Facts: key, text, and the origin of each."""
    removed: Sequence[str] = ()
    who: str = ""
    undoes: int | None = None
    group: int | None = None
    """Number of the first revision of a group that was one action."""
    forgot: Sequence[str] = ()
    """Texts of facts that must not be learned again from older messages."""
    mentioned: Sequence[str] = ()
    """Keys of facts that were stated again."""

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
            "undoes": self.undoes,
        }


@dataclass(frozen=True, slots=True)
class FactOrigin:
    """The revision that added a fact, the origin it recorded, and how often the fact was stated again."""

    change: Revision
    details: Mapping[str, Any]
    mentions: int = 0


@dataclass(frozen=True, slots=True)
class _ParsedLog:
    """The log as parsed so far: complete up to `offset`, where the bytes `tail` end."""

    stamp: Stamp = (-1, -1, -1)
    changes: list[Revision] = field(default_factory=list)
    offset: int = 0
    tail: bytes = b""


class RevisionLog:
    """The revisions of one scope's memory."""

    def __init__(self, folder: Path, files: Opener, clock: Clock) -> None:
        self.folder = folder
        self._lines = folder / "changes.jsonl"
        self.files = files
        self._clock = clock
        self._parsed = _ParsedLog()
        self._mutex = threading.RLock()
        self._depth = 0

    def changes(self) -> list[Revision]:
        """Return all revisions, oldest first."""
        try:
            stamp = stamp_of(self._lines.stat())
            if stamp != self._parsed.stamp:
                with self.files.read(self._lines) as file:
                    self._parsed = _parse_appended(self._parsed, stamp, file)
        except (OSError, PathDeniedError):
            self._parsed = _ParsedLog()
        return self._parsed.changes

    def text(self, name: str | None) -> bytes | None:
        """Return a stored text, None for no file. Raises StorageError if it was dropped."""
        if name is None:
            return None
        try:
            with self.files.read(self.folder / "texts" / name) as file:
                return file.read()
        except (OSError, PathDeniedError) as error:
            raise StorageError("This version is no longer stored.") from error

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Reentrant lock around a read-modify-write of memory files, across threads and processes. Raises
        StorageError.
        """
        with self._mutex, ExitStack() as stack:
            if not self._depth:
                try:
                    make_private_folder(self.folder)
                    stack.enter_context(file_lock(self.folder / ".lock"))
                except OSError as error:
                    raise storage_error("The revision log of the memory cannot be opened", error) from error
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def record(
        self,
        file: str,
        data: bytes | None,
        by: ChangedBy,
        source: ChangeSource = UNKNOWN_SOURCE,
        *,
        undoes: int | None = None,
        group: int | None = None,
        forgot: Sequence[str] = (),
        mentioned: Sequence[str] = (),
    ) -> Revision | None:
        """Record the current content of a file. Return the revision, None if nothing changed. Raises StorageError."""
        changes = self.changes()
        last = next((change for change in reversed(changes) if change.file == file), None)
        name = None if data is None else _name_of(data)
        before = last.after if last is not None else None
        if name == before and not (forgot or mentioned):
            return None
        old, new = _facts(self._text_or_none(before)), _facts(data)
        change = Revision(
            number=changes[-1].number + 1 if changes else 1,
            at=timestamp(self._clock),
            by=by,
            file=file,
            before=before,
            after=name,
            added=[
                {"key": key, "text": fact.text, **source.origin_of(fact)} for key, fact in new.items() if key not in old
            ],
            removed=[fact.text for key, fact in old.items() if key not in new],
            who=source.who,
            undoes=undoes,
            group=group,
            forgot=forgot,
            mentioned=mentioned,
        )
        try:
            if data is not None and name is not None and name != before:
                self._store_text(name, data)
            with self.files.own_location(self._lines) as place:
                place.append(_line_end(place) + (strict_json(_to_row(change)) + "\n").encode())
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise storage_error("The revision of the memory cannot be stored", error) from error
        if change.number % _SWEEP_EVERY == 0:
            self._sweep()
        return change

    def last_undoable(self) -> list[Revision]:
        """Return the newest change that is neither an undo nor undone, with the rest of its group; empty if there is
        none. The initial snapshot of a file cannot be undone.
        """
        undone: set[int] = set()
        for change in reversed(self.changes()):
            if change.undoes is not None:
                undone.add(change.undoes)
            elif change.number not in undone and change.before != change.after and not is_initial_snapshot(change):
                first = change.group or change.number
                return [
                    change
                    for change in self.changes()
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

    def forgotten(self) -> list[tuple[str, str]]:
        """Return the forgotten facts and when each was forgotten, without undone ones."""
        changes = self.changes()
        undone = {change.undoes for change in changes}
        return [(text, change.at) for change in changes if change.number not in undone for text in change.forgot]

    def _text_or_none(self, name: str | None) -> bytes | None:
        try:
            return self.text(name)
        except StorageError:
            return None

    def _store_text(self, name: str, data: bytes) -> None:
        path = self.folder / "texts" / name
        if not path.exists():
            with self.files.own_location(path) as place:
                place.replace(data, PRIVATE_FILE)

    def _sweep(self) -> None:
        """Drop the texts of old versions, and old revisions that nothing refers to."""
        changes = self.changes()
        newest = {change.file: change.after for change in changes}
        recent = changes[-_KEPT_CHANGES:]
        referenced = {*newest.values(), *(name for change in recent for name in (change.before, change.after))}
        for path in (self.folder / "texts").iterdir():
            if path.name not in referenced:
                path.unlink(missing_ok=True)
        if len(changes) > 2 * _KEPT_CHANGES:
            rows = [*self._condense(changes[:-_KEPT_CHANGES]), *recent]
            data = "".join(f"{strict_json(_to_row(change))}\n" for change in rows).encode()
            try:
                with self.files.own_location(self._lines) as place:
                    place.replace(data, PRIVATE_FILE)
            except (OSError, PathDeniedError) as error:
                log.warning("Old memory revisions could not be dropped: %s", error)

    def _condense(self, old: Sequence[Revision]) -> Iterator[Revision]:
        """Reduce old revisions to what the current memory refers to."""
        changes, origins = self.changes(), self.origins()
        undone = {change.undoes for change in changes}
        newest = {change.file: change for change in changes}
        current = {key for change in newest.values() for key in _facts(self._text_or_none(change.after))}
        mentioned = [key for change in old for key in change.mentioned if key in current]
        seen: set[str] = set()
        for change in old:
            added = [fact for fact in change.added if fact["key"] in current and origins[fact["key"]].details is fact]
            forgot = () if change.number in undone else change.forgot
            if added or forgot or change.file not in seen or newest[change.file] is change:
                seen.add(change.file)
                yield replace(change, added=added, removed=(), forgot=forgot, mentioned=mentioned)
                mentioned = []


def _parse_appended(parsed: _ParsedLog, stamp: Stamp, file: BinaryIO) -> _ParsedLog:
    """Parse what was appended since `parsed`; everything if the file was replaced or ends in an incomplete line."""
    start = parsed.offset if stamp[0] == parsed.stamp[0] and stamp[2] >= parsed.offset else 0
    file.seek(start - len(parsed.tail) if start else 0)
    if start and file.read(len(parsed.tail)) != parsed.tail:
        start = file.seek(0)
    data = file.read()
    new = [change for row in json_objects(data) if (change := _parse_revision(row)) is not None]
    changes = [*parsed.changes, *new] if start else new
    if not data.endswith(b"\n"):
        return _ParsedLog(stamp, changes)
    return _ParsedLog(stamp, changes, start + len(data), data[-_TAIL:])


def is_like(fact: str, other: str) -> bool:
    """Whether two facts say nearly the same, so that forgetting one forgets the other."""
    words, other_words = fact_words(fact), fact_words(other)
    return bool(words and other_words) and len(words & other_words) >= _ALIKE * min(len(words), len(other_words))


def is_lesson(origin: FactOrigin | None) -> bool:
    """Whether code learned the fact; models do not see it and cannot remove it."""
    return origin is not None and origin.change.by is ChangedBy.LESSON


def is_initial_snapshot(change: Revision) -> bool:
    """Whether it only records the content found at first, by an unknown author."""
    return change.by is ChangedBy.HAND and change.before is None


def _line_end(place: FileLocation) -> bytes:
    """Return a line break if the file ends in an incomplete line, as a full disk leaves it."""
    try:
        with place.read() as file:
            return b"\n" if file.seek(0, SEEK_END) and file.seek(-1, SEEK_END) >= 0 and file.read() != b"\n" else b""
    except FileNotFoundError:
        return b""


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _facts(data: bytes | None) -> dict[str, Fact]:
    return {fact.key: fact for fact in parse_facts((data or b"").decode("utf-8-sig", "replace"))}


def _to_row(change: Revision) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(change, name) for name in Revision.__slots__}
    return {
        name: value for name, value in row.items() if value not in (None, "", (), []) or name in ("before", "after")
    }


def _parse_revision(row: Mapping[str, Any]) -> Revision | None:
    try:
        return Revision(
            number=int(row["number"]),
            at=str(row["at"]),
            by=ChangedBy(row["by"]),
            file=str(row["file"]),
            before=row.get("before"),
            after=row.get("after"),
            added=[
                item for item in row.get("added", ()) if isinstance(item, dict) and "key" in item and "text" in item
            ],
            removed=[str(item) for item in row.get("removed", ())],
            who=str(row.get("who", "")),
            undoes=row.get("undoes"),
            group=row.get("group"),
            forgot=[str(item) for item in row.get("forgot", ())],
            mentioned=[str(item) for item in row.get("mentioned", ())],
        )
    except (KeyError, TypeError, ValueError):
        return None
