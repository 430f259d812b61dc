"""What passes of Dream change on the disk: made so that a kill leaves the old or the new, and taken back at will.

A pass is one change of the book, with its archive. Taking it back puts the bytes before it there again, and on top of
them what others have changed since. Methods block.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nanobot.agent.dream_log import DreamLog, EditDone, Pass, PassOutcome, hash_of
from nanobot.agent.facts import Fact, facts_in, key_of, without
from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory_book import By, Change, Source, is_like
from nanobot.agent.memory_merge import carried_over
from nanobot.agent.tidy_memory import Action, Tidied
from nanobot.errors import NanobotError
from nanobot.messages.types import is_outside
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _MadeOf(Source):
    """Where facts come from that were made of others: what those had said of it, the least trusted counts."""

    told: Mapping[str, Mapping[str, Any]] | None = None

    def of(self, fact: Fact) -> dict[str, Any]:
        """What is kept of its origin."""
        return dict((self.told or {}).get(fact.key, {}))


class DreamChanges:
    """What Dream has changed of one memory."""

    def __init__(self, memory: MemoryStore, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.log = DreamLog(memory)

    def make(self, one: Pass, raw: bytes, data: bytes, made: Sequence[Tidied]) -> Pass:
        """Put it on the disk; the log says so before, so that one knows after a kill. Who calls it holds the book.

        Raises StorageError, and then the memory is as it was.
        """
        memory = self._memory
        old = memory.bytes_of(memory.archive_file)
        block = self._for_archive(old or b"", made)
        one = replace(
            one,
            outcome=PassOutcome.CHANGED,
            before=hash_of(raw),
            after=hash_of(data),
            archived=block.decode("utf-8", "surrogateescape"),
            since=self._last_change(),
        )
        told = {name: dict(found) for name, found in self._told(made).items()}
        self.log.add(one, begun=True)
        try:
            if block:
                memory.put(memory.archive_file, (old or b"") + block)
            change = memory.change(memory.memory_file, data, By.DREAM, _MadeOf(who=one.who, told=told))
        except NanobotError as error:
            if not self._is_taken_back(raw, data):
                log.warning("%s", error)  # it is done, and cannot be undone: the next look writes that down
                return one
            with suppress(NanobotError):
                if block and memory.bytes_of(memory.archive_file) == (old or b"") + block:
                    memory.put(memory.archive_file, old)
            raise
        return replace(one, change=change.number if change is not None else None)

    def _last_change(self) -> int:
        changes = self._memory.book.changes()
        return changes[-1].number if changes else 0

    def _is_taken_back(self, raw: bytes, data: bytes) -> bool:
        """Whether MEMORY.md is as it was, after a change that could not be written down."""
        with suppress(NanobotError):
            if self._memory.bytes_of(self._memory.memory_file) != data:
                return True
            self._memory.put(self._memory.memory_file, raw)
            return True
        return False

    def _for_archive(self, old: bytes, made: Sequence[Tidied]) -> bytes:
        """What is added to the archive: what is not there yet."""
        there = {fact.key for fact in facts_in(old.decode("utf-8", "replace"))}
        gone = [
            text
            for wanted in made
            if wanted.action is Action.ARCHIVE
            for text in wanted.before
            if key_of(text) not in there
        ]
        if not gone:
            return b""
        end = b"" if not old or old.endswith(b"\n\n") else b"\n" if old.endswith(b"\n") else b"\n\n"
        lines = "\n".join(f"- {text}" for text in gone)
        return end + f"## {self._clock.now():%Y-%m-%d}\n\n{lines}\n".encode("utf-8", "surrogateescape")

    def _told(self, made: Sequence[Tidied]) -> dict[str, dict[str, Any]]:
        """By key of what was made, where it came from: of what it is made of, the first that somebody said."""
        origins = self._memory.book.origins()
        found: dict[str, dict[str, Any]] = {}
        for wanted in made:
            if wanted.action is not Action.REPLACE:
                continue
            known = [origins[key].told for key in wanted.edit.keys if key in origins]
            told = next((one for one in known if one.get("quote")), known[0] if known else {})
            kept = {name: value for name, value in told.items() if name not in ("key", "text", "provenance")}
            trust = {"provenance": wanted.provenance.value} if is_outside(wanted.provenance) else {}
            found[key_of(wanted.edit.text)] = kept | trust
        return found

    def mend(self) -> None:
        """Write down how a pass ended that a kill cut off. Raises StorageError."""
        if self.log.open_pass() is None:
            return
        memory = self._memory
        with memory.book.at_work():
            one = self.log.open_pass()
            if one is None:  # it was under way, and has ended
                return
            raw = memory.bytes_of(memory.memory_file)
            if hash_of(raw) == one.after:
                told = {edit.key: _trust_of(edit) for edit in one.edits if edit.key}
                memory.book.note(memory.memory_file.name, raw, By.DREAM, _MadeOf(who=one.who, told=told))
            change = next((known for known in reversed(memory.book.changes()) if _leads_to(known, one)), None)
            if change is not None:
                self.log.add(replace(one, change=change.number))
                return
            self._unarchived(one)
            self.log.add(replace(one, outcome=PassOutcome.BROKEN_OFF, edits=(), archived=""))

    def standing(self) -> list[Pass]:
        """The passes that changed something and were not taken back, the newest first."""
        undone = {change.undoes for change in self._memory.book.changes() if change.undoes is not None}
        return [
            one
            for one in self.log.passes()
            if one.outcome is PassOutcome.CHANGED
            and one.change not in undone
            and (one.restored is None or one.restored in undone)
        ]

    def restore(
        self, number: int | None = None, *, who: str = "", may: Callable[[Pass], bool] = lambda one: True
    ) -> Pass:
        """Take the memory back to before a pass, the last one for None, and later passes with it; which it was.

        What others changed after it stays changed. Where that cannot be parted from what a pass wrote, nothing is done.
        Raises NanobotError, whose text says what would be right.
        """
        memory = self._memory
        with memory.book.at_work():
            self.mend()
            memory.note_changes()
            standing = self.standing()
            one = next((one for one in standing if number in (None, one.number)), None)
            if one is None:
                raise NanobotError(_nothing_to_restore(number, standing))
            back = [later for later in standing if later.number >= one.number]
            if not all(map(may, back)):
                raise NanobotError("Somebody else asked for that pass; an owner may take it back.")
            data = self._without(one, back)
            change = memory.change(memory.memory_file, data, By.RESTORE, Source(who=who))
            for later in back:
                self._unarchived(later)
                self.log.add(replace(later, restored=change.number if change is not None else 0))
            return one

    def _without(self, one: Pass, back: Sequence[Pass]) -> bytes:
        """MEMORY.md as it stood before this pass, with what others changed since."""
        memory, name = self._memory, self._memory.memory_file.name
        changes = [change for change in memory.book.changes() if change.file == name]
        first = next((change for change in changes if change.number == one.change), None)
        if first is None:
            raise NanobotError("That version is not kept any more.")
        data = memory.book.text(first.before) or b""
        forgot: list[str] = []
        later = [change for change in changes if change.number > first.number]
        passing = {change.undoes for change in later} | {change.number for change in later if change.undoes is not None}
        for change in later:
            if change.by in (By.DREAM, By.RESTORE) or change.number in passing:
                continue
            if change.after is None:
                raise NanobotError("The memory was cleared after that pass. /memory undo brings it back.")
            data = _carried(memory.book.text(change.before) or b"", memory.book.text(change.after) or b"", data)
            forgot += [*change.forgot, *_made_of(change.forgot, back)]
        return _forgetting(data, forgot, memory.bytes_of(memory.memory_file) or b"")

    def _unarchived(self, one: Pass) -> None:
        """Take out of the archive what this pass put there, where it stands as it was put."""
        block = one.archived.encode("utf-8", "surrogateescape")
        archive = self._memory.bytes_of(self._memory.archive_file)
        if block and archive is not None and archive.count(block) == 1:
            self._memory.put(self._memory.archive_file, archive.replace(block, b"") or None)


def _trust_of(edit: EditDone) -> dict[str, Any]:
    return {"provenance": edit.provenance} if edit.provenance else {}


def _leads_to(change: Change, one: Pass) -> bool:
    """Whether a change in the book is that of the pass: its texts have longer hashes of the same kind."""
    before, after = change.before or "", change.after or ""
    return change.number > one.since and before.startswith(one.before) and after.startswith(one.after)


def _carried(before: bytes, after: bytes, data: bytes) -> bytes:
    """What one change did, done to other bytes. Raises NanobotError where it has no place there."""
    if before == data:
        return after
    base, update, current = (one.decode("utf-8", "surrogateescape") for one in (before, after, data))
    text, homeless = carried_over(base, update, current)
    if homeless:
        lines = "\n".join(homeless[:5])
        raise NanobotError(
            f"This was written later, over what that pass wrote, and would be lost:\n{lines}\nTake it back first "
            "(/memory undo, or in an editor), then try again."
        )
    return text.encode("utf-8", "surrogateescape")


def _forgetting(data: bytes, forgot: Sequence[str], stands: bytes) -> bytes:
    """Without what was to be forgotten since: a fact that was merged then is not to come back by itself. What stands
    there now was not meant.
    """
    text = data.decode("utf-8", "surrogateescape")
    known = {fact.key for fact in facts_in(stands.decode("utf-8", "surrogateescape"))}
    gone = [fact for fact in facts_in(text) if fact.key not in known and any(is_like(fact.text, one) for one in forgot)]
    return without(text, gone).encode("utf-8", "surrogateescape") if gone else data


def _made_of(forgot: Sequence[str], passes: Sequence[Pass]) -> Iterator[str]:
    """What these passes made the forgotten facts of."""
    for edit in (edit for one in passes for edit in one.edits if edit.after):
        if any(is_like(edit.after, words) for words in forgot):
            yield from edit.before


def _nothing_to_restore(number: int | None, standing: Sequence[Pass]) -> str:
    if number is None or not standing:
        return "There is no pass of Dream to take back."
    known = ", ".join(str(one.number) for one in standing[:10])
    return f"No pass {number} of Dream stands there to be taken back. These do: {known}."
