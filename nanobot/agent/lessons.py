"""Lessons: a mistake that keeps coming back becomes a dated line in the owner's memory, and leaves when it is mended.

How often each came is counted in a small file of ours. The line is a fact like any other: it has an id, a source and
its place in the book, can be forgotten and taken back, and then does not come again. It stands in a section of its own
and takes no room that a person's facts have. By code: no model is asked. The methods block.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from nanobot.agent.facts import Fact, facts_in, key_of, with_item, without
from nanobot.agent.memory import MemoryStore
from nanobot.agent.memory_book import By, Source, is_lesson
from nanobot.agent.mistakes import Mistake, TurnLooked, lesson_of, looked_at, mistakes_among
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import locked

log = logging.getLogger(__name__)

SECTION = "Lessons"
OFTEN = 3
MOST_LESSONS = 12
MOST_COUNTED = 200
KEPT_DAYS = 60
"""A mistake that was not made for so long is counted anew."""
MENDED_AFTER = {True: 3, False: 10}
"""In so many turns the same must go well for a lesson to leave: of a program, and of a tool as a whole."""
_MOST_TURNS = 8


@dataclass(slots=True)
class Count:
    """How often a mistake was made."""

    first: str
    last: str
    times: int = 0
    turns: list[str] = field(default_factory=list)
    """The last ones in which it was."""
    sessions: list[str] = field(default_factory=list)
    went_well: int = 0
    """In how many turns since."""
    lesson: str = ""
    """The line that it became; it stays so where somebody has taken that line away."""

    @property
    def is_often(self) -> bool:
        """Whether it keeps coming back."""
        return self.times >= OFTEN and (len(self.turns) >= OFTEN or len(self.sessions) > 1)


class Lessons:
    """What the owner's bot has learned from its mistakes."""

    def __init__(
        self,
        memory: MemoryStore,
        file: Path,
        clock: Clock,
        *,
        others_write: Callable[[str], bool] = lambda session_key: True,
    ) -> None:
        """`memory` is the owner's; `file` is where mistakes are counted. `others_write` says of a session whether
        somebody who is not known as the owner may be somebody else.
        """
        self._others_write = others_write
        self._memory = memory
        self._file = file
        self._clock = clock

    def learn(self, session_key: str, rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = ()) -> None:
        """A turn of the owner's has ended, and these are its rows; `earlier` is what stood before them. Raises
        NanobotError or OSError; then nothing of it is counted.
        """
        asked_by_person = any(row["role"] == "user" and row.get("provenance") == Provenance.PERSON for row in rows)
        looked = looked_at(rows, earlier, person_is_owner=asked_by_person and not self._others_write(session_key))
        if looked is None or not (looked.mistakes or self._file.exists()):
            return
        make_private_folder(self._file.parent)
        with locked(self._file.with_name(f".{self._file.name}.lock")):
            counts = self._load()
            before = json.dumps({key: asdict(one) for key, one in counts.items()})
            for mistake, times in mistakes_among(looked):
                self._made(counts, mistake, times, session_key, looked.turn_id)
            self._mended(counts, looked)
            kept = self._kept(counts)
            after = json.dumps({key: asdict(one) for key, one in kept.items()})
            if after != before:
                write_atomic(self._file, after)

    def _made(self, counts: dict[str, Count], mistake: Mistake, times: int, session_key: str, turn_id: str) -> None:
        today = self._today()
        count = counts.setdefault(mistake.key, Count(today, today))
        if turn_id in count.turns:
            return  # a turn that was taken up is one turn
        count.last, count.went_well = today, 0
        count.times += times
        count.turns = [*count.turns, turn_id][-_MOST_TURNS:]
        count.sessions = list(dict.fromkeys([*count.sessions, session_key]))[-2:]
        if count.is_often and not count.lesson:
            line = lesson_of(mistake, count.times, count.first, today)
            count.lesson = self._taught(line, f"{mistake.subject}: {mistake.what} (", session_key)

    def _mended(self, counts: dict[str, Count], looked: TurnLooked) -> None:
        made = {mistake.key for mistake in looked.mistakes}
        for key, count in [*counts.items()]:
            tool, program, _ = key.split("|", 2)
            if not count.lesson or key in made or (tool, program) not in looked.went_well:
                continue
            count.went_well += 1
            if count.went_well >= MENDED_AFTER[bool(program)]:
                self._untaught(count.lesson)
                del counts[key]

    def _taught(self, line: str, says: str, session_key: str) -> str:
        """The lesson that is in memory now, or never will be, since somebody has forgotten it. Empty without room."""
        memory = self._memory
        with memory.book.at_work():
            if any(says in forgotten for forgotten, _ in memory.book.forgotten()):
                return line
            text = self._text()
            there = next((fact.text for fact in facts_in(text) if says in fact.text), "")
            if there:  # a kill came before it was counted as learned, or the counts are lost
                return there
            own = self._own(text)
            gone = own[: max(len(own) + 1 - MOST_LESSONS, 0)]
            while True:
                data = with_item(without(text, gone), SECTION, line).encode("utf-8", "surrogateescape")
                if len(data) <= memory.budget_bytes:
                    break
                if len(gone) == len(own):
                    return ""
                gone = own[: len(gone) + 1]
            if gone:
                memory.append_archive(gone)
            memory.change(memory.memory_file, data, By.LESSON, Source(session=session_key, who="nanobot"))
            return line

    def _untaught(self, line: str) -> None:
        """It is mended: what was learned leaves for the archive, unless somebody has made it theirs."""
        memory = self._memory
        with memory.book.at_work():
            text = self._text()
            gone = [fact for fact in self._own(text) if fact.key == key_of(line)]
            if gone:
                memory.append_archive(gone)
                data = _without_empty_section(without(text, gone)).encode("utf-8", "surrogateescape")
                memory.change(memory.memory_file, data, By.LESSON, Source(who="nanobot"))

    def _own(self, text: str) -> list[Fact]:
        """The lessons that stand in a memory as they were written, the oldest first."""
        origins = self._memory.book.origins()
        return [fact for fact in facts_in(text) if fact.heading == SECTION and is_lesson(origins.get(fact.key))]

    def _text(self) -> str:
        return (self._memory.bytes_of(self._memory.memory_file) or b"").decode("utf-8", "surrogateescape")

    def _load(self) -> dict[str, Count]:
        try:
            told = json.loads(self._file.read_bytes())
            return {key: _count_of(one) for key, one in told.items() if key.count("|") >= 2}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read; mistakes are counted anew: %s", self._file, error)
            return {}

    def _kept(self, counts: dict[str, Count]) -> dict[str, Count]:
        """Those that are not too old and not too many; what became a lesson stays longest."""
        oldest = f"{self._clock.now().date() - timedelta(days=KEPT_DAYS):%Y-%m-%d}"
        kept = [(key, one) for key, one in counts.items() if one.lesson or one.last >= oldest]
        kept.sort(key=lambda pair: (bool(pair[1].lesson), pair[1].last))
        return dict(kept[-MOST_COUNTED:])

    def _today(self) -> str:
        return f"{self._clock.now():%Y-%m-%d}"


def _count_of(told: dict[str, Any]) -> Count:
    """Raises TypeError or AttributeError where it is none."""
    names = {one.name for one in fields(Count)}
    count = Count(**{name: value for name, value in told.items() if name in names})
    if [type(value) for value in asdict(count).values()] != [str, str, int, list, list, int, str]:
        raise TypeError(f"not a count: {told}")
    return count


def _without_empty_section(text: str) -> str:
    """The text without our heading, where nothing stands below it any more."""
    if any(fact.heading == SECTION for fact in facts_in(text)):
        return text
    lines = text.splitlines(keepends=True)
    at = next((at for at, one in enumerate(lines) if one.strip() == f"## {SECTION}"), None)
    if at is None:
        return text
    end = at + 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    if end < len(lines) and not lines[end].startswith("#"):
        return text  # a table, code, a remark: a person's
    begin = at - 1 if end == len(lines) and at and not lines[at - 1].strip() else at
    return "".join([*lines[:begin], *lines[end:]])
