"""What a person can do with a memory: list, search, explain, forget, pin and share facts, undo changes.

Every change is a revision and can be undone byte for byte. Methods block on the disk and raise NanobotError with the
next step.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from nanobot.agent.memory.edits import FactEdit, apply_edits, edits_of_update
from nanobot.agent.memory.facts import (
    PIN,
    Fact,
    fact_id,
    fact_key,
    fact_words,
    parse_facts,
    remove_facts,
    set_pinned,
)
from nanobot.agent.memory.history import parse_history_line
from nanobot.agent.memory.retention import fact_importance
from nanobot.agent.memory.revisions import (
    ChangedBy,
    ChangeSource,
    FactOrigin,
    Revision,
    encodable,
    is_initial_snapshot,
    is_like,
)
from nanobot.agent.memory.store import MemoryStore
from nanobot.errors import NanobotError
from nanobot.utils.clock import Clock
from nanobot.utils.text import clip_line, count_noun, format_when

_SHOWN_CHARS = 80
_MAX_CHOICES = 8
_HOW = {
    ChangedBy.CONSOLIDATION: "from a conversation",
    ChangedBy.AGENT: "written by the agent",
    ChangedBy.HAND: "written by hand, or before revisions were recorded",
    ChangedBy.SHARE: "shared by the owner",
    ChangedBy.EDIT: "edited",
    ChangedBy.PIN: "pinned",
    ChangedBy.LESSON: "learned from a recurring failure",
    ChangedBy.UNDO: "restored",
    ChangedBy.FORGET: "kept when something else was forgotten",
    ChangedBy.RESET: "kept after a reset",
    ChangedBy.DREAM: "merged from earlier facts by Dream",
    ChangedBy.RESTORE: "restored",
}


@dataclass(frozen=True, slots=True)
class FactDetails:
    """A fact with its origin. `file` is where it is stored; empty if it was removed."""

    fact: Fact
    file: str
    origin: FactOrigin | None
    importance: float

    def to_json(self) -> dict[str, Any]:
        """The fact for programs; docs/guides/memory.md documents the fields."""
        source = dict(self.origin.details) if self.origin is not None else {}
        return {
            "id": self.fact.id,
            "text": self.fact.text,
            "file": self.file,
            "heading": self.fact.heading,
            "pinned": self.fact.pinned,
            "since": self.origin.change.at if self.origin is not None else None,
            "by": self.origin.change.by if self.origin is not None else None,
            "source": {name: value for name, value in source.items() if name not in ("key", "text")},
            "importance": round(self.importance, 2),
        }


@dataclass(frozen=True, slots=True)
class FactMatch:
    """A line that matches a search."""

    file: str
    line: int
    text: str


class MemoryEditor:
    """Edits the memory of one scope on behalf of a person, `who`."""

    def __init__(self, memory: MemoryStore, clock: Clock, who: str = "terminal") -> None:
        self._memory = memory
        self._clock = clock
        self._who = who

    def facts(self) -> list[FactDetails]:
        """Return the facts that are in every prompt, in file order."""
        self._memory.record_changes()
        origins = self._memory.revisions.origins()
        return [
            self._details(fact, path.name, origins.get(fact.key))
            for path in self._files()
            for fact in parse_facts(self._memory.file_text(path))
        ]

    def state(self) -> str:
        """Return size, budget and number of facts in a line."""
        text = self._memory.read_long_term()
        size, budget = len(text.encode()), self._memory.budget_bytes
        return f"{size / 1024:.1f} of {budget / 1024:.1f} KB, {count_noun(len(parse_facts(text)), 'fact')}"

    def find(self, wanted: str) -> list[FactDetails]:
        """Return facts by id or by words, also removed ones. Raises NanobotError if there is none."""
        matches = _matching(wanted, self.facts()) or self._former(wanted)
        if not matches:
            raise _no_match_error(wanted)
        return matches[:_MAX_CHOICES]

    def why(self, wanted: str) -> str:
        """Explain where facts came from, by id or by words. Also finds removed facts."""
        return "\n\n".join("\n".join(self._explain(known)) for known in self.find(wanted))

    def forget(self, wanted: str) -> list[Fact]:
        """Remove a fact by id or words, also from the archive. It is not learned again from older messages."""
        with self._memory.revisions.lock():
            self._memory.record_changes()
            paths = self._all_files()
            matches = _matching(
                wanted,
                [
                    self._details(fact, path.name, None)
                    for path in paths
                    for fact in parse_facts(self._memory.file_text(path))
                ],
            )
            key = _only(matches, wanted).key
            if pinned := next((known.fact for known in matches if known.fact.pinned), None):
                raise NanobotError(
                    f"It is pinned. Unpin it first: /memory unpin {pinned.id}, or `nanobot memory unpin {pinned.id}` "
                    "in a terminal."
                )
            removed = [known.fact for known in matches if known.fact.key == key]

            def without_it(text: str) -> str:
                return remove_facts(text, [fact for fact in parse_facts(text) if fact.key == key])

            self._change(
                paths, without_it, ChangedBy.FORGET, forgot=list({encodable(fact.text): None for fact in removed})
            )
            return removed[:1]

    def _change(
        self, paths: Sequence[Path], edit: Callable[[str], str | None], by: ChangedBy, **details: Any
    ) -> list[Path]:
        """Edit the texts of files as one change; None removes a file. Return the files that changed."""
        group, changed = None, []
        for path in paths:
            old = self._memory.file_text(path)
            if (new := edit(old)) != old:
                data = new.encode("utf-8", "surrogateescape") if new is not None else None
                change = self._memory.change(path, data, by, ChangeSource(who=self._who), group=group, **details)
                group = group or (change.number if change is not None else None)
                changed.append(path)
        return changed

    def undo(self, may: Callable[[Revision], bool] = lambda change: True) -> list[Revision]:
        """Undo the last change and return it. Unrecorded edits by hand are recorded first, as a change of their own.

        `may` decides whether this person may undo a revision.
        """
        with self._memory.revisions.lock():
            self._memory.record_changes()
            group = self._memory.revisions.last_undoable()
            if not group:
                raise NanobotError("There is no change to undo.")
            if not all(map(may, group)):
                raise NanobotError("Somebody else made the last change; only an owner may undo it.")
            for change in reversed(group):
                self._take_back([change], ChangedBy.UNDO)
            return group

    def restore(self, number: int | None = None, may: Callable[[Revision], bool] = lambda change: True) -> int:
        """Restore the memory to before a Dream pass (by default the last), undoing later passes too. Return the number
        of the pass.

        Changes by others since then stay. If they cannot be separated from what a pass wrote, nothing is changed.
        `may` decides whether this person may undo a revision.
        """
        memory, log = self._memory, self._memory.revisions
        with log.lock():
            memory.record_changes()
            active = log.active_passes()
            if number is None:
                number = next(iter(active), None)
            if number is None or number not in active:
                known = ", ".join(map(str, [*active][:10]))
                raise NanobotError(
                    f"Dream pass {number} cannot be restored. These can: {known}."
                    if active
                    else "There is no Dream pass to restore."
                )
            restored = [change for later, change in active.items() if later >= number]
            if not all(map(may, restored)):
                raise NanobotError("Somebody else started that pass; only an owner may restore it.")
            if memory.file_bytes(memory.memory_file) is None:
                raise NanobotError("The memory was cleared after that pass. Bring it back first with /memory undo.")
            # what was forgotten since stays forgotten, with the facts that the passes had merged into it
            forgot = [text for text, change in log.forgotten().items() if change.number > restored[-1].number]
            for edit in [edit for change in restored if change.dream for edit in change.dream.edits]:
                if edit.after and any(is_like(edit.after, text) for text in forgot):
                    forgot += edit.before
            self._take_back(restored, ChangedBy.RESTORE, forgot)
            return number

    def _take_back(self, changes: Sequence[Revision], by: ChangedBy, forgot: Sequence[str] = ()) -> None:
        """Take back changes of one file, newest first, keeping what others changed since. Facts that are like those in
        `forgot` do not return. Raises NanobotError on a conflict.
        """
        memory, log = self._memory, self._memory.revisions
        path = next(path for path in self._all_files() if path.name == changes[0].file)
        data = memory.file_bytes(path)
        known = {fact.key for fact in parse_facts(memory.file_text(path))}
        texts = [log.texts(change.number) for change in changes]
        for text in texts:
            data = text.before if data == text.after else _take_back_facts(text.after, text.before, data)
        if data is not None and forgot:
            content = data.decode("utf-8", "surrogateescape")
            returning = [
                fact
                for fact in parse_facts(content)
                if fact.key not in known and any(is_like(fact.text, text) for text in forgot)
            ]
            data = remove_facts(content, returning).encode("utf-8", "surrogateescape")
        # what the changes had taken from the archive returns to it
        block = b"".join(log.texts(number).archived for change in changes for number in reversed(change.undoes))
        undoes = [change.number for change in changes]
        memory.change(path, data, by, ChangeSource(who=self._who), undoes=undoes, archived=block)
        for text in texts:
            memory.remove_archived(text.archived)

    def share(self, wanted: str) -> Fact:
        """Add a fact to the memory that every chat sees."""
        with self._memory.revisions.lock():
            fact = _only(_matching(wanted, self.facts()), wanted)
            text = self._memory.file_text(self._memory.shared_file)
            if fact.key in {other.key for other in parse_facts(text)}:
                raise NanobotError("It is already shared.")
            line_end = "" if not text or text.endswith("\n") else "\n"
            self._change([self._memory.shared_file], lambda text: f"{text}{line_end}- {fact.text}\n", ChangedBy.SHARE)
            return fact

    def pin(self, wanted: str, *, pinned: bool = True) -> Fact:
        """Pin or unpin a fact. A pinned fact is not changed or removed by consolidation, Dream or the size limit."""
        with self._memory.revisions.lock():
            fact = _only(_matching(wanted, self.facts()), wanted)
            if not self._change(self._files(), lambda text: set_pinned(text, {fact.key}, pinned=pinned), ChangedBy.PIN):
                raise NanobotError("It is pinned already." if pinned else "It is not pinned.")
            return fact

    def edit(self, wanted: str, text: str) -> Fact:
        """Change the words of a fact, pinned or not, and return the new one."""
        text = " ".join(text.split())
        if not (new := parse_facts(f"- {text}\n")):
            raise NanobotError("That is no fact: write it in words. To remove it, forget it.")
        with self._memory.revisions.lock():
            old = _only(_matching(wanted, self.facts()), wanted)

            def with_text(content: str) -> str:
                pinned = any(fact.pinned for fact in parse_facts(content) if fact.key == old.key)
                return apply_edits(content, [FactEdit((old.key,), f"{text} {PIN}" if pinned else text)])[0]

            if not self._change(self._files(), with_text, ChangedBy.EDIT) and new[0].text != old.text:
                raise NanobotError("Another fact already says that.")
            return new[0]

    def clear(self) -> list[str]:
        """Remove this scope's memory from prompts. Return the names of what was cleared.

        Facts stay in the revisions, today's notes in a renamed file.
        """
        with self._memory.revisions.lock():
            self._memory.record_changes()
            files = [path for path in self._files() if path.exists()]
            cleared = [path.name for path in self._change(files, lambda text: None, ChangedBy.RESET)]
            if (notes := self._memory.read_today().strip()) and self._memory.archive_today():
                cleared.append(f"today's notes ({count_noun(len(notes.splitlines()), 'line')})")
            return cleared

    def search(self, text: str) -> list[FactMatch]:
        """Return the lines of all memory files that contain all these words, ignoring case."""
        wanted = text.casefold().split()
        folder = self._memory.memory_dir
        logs = [self._memory.history_file, folder / "history.jsonl"]
        notes = [*folder.glob("????-??-??.md"), *folder.glob("????-??.md")]
        names = [*self._all_files(), *logs, *sorted(notes, reverse=True)]
        return [
            FactMatch(path.name, number, line.strip())
            for path in dict.fromkeys(names)
            for number, line in enumerate(self._lines_of(path), 1)
            if wanted and all(word in line.casefold() for word in wanted)
        ]

    def _lines_of(self, path: Path) -> list[str]:
        lines = self._memory.file_text(path).splitlines()
        return [parse_history_line(line) for line in lines] if path.suffix == ".jsonl" else lines

    def log(self) -> list[Revision]:
        """Return all changes, newest first."""
        self._memory.record_changes()
        changes = self._memory.revisions.changes()
        return [change for change in reversed(changes) if change.is_change or change.dream is None]

    def _files(self) -> list[Path]:
        """The files in this scope's prompts that a person of the scope may change."""
        memory = self._memory
        return [memory.memory_file, memory.shared_file] if memory.scope.is_owners else [memory.memory_file]

    def _all_files(self) -> list[Path]:
        return [*self._files(), self._memory.archive_file]

    def _details(self, fact: Fact, file: str, origin: FactOrigin | None) -> FactDetails:
        return FactDetails(fact, file, origin, fact_importance(fact, origin, self._clock.now()))

    def _former(self, wanted: str) -> list[FactDetails]:
        facts = [
            self._details(Fact(str(origin.details["text"]), key, 0, 0), "", origin)
            for key, origin in self._memory.revisions.origins().items()
        ]
        return _matching(wanted, facts)

    def _explain(self, item: FactDetails) -> Iterator[str]:
        fact, origin = item.fact, item.origin
        yield f"{fact.id}  {fact.text}"
        if not item.file:
            yield "  It is no longer in memory."
        if origin is None:
            yield "  Its origin was not recorded."
            return
        change, details = origin.change, origin.details
        session = f" {details['session']}" if details.get("session") else ""
        turn = f", turn {details['turn']}" if details.get("turn") else ""
        yield f"  Since {_format_when(change.at, self._clock.now())}, {_HOW[change.by]}{session}{turn}."
        if details.get("quote"):
            said_at = str(details.get("said_at", ""))[:16].replace("T", " ")
            yield f"  {said_at} {details.get('who', '')}: {details['quote']}"
        elif details.get("who"):
            yield f"  By {details['who']}."
        if details.get("provenance"):
            yield f"  The words were not the owner's own ({details['provenance']})."
        words = fact_words(fact.text)
        for text in change.removed:
            if len(words & fact_words(text)) * 3 >= len(words):
                yield f"  It replaced: {clip_line(text, _SHOWN_CHARS)}"
        again = f"Stated again {count_noun(origin.mentions, 'time')}. " if origin.mentions else ""
        yield f"  {again}Importance: {item.importance:.1f}."


def format_change(change: Revision, now: datetime | None = None) -> str:
    """Format a revision as a line. Its age is that at `now`, by default the current time."""
    diff = [f"+ {clip_line(str(fact['text']), _SHOWN_CHARS)}" for fact in change.added]
    diff += [f"- {clip_line(text, _SHOWN_CHARS)}" for text in change.removed]
    shown = "; ".join(diff[:4]) + (f"; and {len(diff) - 4} more" if len(diff) > 4 else "")
    undone = f" of {', '.join(map(str, change.undoes))}" if change.undoes else ""
    who = f" ({change.who})" if change.who else ""
    other = "a fact was pinned or unpinned" if change.by is ChangedBy.PIN else "other text"
    shown = shown or ("initial content" if is_initial_snapshot(change) else other)
    return f"{change.number}  {_format_when(change.at, now)}  {change.by}{undone}{who} {change.file}: {shown}"


def _take_back_facts(after: bytes | None, before: bytes | None, current: bytes | None) -> bytes:
    """Take back, fact by fact, a change from `before` to `after` in a text that changed since. Raises NanobotError on a
    conflict.
    """
    old, new, text = ((side or b"").decode("utf-8", "surrogateescape") for side in (before, after, current))
    known = {fact.key for fact in parse_facts(text)}
    edits = [
        edit
        for edit in edits_of_update(new, old)
        if fact_key(edit.text) not in known and (edit.text or known.intersection(edit.keys))
    ]
    result, done = apply_edits(text, edits)
    if conflicts := [edit.text for edit in edits if edit not in done]:
        lines = "\n".join(conflicts[:5])
        raise NanobotError(
            f"What was written in place of these facts was changed later and would be lost:\n{lines}\nTake that back "
            "first (/memory undo, or in an editor), then try again."
        )
    return result.encode("utf-8", "surrogateescape")


def _matching(wanted: str, facts: Sequence[FactDetails]) -> list[FactDetails]:
    """Match by id, else by equal words, else by contained words."""
    wanted = wanted.strip().strip("[]")
    if not wanted:
        return []
    key, folded = fact_key(wanted), wanted.casefold()
    for matches in (
        lambda fact: fact.id == wanted.lower(),
        lambda fact: bool(key) and fact_id(fact.key) == fact_id(key),
        lambda fact: folded in fact.text.casefold(),
        lambda fact: all(word in fact.text.casefold() for word in folded.split()),
    ):
        if matching := [item for item in facts if matches(item.fact)]:
            return matching
    return []


def _only(matches: Sequence[FactDetails], wanted: str) -> Fact:
    """Return the fact that matches. Raises NanobotError if none does or several do."""
    if not matches:
        raise _no_match_error(wanted)
    if len({known.fact.key for known in matches}) > 1:
        choices = "\n".join(
            f"{match.fact.id}  {clip_line(match.fact.text, _SHOWN_CHARS)}" for match in matches[:_MAX_CHOICES]
        )
        raise NanobotError(f"Several facts match. Name one by its id:\n{choices}")
    return matches[0].fact


def _no_match_error(wanted: str) -> NanobotError:
    listing = "/memory, or `nanobot memory show` in a terminal, lists them."
    return NanobotError(f"No fact has the id or the words {clip_line(wanted, _SHOWN_CHARS)!r}. {listing}")


def _format_when(timestamp: str, now: datetime | None) -> str:
    try:
        return format_when(datetime.fromisoformat(timestamp), now)
    except ValueError:
        return timestamp
