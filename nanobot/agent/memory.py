"""Memory: what the agent keeps beyond a session, in Markdown files that a person may read and edit.

    memory/MEMORY.md        facts that stay; in every prompt
    memory/HISTORY.md       a log that only grows: entries begin `[YYYY-MM-DD HH:MM]` and end in a blank line
    memory/ARCHIVE.md       facts that left MEMORY.md when it was full; searched, never in a prompt
    memory/SHARED.md        facts that the owner shared with every chat; in every prompt
    memory/YYYY-MM-DD.md    a day's notes
    memory/chats/<chat>/    the same of a chat in which others write or read: what is kept there is told there only
    memory/.book/           every version of the facts, and where each came from (see memory_book)

Nothing is kept in our pockets: an editor may have been here since the last read. What cannot be read reads as empty
and is never overwritten by it; damaged bytes become replacement marks and take nothing else with them.
"""

import asyncio
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nanobot.agent.scope import OWNERS, SHARED, Scope, apart
from nanobot.errors import NanobotError, StorageError
from nanobot.messages.types import ChatMessage
from nanobot.providers.base import LLMProvider
from nanobot.security.opening import Opener, Place
from nanobot.security.paths import PathDeniedError, PathPolicy
from nanobot.utils.aio import finish
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, sweep_temps
from nanobot.utils.refusals import refusal
from nanobot.utils.text import json_objects

if TYPE_CHECKING:
    from nanobot.agent.facts import Fact
    from nanobot.agent.memory_book import By, Change, MemoryBook, Source

log = logging.getLogger(__name__)

MAX_PROMPT_CHARS = 16_000
"""More of one file than this is left for `read_file`."""

BUDGET_BYTES = 8192
"""What MEMORY.md may weigh after a consolidation; the least important facts leave for the archive."""
_FORGOTTEN_S = 600.0
"""After so long nobody is still writing a temp file."""
_STAMP = re.compile(r"^\[(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)
_PART = re.compile(r"^[ ]{0,3}(?:(#{1,2})(?=\s)|(?:-[ \t]*){3,}$|={3,}[ \t]*$)", re.MULTILINE)
"""How a heading as large as ours begins, and lines that part text or make a heading of it."""
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """An entry of the log. `timestamp` is `YYYY-MM-DD HH:MM`, empty where the file has none."""

    timestamp: str
    content: str


class Conversation(Protocol):
    """What has messages, and a count of those that went into memory: a Session."""

    last_consolidated: int

    @property
    def messages(self) -> list[ChatMessage]:
        """All of them."""
        ...


class MemoryStore:
    """The memory of one workspace. Reading never raises; writing raises StorageError where the disk refuses.

    `files` opens what it reads and writes: a command may have put a link in the place of a file. What it put into the
    folder of a chat leads to no other memory.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        clock: Clock | None = None,
        files: Opener | None = None,
        scope: Scope = OWNERS,
        budget_bytes: int = BUDGET_BYTES,
    ) -> None:
        self.budget_bytes = budget_bytes
        self._all_files = files or Opener(PathPolicy(workspace))
        self._files = replace(self._all_files, policy=apart(self._all_files.policy, scope))
        self._workspace = workspace
        self.scope = scope
        self.memory_dir = workspace / "memory" / scope.folder
        self.memory_file = self.memory_dir / "MEMORY.md"
        self.history_file = self.memory_dir / "HISTORY.md"
        self.archive_file = self.memory_dir / "ARCHIVE.md"
        self.shared_file = workspace / "memory" / SHARED
        self._clock = clock or SystemClock()

    @cached_property
    def book(self) -> "MemoryBook":
        """What changed in it, and when."""
        from nanobot.agent.memory_book import MemoryBook  # most turns change no memory

        return MemoryBook(self._book_folder, self._all_files, self._clock)

    @property
    def _book_folder(self) -> Path:
        return self._workspace / "memory" / ".book" / (self.scope.folder or "owner")

    def of(self, scope: Scope) -> "MemoryStore":
        """The memory of another scope of the same workspace."""
        return MemoryStore(
            self._workspace, clock=self._clock, files=self._all_files, scope=scope, budget_bytes=self.budget_bytes
        )

    @property
    def prompt_files(self) -> tuple[Path, ...]:
        """What `get_memory_context` is made of: it is the same while these are."""
        return (self.memory_file, self.shared_file, self.archive_file)

    def read_long_term(self) -> str:
        """MEMORY.md as it stands; empty where there is none."""
        return read_or_empty(self.memory_file, self._files)

    def text_of(self, file: Path) -> str:
        """The text of one of its files, whatever bytes it holds: they come out again as they went in. Empty where it
        cannot be read.
        """
        try:
            data = self.bytes_of(file) or b""
        except StorageError:
            return ""
        return data.decode("utf-8", "surrogateescape")

    def write_long_term(self, content: str) -> None:
        """Replace MEMORY.md in one step."""
        self._write(self.memory_file, content.encode("utf-8", "replace"))

    def note_changes(self, by: "By | None" = None, source: "Source | None" = None) -> None:
        """Write down how MEMORY.md and SHARED.md stand, if that is new: an editor or a tool was there.

        Raises StorageError.
        """
        from nanobot.agent.memory_book import NOWHERE, By

        with self.book.at_work():
            for file in (self.memory_file, *([self.shared_file] if self.scope.is_owners else [])):
                self.book.note(file.name, self.bytes_of(file), by or By.HAND, source or NOWHERE)

    def change(
        self, file: Path, data: bytes | None, by: "By", source: "Source | None" = None, **noted: Any
    ) -> "Change | None":
        """Put these bytes in the place of MEMORY.md or SHARED.md, None for no file, and write that down. What an editor
        did before is a change of its own. Raises StorageError.
        """
        from nanobot.agent.memory_book import NOWHERE, By

        with self.book.at_work():
            before = self.bytes_of(file)
            if before is not None or self.book.changes():
                self.book.note(file.name, before, By.HAND)
            if data != before:
                self._put(file, data)
            try:
                return self.book.note(file.name, data, by, source or NOWHERE, **noted)
            except StorageError:
                with suppress(StorageError):
                    self._put(file, before)  # who reads that it could not be done takes it for not done
                raise

    def _put(self, file: Path, data: bytes | None) -> None:
        if data is None:
            self._remove(file)
        elif file == self.memory_file and (text := _text_of(data)) is not None:
            self.write_long_term(text)
        else:
            self._write(file, data)

    def put(self, file: Path, data: bytes | None) -> None:
        """Put these bytes there, None for no file, and say nothing of it in the book: the archive has no versions of
        its own, and what could not be noted is taken back unnoted. Raises StorageError.
        """
        if data is None:
            self._remove(file)
        else:
            self._write(file, data)

    def bytes_of(self, file: Path) -> bytes | None:
        """What a file of it holds, None where there is none. Raises StorageError."""
        try:
            with self._files.read(file) as opened:
                return opened.read()
        except FileNotFoundError:
            return None
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal(f"{file.name} cannot be read", error) from error

    def read_to_rewrite(self) -> str:
        """MEMORY.md for who will put another text in its place. Raises StorageError where it cannot be read whole."""
        try:
            with open(self.memory_file, encoding="utf-8-sig", opener=self._files.descriptor) as file:
                return file.read()
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError as error:
            raise StorageError(f"{self.memory_file} holds bytes that are no UTF-8 text. Save it as UTF-8.") from error
        except OSError as error:
            raise refusal("MEMORY.md cannot be read", error) from error

    def take_in(
        self, history_entry: str, memory_update: str, *, instead_of: str, source: "Source | None" = None
    ) -> None:
        """Keep what a consolidation brought: first the entry for the log, then MEMORY.md where it changed.

        Facts that say the same are made one, what was forgotten does not come back from what was said before, and what
        goes beyond the budget leaves for the archive. Where MEMORY.md is no longer `instead_of`, what the update
        changes is changed in the text that stands there. Raises StorageError, also where both changed the same facts;
        then nothing is written.
        """
        from nanobot.agent.memory_book import NOWHERE, By
        from nanobot.agent.memory_merge import carried_over
        from nanobot.agent.remembering import settled

        source = source or NOWHERE
        with self.book.at_work():
            update = memory_update if memory_update.strip() != instead_of.strip() else instead_of
            stands = self.read_to_rewrite()
            if stands != instead_of:
                update, homeless = carried_over(instead_of, update, stands)
                if homeless:
                    raise StorageError(
                        "MEMORY.md was changed meanwhile, in the same place; the older messages stay until they are "
                        "asked for again."
                    )
            kept = settled(update, stands, self.book, source, self.budget_bytes, self._clock)
            self.append_history(history_entry)
            if kept.archived:
                self.append_archive(kept.archived)
            if kept.text.strip() != stands.strip():
                data = f"{kept.text.strip()}\n".encode("utf-8", "replace")
                self.change(self.memory_file, data, By.CONSOLIDATION, source, mentioned=kept.mentioned)
            elif kept.mentioned:
                data = self.bytes_of(self.memory_file) or b""
                self.book.note(self.memory_file.name, data, By.CONSOLIDATION, source, mentioned=kept.mentioned)

    def append_archive(self, facts: "Sequence[Fact]") -> None:
        """Facts that left MEMORY.md, with the day they did."""
        lines = "\n".join(f"- {fact.text}" for fact in facts)
        self._append(self.archive_file, f"## {self._today():%Y-%m-%d}\n\n{lines}\n")

    async def consolidate(
        self,
        session: Conversation,
        provider: LLMProvider,
        model: str,
        *,
        archive_all: bool = False,
        memory_window: int = 50,
    ) -> bool:
        """Move all but the last `memory_window // 2` messages into memory, by one `save_memory` call.

        True where that is done or there is nothing to do; then `session.last_consolidated` stands behind them, and
        `SessionManager.save` keeps it. False where the model or the disk failed: then nothing has moved.
        """
        from nanobot.agent.save_memory import (
            ask_for_both,
            own_transcript,
            transcript_of,
        )  # most turns consolidate nothing

        messages = session.messages
        end = len(messages) - (0 if archive_all else memory_window // 2)
        gone = messages[session.last_consolidated : max(end, 0)]
        transcript = transcript_of(gone)
        if not transcript.text:
            return True
        try:
            memory = await asyncio.to_thread(self.read_to_rewrite)
            saved = await ask_for_both(provider, model, memory, transcript, own_transcript(gone))
            await finish(asyncio.to_thread(self.take_in, saved.history_entry, saved.memory_update, instead_of=memory))
        except NanobotError as error:
            log.warning("Old messages could not be moved into memory: %s", error)
            return False
        session.last_consolidated = end
        return True

    def get_memory_context(self) -> str:
        """Long-term memory as a part of the prompt, capped; empty where there is none."""
        memory = self.as_told(read_capped(self.memory_file, self._files))
        shared = read_capped(self.shared_file, self._files)
        if shared and self.scope.is_owners:  # there they stand in MEMORY.md, too
            from nanobot.agent.facts import facts_in, without

            known = {fact.key for fact in facts_in(memory)}
            shared = without(shared, [fact for fact in facts_in(shared) if fact.key in known]).strip()
            shared = shared if facts_in(shared) else ""
        archive = f"(More facts, which had no room here: {self.archive_file})" if self.archive_file.is_file() else ""
        text = "\n\n".join(part for part in (memory, shared, archive) if part)
        return f"## Long-term Memory\n\n{text}" if text else ""

    def as_told(self, text: str) -> str:
        """Words of this memory for a prompt. Those of a chat in which others write begin no part of the prompt: their
        headings stand below ours, and lines that part them are left out.
        """
        return text if self.scope.is_owners else _PART.sub(lambda found: "###" if found[1] else "", text)

    def without_forgotten(self, text: str) -> str:
        """Words for a prompt without the lines that speak of what a person had forgotten, and did not tell again."""
        if not text or not self._book_folder.is_dir():
            return text
        from nanobot.agent.facts import words_of
        from nanobot.agent.memory_book import is_like

        known = self.read_long_term().splitlines()
        gone = [told for told, _ in self.book.forgotten() if not any(is_like(told, line) for line in known)]
        forgotten = [words for told in gone if (words := words_of(told))]
        lines = text.splitlines()
        kept = [line for line in lines if not any(_speaks_of(words, words_of(line)) for words in forgotten)]
        return text if len(kept) == len(lines) else "\n".join(kept)

    def append_history(self, entry: str) -> None:
        """Add to the log, durably. An entry without its own `[YYYY-MM-DD HH:MM]` gets the present one."""
        text = _BLANK_LINES.sub("\n", entry.strip())
        if not text:
            return
        if not _STAMP.match(text):
            text = f"[{self._clock.now():%Y-%m-%d %H:%M}] {text}"
        self._append(self.history_file, text + "\n\n")

    def read_history(self) -> list[HistoryEntry]:
        """The log, oldest first: HISTORY.md and the `history.jsonl` that later releases of the original wrote."""
        entries = [
            *_entries_of_jsonl(read_or_empty(self.memory_dir / "history.jsonl", self._files)),
            *entries_of(read_or_empty(self.history_file, self._files)),
        ]
        return sorted(entries, key=lambda entry: entry.timestamp)

    def note_file(self, day: date | None = None) -> Path:
        """Where a day's notes are; today's if none is named."""
        return self.memory_dir / f"{day or self._today():%Y-%m-%d}.md"

    def read_today(self) -> str:
        """Today's notes; empty where there are none."""
        return read_or_empty(self.note_file(), self._files)

    def append_today(self, content: str) -> None:
        """Add to today's notes, durably; the first of the day begins the file with its date."""
        text = content.strip()
        if not text:
            return
        path = self.note_file()
        heading = "" if read_or_empty(path, self._files).strip() else f"# {path.stem}\n\n"
        self._append(path, f"{heading}{text}\n")

    def put_away_today(self) -> bool:
        """Move today's notes to where no prompt shows them, beside the others; whether there were some."""
        path = self.note_file()
        if not (data := self.bytes_of(path)):
            return False
        number = next(at for at in range(1, 10_000) if not path.with_name(f"{path.stem}-{at}.md").exists())
        self._write(path.with_name(f"{path.stem}-{number}.md"), data)
        self._remove(path)
        return True

    def get_recent_memories(self, days: int = 7) -> str:
        """The notes of the last days, today's first, parted by lines."""
        today = self._today()
        notes = (read_or_empty(self.note_file(today - timedelta(days=ago)), self._files) for ago in range(days))
        return "\n\n---\n\n".join(note.strip() for note in notes if note.strip())

    def _today(self) -> date:
        return self._clock.now().date()

    def _remove(self, path: Path) -> None:
        try:
            with self._files.own_place(path) as place:
                place.real.unlink(missing_ok=True)
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal(f"Cannot remove {path.name}", error) from error

    def _write(self, path: Path, content: bytes) -> None:
        try:
            with self._files.own_place(path) as place:
                sweep_temps(place.real, older_than_s=_FORGOTTEN_S)
                place.replace(content, PRIVATE_FILE)
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal(f"Cannot write {path.name}", error) from error

    def _append(self, path: Path, text: str) -> None:
        """Append a paragraph; it begins on a line of its own whatever an editor or a crash left at the end."""
        try:
            with self._files.own_place(path) as place:
                place.append((_gap_at_end(place) + text).encode("utf-8", "replace"))
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal(f"Cannot write {path.name}", error) from error


def _speaks_of(fact: set[str], line: set[str]) -> bool:
    return len(fact & line) >= 0.7 * len(fact)


def _text_of(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def read_or_empty(path: Path, files: Opener, limit: int = -1) -> str:
    """The text of a file, at most `limit` characters of it; empty where it cannot be read, with a line in the log."""
    try:
        with open(path, encoding="utf-8-sig", errors="replace", opener=files.descriptor) as file:
            return file.read(limit)
    except FileNotFoundError:
        return ""
    except OSError as error:
        log.warning("Cannot read %s: %s. Going on without it.", path, error.strerror)
        return ""


def read_capped(path: Path, files: Opener) -> str:
    """The text of a file for a prompt; of a very long one the head, and a note that says so."""
    text = read_or_empty(path, files, MAX_PROMPT_CHARS + 1).strip()
    if len(text) <= MAX_PROMPT_CHARS:
        return text
    note = f"(Cut after {MAX_PROMPT_CHARS} characters. Read the rest with `read_file`: {path})"
    return f"{text[:MAX_PROMPT_CHARS]}\n\n{note}"


def _gap_at_end(place: Place) -> str:
    """The newlines that are missing for a blank line at the end of the file."""
    try:
        with place.read() as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 4))
            tail = file.read().replace(b"\r\n", b"\n")
    except FileNotFoundError:
        return ""
    newlines = len(tail) - len(tail.rstrip(b"\n"))
    return "\n" * max(0, 2 - newlines) if tail else ""


def entries_of(text: str) -> Iterator[HistoryEntry]:
    """Entries of HISTORY.md; words before the first stamp are an entry without one."""
    return (entry_of(text[begin:end]) for begin, end in entry_spans(text))


def entry_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where each of them stands."""
    starts = [match.start() for match in _STAMP.finditer(text)]
    for start, end in zip([0, *starts], [*starts, len(text)], strict=True):
        if text[start:end].strip():
            yield start, end


def entry_of(piece: str) -> HistoryEntry:
    """One of them."""
    piece = piece.strip()
    stamp = _STAMP.match(piece)
    return HistoryEntry(stamp[1].replace("T", " ") if stamp else "", piece[stamp.end() if stamp else 0 :].strip())


def _entries_of_jsonl(text: str) -> Iterator[HistoryEntry]:
    """Entries of history.jsonl, `{cursor, timestamp, content}` a line; lines that are none are passed over."""
    for row in json_objects(text.encode()):
        if isinstance(content := row.get("content"), str):
            yield HistoryEntry(_minute(row.get("timestamp")), content.strip())


def said_in(line: str) -> str:
    """What a line of history.jsonl says; empty where it says nothing."""
    return "".join(entry.content for entry in _entries_of_jsonl(line))


def _minute(timestamp: object) -> str:
    try:
        return f"{datetime.fromisoformat(str(timestamp)):%Y-%m-%d %H:%M}"
    except ValueError:
        return ""
