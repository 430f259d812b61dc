"""The changes of Dream passes on the disk: applied so that a kill leaves either the old or the new state, and restored
on request.

A pass is one revision of MEMORY.md plus what it moved to the archive. Restoring puts the content before the pass back
and applies later changes by others on top. Methods block.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nanobot.agent.memory.dream_edits import AcceptedEdit, EditAction
from nanobot.agent.memory.dream_log import AppliedEdit, DreamLog, DreamPass, PassOutcome, content_hash
from nanobot.agent.memory.edits import merge_concurrent_changes
from nanobot.agent.memory.facts import Fact, fact_key, parse_facts, remove_facts
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, Revision, is_like
from nanobot.agent.memory.store import MemoryStore
from nanobot.errors import NanobotError
from nanobot.messages.types import is_outside
from nanobot.utils.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _MergedFrom(ChangeSource):
    """Origins of facts that were merged from others, by key."""

    origins: Mapping[str, Mapping[str, Any]] | None = None

    def origin_of(self, fact: Fact) -> dict[str, Any]:
        return dict((self.origins or {}).get(fact.key, {}))


class DreamChanges:
    """Applies and restores the passes over one memory."""

    def __init__(self, memory: MemoryStore, clock: Clock) -> None:
        self._memory = memory
        self._clock = clock
        self.log = DreamLog(memory)

    def apply(self, dream_pass: DreamPass, raw: bytes, data: bytes, edits: Sequence[AcceptedEdit]) -> DreamPass:
        """Apply a pass. The log announces it first, so that a kill can be recovered. The caller holds the revisions.

        Raises StorageError; the memory is then unchanged.
        """
        memory = self._memory
        archive = memory.file_bytes(memory.archive_file)
        block = self._for_archive(archive or b"", edits)
        dream_pass = replace(
            dream_pass,
            outcome=PassOutcome.CHANGED,
            before=content_hash(raw),
            after=content_hash(data),
            archived=block.decode("utf-8", "surrogateescape"),
            since=self.last_change(),
        )
        origins = {name: dict(origin) for name, origin in self._merged_origins(edits).items()}
        self.log.add(dream_pass, begun=True)
        try:
            if block:
                memory.write_unrecorded(memory.archive_file, (archive or b"") + block)
            change = memory.change(
                memory.memory_file, data, ChangedBy.DREAM, _MergedFrom(who=dream_pass.who, origins=origins)
            )
        except NanobotError as error:
            if not self._roll_back(raw, data):
                log.warning("%s", error)  # applied and cannot be rolled back: the next look records it
                return dream_pass
            with suppress(NanobotError):
                if block and memory.file_bytes(memory.archive_file) == (archive or b"") + block:
                    memory.write_unrecorded(memory.archive_file, archive)
            raise
        return replace(dream_pass, change=change.number if change is not None else None)

    def last_change(self) -> int:
        """Return the number of the last revision."""
        changes = self._memory.revisions.changes()
        return changes[-1].number if changes else 0

    def _roll_back(self, raw: bytes, data: bytes) -> bool:
        """Roll MEMORY.md back after a change that could not be recorded. Return whether it is as before."""
        with suppress(NanobotError):
            if self._memory.file_bytes(self._memory.memory_file) != data:
                return True
            self._memory.write_unrecorded(self._memory.memory_file, raw)
            return True
        return False

    def _for_archive(self, archive: bytes, edits: Sequence[AcceptedEdit]) -> bytes:
        """Format the facts that go to the archive and are not in it yet."""
        archived = {fact.key for fact in parse_facts(archive.decode("utf-8", "replace"))}
        texts = [
            text
            for edit in edits
            if edit.action is EditAction.ARCHIVE
            for text in edit.before
            if fact_key(text) not in archived
        ]
        if not texts:
            return b""
        end = b"" if not archive or archive.endswith(b"\n\n") else b"\n" if archive.endswith(b"\n") else b"\n\n"
        lines = "\n".join(f"- {text}" for text in texts)
        return end + f"## {self._clock.now():%Y-%m-%d}\n\n{lines}\n".encode("utf-8", "surrogateescape")

    def _merged_origins(self, edits: Sequence[AcceptedEdit]) -> dict[str, dict[str, Any]]:
        """Return the origin of each merged fact, by key: that of the first source with a quote."""
        origins = self._memory.revisions.origins()
        merged: dict[str, dict[str, Any]] = {}
        for edit in edits:
            if edit.action is not EditAction.REPLACE:
                continue
            sources = [origins[key].details for key in edit.edit.keys if key in origins]
            origin = next((source for source in sources if source.get("quote")), sources[0] if sources else {})
            kept = {name: value for name, value in origin.items() if name not in ("key", "text", "provenance")}
            trust = {"provenance": edit.provenance.value} if is_outside(edit.provenance) else {}
            merged[fact_key(edit.edit.text)] = kept | trust
        return merged

    def recover(self) -> None:
        """Record the outcome of a pass that a kill interrupted. Raises StorageError."""
        if self.log.open_pass() is None:
            return
        memory = self._memory
        with memory.revisions.lock():
            interrupted = self.log.open_pass()
            if interrupted is None:  # another process was running it, and has finished
                return
            raw = memory.file_bytes(memory.memory_file)
            if content_hash(raw) == interrupted.after:
                origins = {edit.key: _trust_of(edit) for edit in interrupted.edits if edit.key}
                memory.revisions.record(
                    memory.memory_file.name, raw, ChangedBy.DREAM, _MergedFrom(who=interrupted.who, origins=origins)
                )
            change = next(
                (revision for revision in reversed(memory.revisions.changes()) if _belongs_to(revision, interrupted)),
                None,
            )
            if change is not None:
                self.log.add(replace(interrupted, change=change.number))
                return
            self._remove_from_archive(interrupted)
            self.log.add(replace(interrupted, outcome=PassOutcome.CONTINUE_INTERRUPTED, edits=(), archived=""))

    def active_passes(self) -> list[DreamPass]:
        """Return the passes that changed something and were not restored or undone, newest first."""
        undone = {change.undoes for change in self._memory.revisions.changes() if change.undoes is not None}
        return [
            dream_pass
            for dream_pass in self.log.passes()
            if dream_pass.outcome is PassOutcome.CHANGED
            and dream_pass.change not in undone
            and (dream_pass.restored is None or dream_pass.restored in undone)
        ]

    def restore(
        self, number: int | None = None, *, who: str = "", may: Callable[[DreamPass], bool] = lambda target: True
    ) -> DreamPass:
        """Restore the memory to before a pass (by default the last), undoing later passes too. Return that pass.

        Changes by others since then stay. If they cannot be separated from what a pass wrote, nothing is changed.
        Raises NanobotError with the next step.
        """
        memory = self._memory
        with memory.revisions.lock():
            self.recover()
            memory.record_changes()
            active = self.active_passes()
            target = next((target for target in active if number in (None, target.number)), None)
            if target is None:
                raise NanobotError(_nothing_to_restore(number, active))
            restored = [later for later in active if later.number >= target.number]
            if not all(map(may, restored)):
                raise NanobotError("Somebody else started that pass; only an owner may restore it.")
            data = self._without(target, restored)
            change = memory.change(memory.memory_file, data, ChangedBy.RESTORE, ChangeSource(who=who))
            for later in restored:
                self._remove_from_archive(later)
                self.log.add(replace(later, restored=change.number if change is not None else 0))
            return target

    def _without(self, target: DreamPass, passes: Sequence[DreamPass]) -> bytes:
        """Return MEMORY.md as before this pass, with later changes by others."""
        memory, name = self._memory, self._memory.memory_file.name
        changes = [change for change in memory.revisions.changes() if change.file == name]
        applied = next((change for change in changes if change.number == target.change), None)
        if applied is None:
            raise NanobotError("The version before that pass is no longer stored.")
        data = memory.revisions.text(applied.before) or b""
        forgot: list[str] = []
        later = [change for change in changes if change.number > applied.number]
        undo_pairs = {change.undoes for change in later} | {
            change.number for change in later if change.undoes is not None
        }
        for change in later:
            if change.by in (ChangedBy.DREAM, ChangedBy.RESTORE) or change.number in undo_pairs:
                continue
            if change.after is None:
                raise NanobotError("The memory was cleared after that pass. Bring it back first with /memory undo.")
            data = _rebase(
                memory.revisions.text(change.before) or b"", memory.revisions.text(change.after) or b"", data
            )
            forgot += [*change.forgot, *_sources_of(change.forgot, passes)]
        return _without_forgotten(data, forgot, memory.file_bytes(memory.memory_file) or b"")

    def _remove_from_archive(self, dream_pass: DreamPass) -> None:
        """Remove from the archive what this pass added, if it is still there unchanged."""
        block = dream_pass.archived.encode("utf-8", "surrogateescape")
        archive = self._memory.file_bytes(self._memory.archive_file)
        if block and archive is not None and archive.count(block) == 1:
            self._memory.write_unrecorded(self._memory.archive_file, archive.replace(block, b"") or None)


def _trust_of(edit: AppliedEdit) -> dict[str, Any]:
    return {"provenance": edit.provenance} if edit.provenance else {}


def _belongs_to(change: Revision, dream_pass: DreamPass) -> bool:
    """Whether a revision belongs to the pass. Its text names are longer hashes of the same kind."""
    before, after = change.before or "", change.after or ""
    return (
        change.number > dream_pass.since and before.startswith(dream_pass.before) and after.startswith(dream_pass.after)
    )


def _rebase(before: bytes, after: bytes, data: bytes) -> bytes:
    """Apply the change from `before` to `after` to other bytes. Raises NanobotError on a conflict."""
    if before == data:
        return after
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
