"""Recall: search in all conversations and memories that the caller may read."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from nanobot.messages.types import Provenance, least_trusted
from nanobot.security.redaction import redact_known
from nanobot.session.folder import SessionFolder
from nanobot.session.lines import Row, decode
from nanobot.session.search.index import SearchIndex
from nanobot.session.search.open_index import OpenIndex
from nanobot.session.search.query import Question, Term, find_match, index_words
from nanobot.session.search.rows import OLD_LOG, format_entry, searchable_text, trust_in, trust_in_entry
from nanobot.session.search.sources import FilePosition, IndexedFile, IndexSource, SourceKind

MayRead = Callable[[IndexedFile], bool]
"""Whether the caller may read a file."""

_TIMEOUT_S = 20.0
"""Time limit for updating the index. Building it for 100,000 messages takes about six seconds."""
_SHOWN = 320
"""Characters shown of a message."""
_BEFORE = 100
"""Characters shown before the match."""
_OF_MEMORY = re.compile(r"(?:MEMORY|HISTORY|ARCHIVE|SHARED|\d{4}-\d{2}-\d{2})\.md")
_MORE = 12
"""Extra candidates: some are duplicates in another file, and some may not be shown."""


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A message or memory entry that matches."""

    number: int
    """Its id for `around`."""
    name: str
    """The session, as commands accept it, or the memory file."""
    time: str
    """YYYY-MM-DD HH:MM; empty if unknown."""
    role: str
    text: str
    """The text around the match, on one line, with ellipses where it was cut."""
    trust: Provenance
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RecallResult:
    """The result of a search."""

    hits: list[RecallHit] = field(default_factory=list)
    is_loose: bool = False
    """Whether no message has all the words, so that these have only some."""
    is_whole: bool = True
    """Whether the index was up to date."""


class Recall:
    """Searches the conversations and memories of a workspace. Methods block; failures are StorageErrors."""

    def __init__(
        self,
        index: SearchIndex,
        *,
        provenance_of: Callable[[Path], Provenance | None] = lambda path: None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """`provenance_of` returns the provenance of a memory file; None if it is the owner's."""
        self._index = index
        self._provenance_of = provenance_of
        self._timeout_s = timeout_s

    def search(
        self,
        text: str,
        may_read: MayRead,
        *,
        limit: int = 8,
        since: float = 0.0,
        results: bool = True,
        leave_out_turn: str = "",
    ) -> RecallResult:
        """Return the best matches. `results`: include tool results. `leave_out_turn`: the turn that searches.

        The text may have quoted phrases and words ending in a star.
        """
        search = _IndexSearch(Question.of(text), may_read, limit, since, "" if results else "tool", leave_out_turn)
        if not search.question.terms:
            return RecallResult()
        return self._index.ask(lambda index: self._run(index, search), self._timeout_s)

    def around(self, number: int, may_read: MayRead, *, beside: int = 5, results: bool = True) -> RecallResult:
        """Return a message with its neighbours; nothing if it is gone or may not be read."""

        def work(index: OpenIndex) -> RecallResult:
            files = {file.id: file for file in index.files() if may_read(file)}
            hits = []
            for position in index.around(number, beside, beside):
                match = self._read_match(index, files, position)
                if match is not None and (results or position.role != "tool"):
                    hits.append(self._hit(match, position, match.text))
            return RecallResult(hits, is_whole=index.is_whole)

        return self._index.ask(work, self._timeout_s)

    def refresh(self) -> bool:
        """Update the index. Return whether it is complete."""
        return self._index.ask(lambda index: index.is_whole, self._timeout_s)

    def stop(self) -> None:
        """Stop a running update, as the process ends."""
        self._index.stop()

    def _run(self, index: OpenIndex, search: "_IndexSearch") -> RecallResult:
        files = {file.id: file for file in index.files() if search.may_read(file)}
        hits: dict[tuple[str, str, str], RecallHit] = {}
        is_loose = False
        for query in _queries(search.question):
            if len(hits) >= search.limit or (hits and not query.is_all):
                break
            limit = search.limit * 2 + _MORE
            for position in index.find(
                query.expression, files, limit, since=search.since, excluded_role=search.excluded_role
            ):
                match = self._read_match(index, files, position)
                if match is None or match.turn_id == search.leave_out or not match.matches(query):
                    continue
                excerpt = _excerpt(match.text, search.question)
                hits.setdefault((match.time, position.role, match.text), self._hit(match, position, excerpt))
                if len(hits) >= search.limit:
                    break
            is_loose = bool(hits) and not query.is_all
        return RecallResult(list(hits.values()), is_loose, index.is_whole)

    def _read_match(self, index: OpenIndex, files: dict[int, IndexedFile], position: FilePosition) -> "_Match | None":
        """Read a match again; None if it is gone or may not be read."""
        file = files.get(position.file)
        if file is None:
            return None
        try:
            data = index.read(file, position)
        except OSError:
            return None
        if file.source.kind is SourceKind.MEMORY:
            path = file.source.path
            text = format_entry(data, path.name)
            stored = None if path.name == "HISTORY.md" else self._provenance_of(path)  # its entries have marks
            trust = [trust_in_entry(text), stored or Provenance.FILE]
            return _Match(file, text, redact_known(text), _minute_of(position.time), least_trusted(trust))
        rows = decode(data)[0]
        row: Row = rows[position.nth] if position.nth < len(rows) else {}
        text = searchable_text(row)
        if not text:
            return None
        time = str(row.get("timestamp", ""))[:16].replace("T", " ")
        return _Match(file, text, redact_known(text), time, trust_in(row, file.key), row.get("turn_id"))

    def _hit(self, match: "_Match", position: FilePosition, text: str) -> RecallHit:
        shown = text if len(text) <= 2 * _SHOWN else f"{text[: 2 * _SHOWN]}…"
        return RecallHit(
            position.row,
            match.file.name,
            match.time,
            position.role,
            " ".join(shown.split()),
            match.trust,
            position.time,
        )


@dataclass(frozen=True, slots=True)
class _Match:
    """The text at a position."""

    file: IndexedFile
    raw: str
    text: str
    """With known secrets redacted."""
    time: str
    trust: Provenance
    turn_id: str | None = None

    def matches(self, query: "_Query") -> bool:
        """Whether the query matches the redacted text, not just a secret in it."""
        if self.raw == self.text:
            return True
        words = index_words(self.text)
        return (all if query.is_all else any)(term.is_in(words) for term in query.terms)


@dataclass(frozen=True, slots=True)
class _IndexSearch:
    """The parameters of a search."""

    question: Question
    may_read: MayRead
    limit: int
    since: float
    excluded_role: str
    leave_out: str


@dataclass(frozen=True, slots=True)
class _Query:
    """An index query: all of the terms, or any of them."""

    terms: tuple[Term, ...]
    is_all: bool = True

    @property
    def expression(self) -> str:
        """The FTS5 expression."""
        return (" AND " if self.is_all else " OR ").join(map(str, self.terms))


def sources_of(sessions: SessionFolder, memory: Path) -> Iterator[IndexSource]:
    """Yield every searchable file. The revisions of memory are not searched: outdated facts stay hidden."""
    for path, archived in sessions.files():
        yield IndexSource(str(path), archived=archived)
    for path in [*memory.glob("*.md"), *memory.glob("chats/*/*.md"), *memory.glob(OLD_LOG)]:
        if _OF_MEMORY.fullmatch(path.name) or path.name == OLD_LOG:
            yield IndexSource(
                str(path), SourceKind.MEMORY, folder="" if path.parent == memory else f"chats/{path.parent.name}"
            )


def _queries(question: Question) -> list[_Query]:
    """Return the queries from strict to loose, without duplicates."""
    queries = [_Query(question.terms), _Query(question.wider), _Query(question.some, is_all=False)]
    unique: dict[str, _Query] = {}
    for query in queries:
        unique.setdefault(query.expression, query)
    return list(unique.values())


def _excerpt(text: str, question: Question) -> str:
    """Cut a long text to the part around the match."""
    if len(text) <= _SHOWN:
        return text
    start, end = find_match(text, question)
    begin = max(0, min(start - _BEFORE, len(text) - _SHOWN))
    if begin and (blank := text.find(" ", begin, start)) >= 0:
        begin = blank + 1
    stop = max(end, begin + _SHOWN)
    return f"{'…' if begin else ''}{text[begin:stop]}{'…' if stop < len(text) else ''}"


def _minute_of(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds):%Y-%m-%d %H:%M}" if seconds else ""
