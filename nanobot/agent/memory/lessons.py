"""Lessons: a recurring tool failure becomes a dated line in the owner's memory, and leaves once it no longer happens.

Failures are counted in a small JSON file. A lesson is a fact with an id, an origin and a revision. Once forgotten by a
person it is not learned again. Lessons have a section of their own and use only room left by other facts. No model is
involved. Methods block.
"""

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

from nanobot.agent.memory.facts import Fact, add_fact, fact_key, parse_facts, remove_facts
from nanobot.agent.memory.failures import Failure, TurnReview, extract_failures, format_lesson, review_turn
from nanobot.agent.memory.revisions import ChangedBy, ChangeSource, is_lesson
from nanobot.agent.memory.store import MemoryStore
from nanobot.messages.types import ChatMessage, Provenance
from nanobot.utils.clock import Clock
from nanobot.utils.files import make_private_folder, write_atomic
from nanobot.utils.locks import file_lock

log = logging.getLogger(__name__)

SECTION = "Lessons"
RECURRING = 3
MAX_LESSONS = 12
MAX_COUNTED = 200
KEPT_DAYS = 60
"""A failure not seen for this many days is counted from zero."""
UNLEARN_AFTER = {True: 3, False: 10}
"""Turns in which the same must succeed before a lesson leaves: for a program, and for a tool as a whole."""
_MAX_TURNS = 8


@dataclass(slots=True)
class FailureCount:
    """How often a failure happened. Stored as JSON."""

    first: str
    last: str
    times: int = 0
    turns: list[str] = field(default_factory=list)
    """Ids of the last turns with it."""
    sessions: list[str] = field(default_factory=list)
    went_well: int = 0
    """Turns in which it succeeded since."""
    lesson: str = ""
    """The learned line; also kept after a person removed it from memory."""

    @property
    def is_recurring(self) -> bool:
        """Whether it keeps coming back."""
        return self.times >= RECURRING and (len(self.turns) >= RECURRING or len(self.sessions) > 1)


class Lessons:
    """Learns from the tool failures of the owner's turns."""

    def __init__(
        self,
        memory: MemoryStore,
        file: Path,
        clock: Clock,
        *,
        others_write: Callable[[str], bool] = lambda session_key: True,
    ) -> None:
        """`memory` is the owner's; `file` has the counts. `others_write` tells whether people other than the owner may
        write in a session.
        """
        self._others_write = others_write
        self._memory = memory
        self._file = file
        self._clock = clock

    def learn(self, session_key: str, rows: Sequence[ChatMessage], earlier: Sequence[ChatMessage] = ()) -> None:
        """Learn from a finished turn of the owner's. `rows` are its rows, `earlier` those before.

        Raises NanobotError or OSError; nothing is counted then.
        """
        asked_by_person = any(row["role"] == "user" and row.get("provenance") == Provenance.PERSON for row in rows)
        review = review_turn(rows, earlier, person_is_owner=asked_by_person and not self._others_write(session_key))
        if review is None or not (review.failures or self._file.exists()):
            return
        make_private_folder(self._file.parent)
        with file_lock(self._file.with_name(f".{self._file.name}.lock")):
            counts = self._load()
            before = json.dumps({key: asdict(count) for key, count in counts.items()})
            for failure, times in extract_failures(review):
                self._count_failure(counts, failure, times, session_key, review.turn_id)
            self._count_successes(counts, review)
            retained = self._prune(counts)
            after = json.dumps({key: asdict(count) for key, count in retained.items()})
            if after != before:
                write_atomic(self._file, after)

    def _count_failure(
        self, counts: dict[str, FailureCount], failure: Failure, times: int, session_key: str, turn_id: str
    ) -> None:
        today = self._today()
        count = counts.setdefault(failure.key, FailureCount(today, today))
        if turn_id in count.turns:
            return  # a resumed turn counts once
        count.last, count.went_well = today, 0
        count.times += times
        count.turns = [*count.turns, turn_id][-_MAX_TURNS:]
        count.sessions = list(dict.fromkeys([*count.sessions, session_key]))[-2:]
        if count.is_recurring and not count.lesson:
            line = format_lesson(failure, count.times, count.first, today)
            count.lesson = self._learn(line, f"{failure.subject}: {failure.what} (", session_key)

    def _count_successes(self, counts: dict[str, FailureCount], review: TurnReview) -> None:
        failed_keys = {failure.key for failure in review.failures}
        for key, count in [*counts.items()]:
            tool, program, _ = key.split("|", 2)
            if not count.lesson or key in failed_keys or (tool, program) not in review.succeeded:
                continue
            count.went_well += 1
            if count.went_well >= UNLEARN_AFTER[bool(program)]:
                self._unlearn(count.lesson)
                del counts[key]

    def _learn(self, line: str, marker: str, session_key: str) -> str:
        """Add a lesson to memory. Return the line, also if it was learned before or forgotten; empty without room."""
        memory = self._memory
        with memory.revisions.lock():
            if any(marker in forgotten for forgotten, _ in memory.revisions.forgotten()):
                return line
            text = self._text()
            existing = next((fact.text for fact in parse_facts(text) if marker in fact.text), "")
            if existing:  # killed before it was counted as learned, or the counts were lost
                return existing
            lessons = self._lessons_in(text)
            evicted = lessons[: max(len(lessons) + 1 - MAX_LESSONS, 0)]
            while True:
                data = add_fact(remove_facts(text, evicted), SECTION, line).encode("utf-8", "surrogateescape")
                if len(data) <= memory.budget_bytes:
                    break
                if len(evicted) == len(lessons):
                    return ""
                evicted = lessons[: len(evicted) + 1]
            source = ChangeSource(session=session_key, who="nanobot")
            memory.change(memory.memory_file, data, ChangedBy.LESSON, source, archived=evicted)
            return line

    def _unlearn(self, line: str) -> None:
        """Move a lesson to the archive, unless a person has edited it."""
        memory = self._memory
        with memory.revisions.lock():
            text = self._text()
            lesson = [fact for fact in self._lessons_in(text) if fact.key == fact_key(line)]
            if lesson:
                data = _without_empty_section(remove_facts(text, lesson)).encode("utf-8", "surrogateescape")
                source = ChangeSource(who="nanobot")
                memory.change(memory.memory_file, data, ChangedBy.LESSON, source, archived=lesson)

    def _lessons_in(self, text: str) -> list[Fact]:
        """Return the lessons of a memory that nobody edited or pinned, oldest first."""
        origins = self._memory.revisions.origins()
        return [
            fact
            for fact in parse_facts(text)
            if fact.heading == SECTION and is_lesson(origins.get(fact.key)) and not fact.pinned
        ]

    def _text(self) -> str:
        return (self._memory.file_bytes(self._memory.memory_file) or b"").decode("utf-8", "surrogateescape")

    def _load(self) -> dict[str, FailureCount]:
        try:
            data = json.loads(self._file.read_bytes())
            return {key: _count_of(entry) for key, entry in data.items() if key.count("|") >= 2}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            log.warning("%s cannot be read; failure counts start from zero: %s", self._file, error)
            return {}

    def _prune(self, counts: dict[str, FailureCount]) -> dict[str, FailureCount]:
        """Drop old counts and the excess; learned ones are kept longest."""
        oldest = f"{self._clock.now().date() - timedelta(days=KEPT_DAYS):%Y-%m-%d}"
        recent = [(key, count) for key, count in counts.items() if count.lesson or count.last >= oldest]
        recent.sort(key=lambda pair: (bool(pair[1].lesson), pair[1].last))
        return dict(recent[-MAX_COUNTED:])

    def _today(self) -> str:
        return f"{self._clock.now():%Y-%m-%d}"


def _count_of(data: dict[str, Any]) -> FailureCount:
    """Raises TypeError or AttributeError if the data is invalid."""
    names = {field_.name for field_ in fields(FailureCount)}
    count = FailureCount(**{name: value for name, value in data.items() if name in names})
    if [type(value) for value in asdict(count).values()] != [str, str, int, list, list, int, str]:
        raise TypeError(f"not a count: {data}")
    return count


def _without_empty_section(text: str) -> str:
    """Remove our heading if nothing is left below it."""
    if any(fact.heading == SECTION for fact in parse_facts(text)):
        return text
    lines = text.splitlines(keepends=True)
    at = next((at for at, line in enumerate(lines) if line.strip() == f"## {SECTION}"), None)
    if at is None:
        return text
    end = at + 1
    while end < len(lines) and not lines[end].strip():
        end += 1
    if end < len(lines) and not lines[end].startswith("#"):
        return text  # a table, code or comment written by a person
    begin = at - 1 if end == len(lines) and at and not lines[at - 1].strip() else at
    return "".join([*lines[:begin], *lines[end:]])
