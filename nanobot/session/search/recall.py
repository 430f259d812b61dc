"""Recall: a question, and what was said about it in all conversations that may be told of."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.vault import masked
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Row, decode
from nanobot.session.search.index import SearchIndex
from nanobot.session.search.open_index import OpenIndex
from nanobot.session.search.rows import OLD_LOG, entry_of, findable, trust_in, trust_in_entry
from nanobot.session.search.sources import IndexedFile, Kind, Place, Source
from nanobot.session.search.words import Question, Term, place_in, words_of

MayRead = Callable[[IndexedFile], bool]
"""Whether something of this file may be told."""

_PATIENCE_S = 20.0
"""How long a question waits for the index. The first one in a folder of 100,000 messages takes about six seconds."""
_SHOWN = 320
"""Characters of a message that are shown."""
_BEFORE = 100
"""Of them, those before the word."""
_OF_MEMORY = re.compile(r"(?:MEMORY|HISTORY|ARCHIVE|SHARED|\d{4}-\d{2}-\d{2})\.md")
_MORE = 12
"""Looked at beyond what is wanted: the same message may stand in two files, and some may not be shown."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A message, or an entry of the memory, in which something was found."""

    number: int
    """By which `around` finds it again."""
    name: str
    """Its session, as the commands take it, or the memory file."""
    time: str
    """YYYY-MM-DD HH:MM; empty where it is not known."""
    role: str
    text: str
    """The words around the place, on one line; cut ends are marked."""
    trust: Provenance
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """An answer."""

    hits: list[Hit] = field(default_factory=list)
    is_loose: bool = False
    """Whether nothing holds all that was asked for, so that these hold some of it."""
    is_whole: bool = True
    """Whether everything was looked at."""


class Recall:
    """The conversations of a workspace and the memory beside them. Everything blocks; what fails is a StorageError."""

    def __init__(
        self,
        index: SearchIndex,
        *,
        words_of_file: Callable[[Path], Provenance | None] = lambda path: None,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`words_of_file` tells whose words a memory file holds, where they are not the owner's."""
        self._index = index
        self._words_of_file = words_of_file
        self._patience_s = patience_s

    def search(
        self,
        text: str,
        may_read: MayRead,
        *,
        limit: int = 8,
        since: float = 0.0,
        results: bool = True,
        leave_out_turn: str = "",
    ) -> Found:
        """What was said with these words, the best first; `results` of tools too.

        A turn is left out that has just asked for them.
        """
        search = _Search(Question.of(text), may_read, limit, since, "" if results else "tool", leave_out_turn)
        if not search.question.terms:
            return Found()
        return self._index.ask(lambda index: self._found(index, search), self._patience_s)

    def around(self, number: int, may_read: MayRead, *, beside: int = 5, results: bool = True) -> Found:
        """A message that was found, and those before and after it; none where it is not there, or may not be told."""

        def work(index: OpenIndex) -> Found:
            files = {file.id: file for file in index.files() if may_read(file)}
            hits = []
            for place in index.around(number, beside, beside):
                said = self._said(index, files, place)
                if said is not None and (results or place.role != "tool"):
                    hits.append(self._hit(said, place, said.text))
            return Found(hits, is_whole=index.is_whole)

        return self._index.ask(work, self._patience_s)

    def refresh(self) -> bool:
        """Bring the index up to date, so that the next question is answered at once; whether that is done."""
        return self._index.ask(lambda index: index.is_whole, self._patience_s)

    def stop(self) -> None:
        """Leave off what takes time: the process ends."""
        self._index.stop()

    def _found(self, index: OpenIndex, search: "_Search") -> Found:
        files = {file.id: file for file in index.files() if search.may_read(file)}
        hits: dict[tuple[str, str, str], Hit] = {}
        is_loose = False
        for way in _ways_to_ask(search.question):
            if len(hits) >= search.limit or (hits and not way.is_all):
                break
            most = search.limit * 2 + _MORE
            for place in index.find(way.expression, files, most, since=search.since, but=search.but):
                said = self._said(index, files, place)
                if said is None or said.turn_id == search.leave_out or not said.holds(way):
                    continue
                cut = _cut_out(said.text, search.question)
                hits.setdefault((said.time, place.role, said.text), self._hit(said, place, cut))
                if len(hits) >= search.limit:
                    break
            is_loose = bool(hits) and not way.is_all
        return Found(list(hits.values()), is_loose, index.is_whole)

    def _said(self, index: OpenIndex, files: dict[int, IndexedFile], place: Place) -> "_Said | None":
        """What stands there; None where it may not be told or is not there any more."""
        file = files.get(place.file)
        if file is None:
            return None
        try:
            data = index.read(file, place)
        except OSError:
            return None
        if file.source.kind is Kind.MEMORY:
            path = file.source.path
            text = entry_of(data, path.name)
            book = None if path.name == "HISTORY.md" else self._words_of_file(path)  # its entries say it themselves
            trust = [trust_in_entry(text), book or Provenance.FILE]
            return _Said(file, text, masked(text), _minute_of(place.time), least_trusted(trust))
        rows = decode(data)[0]
        row: Row = rows[place.nth] if place.nth < len(rows) else {}
        text = findable(row)
        if not text:
            return None
        time = str(row.get("timestamp", ""))[:16].replace("T", " ")
        return _Said(file, text, masked(text), time, trust_in(row, file.key), row.get("turn_id"))

    def _hit(self, said: "_Said", place: Place, text: str) -> Hit:
        shown = text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"
        return Hit(place.row, said.file.name, said.time, place.role, " ".join(shown.split()), said.trust, place.time)


@dataclass(frozen=True, slots=True)
class _Said:
    """What stands at a place."""

    file: IndexedFile
    raw: str
    text: str
    """Without secrets of ours."""
    time: str
    trust: Provenance
    turn_id: str | None = None

    def holds(self, way: "_Way") -> bool:
        """Whether it is found by what may be shown of it, and not by a secret in it."""
        if self.raw == self.text:
            return True
        words = words_of(self.text)
        return (all if way.is_all else any)(term.stands_in(words) for term in way.terms)


@dataclass(frozen=True, slots=True)
class _Search:
    """What is looked for, where, and what not."""

    question: Question
    may_read: MayRead
    limit: int
    since: float
    but: str
    leave_out: str


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to ask the index: for all of the terms, or for any."""

    terms: tuple[Term, ...]
    is_all: bool = True

    @property
    def expression(self) -> str:
        """As FTS5 takes it."""
        return (" AND " if self.is_all else " OR ").join(map(str, self.terms))


def sources_of(sessions: SessionFolder, memory: Path) -> Iterator[Source]:
    """Every file in which something can be found. Not what became of facts: those that are wrong now stay unfound."""
    for path, archived in sessions.files():
        yield Source(str(path), archived=archived)
    for path in [*memory.glob("*.md"), *memory.glob("chats/*/*.md"), *memory.glob(OLD_LOG)]:
        if _OF_MEMORY.fullmatch(path.name) or path.name == OLD_LOG:
            yield Source(str(path), Kind.MEMORY, folder="" if path.parent == memory else f"chats/{path.parent.name}")


def _ways_to_ask(question: Question) -> list[_Way]:
    """From the strictest to the widest; of those that ask the same, the strictest."""
    ways = [_Way(question.terms), _Way(question.wider), _Way(question.some, is_all=False)]
    first: dict[str, _Way] = {}
    for way in ways:
        first.setdefault(way.expression, way)
    return list(first.values())


def _cut_out(text: str, question: Question) -> str:
    """The words around the place that was looked for."""
    if len(text) <= _SHOWN:
        return text
    start, end = place_in(text, question)
    begin = max(0, min(start - _BEFORE, len(text) - _SHOWN))
    if begin and (blank := text.find(" ", begin, start)) >= 0:
        begin = blank + 1
    stop = max(end, begin + _SHOWN)
    return f"{'…' if begin else ''}{text[begin:stop]}{'…' if stop < len(text) else ''}"


def _minute_of(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else ""
