"""What a person does with a memory: see its facts, ask where one came from, forget one, share one, take a change back.

Every change goes through the book, so that it can be taken back byte for byte. Methods block on the disk. They raise
NanobotError, whose text says what would be right.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from nanobot.agent.facts import Fact, facts_in, id_of, key_of, without, words_of
from nanobot.agent.memory import MemoryStore, said_in
from nanobot.agent.memory_book import By, Change, Origin, Source, is_first_look
from nanobot.agent.remembering import importance_of
from nanobot.errors import NanobotError
from nanobot.utils.clock import Clock
from nanobot.utils.text import clip_line, counted

_SHOWN = 80
_MOST_CHOICES = 8
_HOW = {
    By.CONSOLIDATION: "from a conversation",
    By.AGENT: "written by the agent",
    By.HAND: "written by hand, or before nanobot kept book",
    By.SHARE: "shared by the owner",
    By.LESSON: "learned from a mistake that kept coming back",
    By.UNDO: "brought back",
    By.FORGET: "left when something else was forgotten",
    By.RESET: "left by a reset",
    By.DREAM: "made of earlier facts by Dream",
    By.RESTORE: "brought back",
}


@dataclass(frozen=True, slots=True)
class Known:
    """A fact with what is known of it. `file` is where it stands, empty where it stands no more."""

    fact: Fact
    file: str
    origin: Origin | None
    importance: float


@dataclass(frozen=True, slots=True)
class Found:
    """A line with what was looked for."""

    file: str
    line: int
    text: str


class MemoryEditor:
    """The memory of one scope in the hands of a person, `who`."""

    def __init__(self, memory: MemoryStore, clock: Clock, who: str = "terminal") -> None:
        self._memory = memory
        self._clock = clock
        self._who = who

    def facts(self) -> list[Known]:
        """What is in every prompt, in the order of the files."""
        self._memory.note_changes()
        origins = self._memory.book.origins()
        return [
            self._known(fact, path.name, origins.get(fact.key))
            for path in self._files()
            for fact in facts_in(self._memory.text_of(path))
        ]

    def state(self) -> str:
        """How full it is, in a line."""
        text = self._memory.read_long_term()
        size, budget = len(text.encode()), self._memory.budget_bytes
        return f"{size / 1024:.1f} of {budget / 1024:.1f} KB, {counted(len(facts_in(text)), 'fact')}"

    def why(self, wanted: str) -> str:
        """Where a fact came from: that of an id, or those with these words. One that is gone is told of, too."""
        there = self.facts()
        found = _matching(wanted, there) or self._former(wanted)
        if not found:
            raise _unknown(wanted)
        return "\n\n".join("\n".join(self._told(known)) for known in found[:_MOST_CHOICES])

    def forget(self, wanted: str) -> list[Fact]:
        """Take a fact out, also of the archive; what went. It is not learned again from what was said before."""
        with self._memory.book.at_work():
            self._memory.note_changes()
            places = [*self._files(), self._memory.archive_file]
            found = _matching(
                wanted,
                [
                    self._known(fact, path.name, None)
                    for path in places
                    for fact in facts_in(self._memory.text_of(path))
                ],
            )
            keys = {known.fact.key for known in found}
            if not keys:
                raise _unknown(wanted)
            if len(keys) > 1:
                choices = "\n".join(
                    f"{one.fact.id}  {clip_line(one.fact.text, _SHOWN)}" for one in found[:_MOST_CHOICES]
                )
                raise NanobotError(f"Which one? Several facts have these words:\n{choices}")
            gone: dict[str, Fact] = {}
            group = None
            for path in places:
                text = self._memory.text_of(path)
                out = [fact for fact in facts_in(text) if fact.key in keys]
                if out:
                    gone |= {fact.key: fact for fact in out}
                    data = without(text, out).encode("utf-8", "surrogateescape")
                    forgot = [fact.text for fact in out]
                    change = self._memory.change(
                        path, data, By.FORGET, Source(who=self._who), forgot=forgot, group=group
                    )
                    group = group or (change.number if change is not None else None)
            return list(gone.values())

    def undo(self, may: Callable[[Change], bool] = lambda change: True) -> list[Change]:
        """Take the last change back that stands; which it was. Before it, what an editor did is a change of its own.

        `may` says whether this person may take it back.
        """
        with self._memory.book.at_work():
            self._memory.note_changes()
            group = self._memory.book.last_to_undo()
            if not group:
                raise NanobotError("There is no change to take back.")
            if not all(map(may, group)):
                raise NanobotError("Somebody else made the last change; an owner may take it back.")
            source = Source(who=self._who)
            for change in reversed(group):
                path = next(path for path in self._all_files() if path.name == change.file)
                self._memory.change(path, self._memory.book.text(change.before), By.UNDO, source, undoes=change.number)
            return group

    def share(self, wanted: str) -> Fact:
        """Put a fact where every chat is told of it, too."""
        with self._memory.book.at_work():
            found = _matching(wanted, self.facts())
            keys = {known.fact.key: known.fact for known in found}
            if len(keys) != 1:
                raise (
                    _unknown(wanted)
                    if not keys
                    else NanobotError("Several facts have these words. Name one by its id.")
                )
            fact = next(iter(keys.values()))
            text = self._memory.text_of(self._memory.shared_file)
            if fact.key in {one.key for one in facts_in(text)}:
                raise NanobotError("It is shared already.")
            line_end = "" if not text or text.endswith("\n") else "\n"
            data = f"{text}{line_end}- {fact.text}\n".encode("utf-8", "surrogateescape")
            self._memory.change(self._memory.shared_file, data, By.SHARE, Source(who=self._who))
            return fact

    def clear(self) -> list[str]:
        """Empty what is in every prompt of this scope; the names of the files that held something. They stay in the
        book, and the notes of today in the log.
        """
        with self._memory.book.at_work():
            self._memory.note_changes()
            cleared, group = [], None
            files = [self._memory.memory_file] if not self._memory.scope.is_owners else list(self._files())
            for path in files:
                if path.exists():
                    change = self._memory.change(path, None, By.RESET, Source(who=self._who), group=group)
                    group = group or (change.number if change is not None else None)
                    cleared.append(path.name)
            if (notes := self._memory.read_today().strip()) and self._memory.put_away_today():
                cleared.append(f"today's notes ({counted(len(notes.splitlines()), 'line')})")
            return cleared

    def search(self, text: str) -> list[Found]:
        """The lines of all its files in which these words stand, in any case."""
        wanted = text.casefold().split()
        folder = self._memory.memory_dir
        logs = [self._memory.history_file, folder / "history.jsonl"]
        names = [*self._all_files(), *logs, *sorted(folder.glob("????-??-??.md"), reverse=True)]
        return [
            Found(path.name, number, line.strip())
            for path in dict.fromkeys(names)
            for number, line in enumerate(self._lines_of(path), 1)
            if wanted and all(word in line.casefold() for word in wanted)
        ]

    def _lines_of(self, path: Path) -> list[str]:
        lines = self._memory.text_of(path).splitlines()
        return [said_in(line) for line in lines] if path.suffix == ".jsonl" else lines

    def log(self) -> list[Change]:
        """All changes, the newest first."""
        self._memory.note_changes()
        return list(reversed(self._memory.book.changes()))

    def _files(self) -> Iterator[Path]:
        """What every prompt of this scope is told of, and a person of it may change."""
        yield self._memory.memory_file
        if self._memory.scope.is_owners:
            yield self._memory.shared_file

    def _all_files(self) -> list[Path]:
        return [*self._files(), self._memory.archive_file]

    def _known(self, fact: Fact, file: str, origin: Origin | None) -> Known:
        return Known(fact, file, origin, importance_of(fact, origin, self._clock.now()))

    def _former(self, wanted: str) -> list[Known]:
        facts = [
            self._known(Fact(str(one.told["text"]), key, 0, 0), "", one)
            for key, one in self._memory.book.origins().items()
        ]
        return _matching(wanted, facts)

    def _told(self, known: Known) -> Iterator[str]:
        fact, origin = known.fact, known.origin
        yield f"{fact.id}  {fact.text}"
        if not known.file:
            yield "  It is not in memory any more."
        if origin is None:
            yield "  Nobody wrote down where it came from."
            return
        change, told = origin.change, origin.told
        session = f" {told['session']}" if told.get("session") else ""
        turn = f", turn {told['turn']}" if told.get("turn") else ""
        yield f"  Since {_minute(change.at)}, {_HOW[change.by]}{session}{turn}."
        if told.get("quote"):
            yield f"  {_minute(str(told.get('said_at', '')))} {told.get('who', '')}: {told['quote']}"
        elif told.get("who"):
            yield f"  By {told['who']}."
        if told.get("provenance"):
            yield f"  The words were not the owner's own ({told['provenance']})."
        words = words_of(fact.text)
        for text in change.removed:
            if len(words & words_of(text)) * 3 >= len(words):
                yield f"  It took the place of: {clip_line(text, _SHOWN)}"
        again = f"Said again {counted(origin.mentions, 'time')}. " if origin.mentions else ""
        yield f"  {again}Importance: {known.importance:.1f}."


def told_change(change: Change) -> str:
    """A change in a line."""
    what = [f"+ {clip_line(str(one['text']), _SHOWN)}" for one in change.added]
    what += [f"- {clip_line(text, _SHOWN)}" for text in change.removed]
    shown = "; ".join(what[:4]) + (f"; and {len(what) - 4} more" if len(what) > 4 else "")
    back = f" of {change.undoes}" if change.undoes is not None else ""
    who = f" ({change.who})" if change.who else ""
    shown = shown or ("as it was found" if is_first_look(change) else "other text")
    return f"{change.number}  {_minute(change.at)}  {change.by}{back}{who} {change.file}: {shown}"


def _matching(wanted: str, facts: Sequence[Known]) -> list[Known]:
    """By the id, else by the same words, else by words that stand in it."""
    wanted = wanted.strip().strip("[]")
    if not wanted:
        return []
    key, folded = key_of(wanted), wanted.casefold()
    for fits in (
        lambda fact: fact.id == wanted.lower(),
        lambda fact: bool(key) and id_of(fact.key) == id_of(key),
        lambda fact: folded in fact.text.casefold(),
        lambda fact: all(word in fact.text.casefold() for word in folded.split()),
    ):
        if found := [known for known in facts if fits(known.fact)]:
            return found
    return []


def _unknown(wanted: str) -> NanobotError:
    return NanobotError(f"No fact is called {clip_line(wanted, _SHOWN)!r} or has these words. /memory lists them.")


def _minute(told: str) -> str:
    try:
        return f"{datetime.fromisoformat(told):%Y-%m-%d %H:%M}"
    except ValueError:
        return told
