"""The book of a memory: every version of its files, who changed what and when, and where each fact came from.

It lies in `memory/.book`, where no tool writes and no search looks: a line of JSON a change, and beside them the texts
as they stood, byte for byte. The files themselves stay plain Markdown; a fact is found here by what it says. A line
that cannot be read is passed over. Methods block.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from os import SEEK_END
from pathlib import Path
from typing import Any

from nanobot.agent.facts import Fact, facts_in, words_of
from nanobot.errors import StorageError
from nanobot.messages.shown import shown_text
from nanobot.messages.types import ChatMessage, Provenance, is_our_word, is_outside
from nanobot.security.opening import Opener, Place
from nanobot.security.paths import PathDeniedError
from nanobot.utils.clock import Clock, timestamp
from nanobot.utils.files import PRIVATE_FILE, make_private_folder
from nanobot.utils.locks import locked
from nanobot.utils.refusals import refusal
from nanobot.utils.text import clip_line, json_objects, sound_json

_QUOTED = 300
_KEPT_TEXTS = 1_000
"""Versions whose text is kept; of older ones it is only known what changed."""
_SWEEP_EVERY = 100
_ALIKE = 0.7
"""Of the words of two facts, to be taken for the same where one of them is to be forgotten."""


class By(StrEnum):
    """Who or what changed a memory."""

    CONSOLIDATION = "consolidation"
    AGENT = "agent"
    """Its file tools, in a turn."""
    HAND = "hand"
    """An editor, or a program that is not ours."""
    FORGET = "forget"
    UNDO = "undo"
    SHARE = "share"
    LESSON = "lesson"
    """A mistake that kept coming back, or does no more."""
    RESET = "reset"
    DREAM = "dream"
    """A pass that tidies it."""
    RESTORE = "restore"
    """Back to before such a pass."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a change came from: the messages it was made of, and how far their words are trusted."""

    session: str = ""
    who: str = ""
    rows: Sequence[ChatMessage] = ()
    provenance: Provenance = Provenance.OWNER

    def of(self, fact: Fact) -> dict[str, Any]:
        """What is kept of a fact's origin: the message that says most of it, a person's before any other."""
        told = {"session": self.session} if self.session else {}
        best, most, trust = None, 0.0, self.provenance
        wanted = words_of(fact.text)
        for row in self.rows:
            if row.get("role") not in ("user", "assistant") or is_our_word(row):
                continue
            said = len(wanted & words_of(shown_text(row)))
            share = said + (0.5 if row["role"] == "user" else 0)
            if said >= 0.6 * len(wanted) and row["role"] == "user" and row.get("provenance") == Provenance.OWNER:
                trust = Provenance.OWNER  # the owner said so
            if share >= 1 and share > most:
                best, most = row, share
        if best is None:
            told |= {"who": self.who} if self.who else {}
            return told | ({"provenance": trust.value} if is_outside(trust) else {})
        return told | {
            name: value
            for name, value in {
                "turn": best.get("turn_id"),
                "said_at": best.get("timestamp"),
                "who": best.get("sender_id") or self.who or best["role"],
                "quote": clip_line(" ".join(shown_text(best).split()), _QUOTED),
                "provenance": trust.value if is_outside(trust) else "",
            }.items()
            if value
        }


NOWHERE = Source()


@dataclass(frozen=True, slots=True)
class Change:
    """A line of the book. `before` and `after` name the texts, None where there was no file."""

    number: int
    at: str
    by: By
    file: str
    before: str | None
    after: str | None
    added: Sequence[Mapping[str, Any]] = ()
    """Facts: key, text, and where each came from."""
    removed: Sequence[str] = ()
    who: str = ""
    undoes: int | None = None
    group: int | None = None
    """The number of the first of several changes that are one to a person."""
    forgot: Sequence[str] = ()
    """The words of facts that are not to be learned again from what was said before."""
    mentioned: Sequence[str] = ()
    """Keys of facts that were said again."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of a fact: the change that brought it, and what that said of it."""

    change: Change
    told: Mapping[str, Any]
    mentions: int = 0


@dataclass(slots=True)
class _Read:
    stamp: tuple[int, int] = (-1, -1)
    changes: list[Change] = field(default_factory=list)


class MemoryBook:
    """The book of one scope's memory."""

    def __init__(self, folder: Path, files: Opener, clock: Clock) -> None:
        self.folder = folder
        self._lines = folder / "changes.jsonl"
        self.files = files
        self._clock = clock
        self._read = _Read()
        self._mutex = threading.RLock()
        self._depth = 0

    def changes(self) -> list[Change]:
        """All of them, the oldest first."""
        try:
            found = self._lines.stat()
            stamp = (found.st_mtime_ns, found.st_size)
            if stamp != self._read.stamp:
                with self.files.read(self._lines) as file:
                    rows = list(json_objects(file.read()))
                self._read = _Read(stamp, [one for row in rows if (one := _change_of(row)) is not None])
        except (OSError, PathDeniedError):
            self._read = _Read()
        return self._read.changes

    def text(self, name: str | None) -> bytes | None:
        """A text as it stood; None for no file. Raises StorageError where it is not kept any more."""
        if name is None:
            return None
        try:
            with self.files.read(self.folder / "texts" / name) as file:
                return file.read()
        except (OSError, PathDeniedError) as error:
            raise StorageError("That version is not kept any more.") from error

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Hold the book while a file of the memory is looked at and changed; who holds it may hold it again. Raises
        StorageError.
        """
        with self._mutex, ExitStack() as held:
            if not self._depth:
                try:
                    make_private_folder(self.folder)
                    held.enter_context(locked(self.folder / ".lock"))
                except OSError as error:
                    raise refusal("The book of changes of the memory cannot be opened", error) from error
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1

    def note(
        self,
        file: str,
        data: bytes | None,
        by: By,
        source: Source = NOWHERE,
        *,
        undoes: int | None = None,
        group: int | None = None,
        forgot: Sequence[str] = (),
        mentioned: Sequence[str] = (),
    ) -> Change | None:
        """The file stands so now; the change that this is, None where it is none. Raises StorageError."""
        changes = self.changes()
        last = next((one for one in reversed(changes) if one.file == file), None)
        name = None if data is None else _name_of(data)
        before = last.after if last is not None else None
        if name == before and not (forgot or mentioned):
            return None
        old, new = _facts(self._text_or_none(before)), _facts(data)
        change = Change(
            number=changes[-1].number + 1 if changes else 1,
            at=timestamp(self._clock),
            by=by,
            file=file,
            before=before,
            after=name,
            added=[{"key": key, "text": fact.text, **source.of(fact)} for key, fact in new.items() if key not in old],
            removed=[fact.text for key, fact in old.items() if key not in new],
            who=source.who,
            undoes=undoes,
            group=group,
            forgot=forgot,
            mentioned=mentioned,
        )
        try:
            if data is not None and name is not None and name != before:
                self._keep(name, data)
            with self.files.own_place(self._lines) as place:
                place.append(_line_end(place) + (sound_json(_row_of(change)) + "\n").encode())
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal("A change of the memory cannot be written down", error) from error
        if change.number % _SWEEP_EVERY == 0:
            self._sweep()
        return change

    def last_to_undo(self) -> list[Change]:
        """The newest change that stands, no undoing and not undone, with those that belong to it; none, if there is
        none. How a file stood when it was seen first is no change.
        """
        undone: set[int] = set()
        for change in reversed(self.changes()):
            if change.undoes is not None:
                undone.add(change.undoes)
            elif change.number not in undone and change.before != change.after and not is_first_look(change):
                first = change.group or change.number
                return [one for one in self.changes() if first in (one.number, one.group) and one.number not in undone]
        return []

    def origins(self) -> dict[str, Origin]:
        """By key, where the facts came from that were ever there: the newest origin of each."""
        found: dict[str, Origin] = {}
        mentions: dict[str, int] = {}
        for change in self.changes():
            for told in change.added:
                if change.by not in (By.UNDO, By.RESTORE) or told["key"] not in found:
                    found[told["key"]] = Origin(change, told)
            for key in change.mentioned:
                mentions[key] = mentions.get(key, 0) + 1
        return {key: Origin(one.change, one.told, mentions.get(key, 0)) for key, one in found.items()}

    def forgotten(self) -> list[tuple[str, str]]:
        """What was forgotten and when, as far as that stands."""
        changes = self.changes()
        undone = {change.undoes for change in changes}
        return [(text, one.at) for one in changes if one.number not in undone for text in one.forgot]

    def _text_or_none(self, name: str | None) -> bytes | None:
        try:
            return self.text(name)
        except StorageError:
            return None

    def _keep(self, name: str, data: bytes) -> None:
        path = self.folder / "texts" / name
        if not path.exists():
            with self.files.own_place(path) as place:
                place.replace(data, PRIVATE_FILE)

    def _sweep(self) -> None:
        """Let go of the texts of very old versions."""
        kept = {name for change in self.changes()[-_KEPT_TEXTS:] for name in (change.before, change.after)}
        for path in (self.folder / "texts").iterdir():
            if path.name not in kept:
                path.unlink(missing_ok=True)


def is_like(fact: str, other: str) -> bool:
    """Whether two facts say so nearly the same that who wants one forgotten means the other too."""
    one, two = words_of(fact), words_of(other)
    return bool(one and two) and len(one & two) >= _ALIKE * min(len(one), len(two))


def is_lesson(origin: Origin | None) -> bool:
    """Whether code learned it: it comes and leaves by code, and no model is asked about it."""
    return origin is not None and origin.change.by is By.LESSON


def is_first_look(change: Change) -> bool:
    """Whether it only says how a file stood when the book began: nobody knows who wrote that."""
    return change.by is By.HAND and change.before is None


def _line_end(place: Place) -> bytes:
    """What ends half a line, which a full disk has left; nothing where there is none."""
    try:
        with place.read() as file:
            return b"\n" if file.seek(0, SEEK_END) and file.seek(-1, SEEK_END) >= 0 and file.read() != b"\n" else b""
    except FileNotFoundError:
        return b""


def _name_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def _facts(data: bytes | None) -> dict[str, Fact]:
    return {fact.key: fact for fact in facts_in((data or b"").decode("utf-8-sig", "replace"))}


def _row_of(change: Change) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(change, name) for name in Change.__slots__}
    return {
        name: value for name, value in row.items() if value not in (None, "", (), []) or name in ("before", "after")
    }


def _change_of(row: Mapping[str, Any]) -> Change | None:
    try:
        return Change(
            number=int(row["number"]),
            at=str(row["at"]),
            by=By(row["by"]),
            file=str(row["file"]),
            before=row.get("before"),
            after=row.get("after"),
            added=[one for one in row.get("added", ()) if isinstance(one, dict) and "key" in one and "text" in one],
            removed=[str(one) for one in row.get("removed", ())],
            who=str(row.get("who", "")),
            undoes=row.get("undoes"),
            group=row.get("group"),
            forgot=[str(one) for one in row.get("forgot", ())],
            mentioned=[str(one) for one in row.get("mentioned", ())],
        )
    except (KeyError, TypeError, ValueError):
        return None
