"""The memory files of one scope: Markdown that a person may read and edit.

    memory/MEMORY.md        lasting facts; in every prompt
    memory/HISTORY.md       append-only log: entries begin with `[YYYY-MM-DD HH:MM]` and end in a blank line
    memory/ARCHIVE.md       facts moved out of a full MEMORY.md; searched, never in a prompt
    memory/SHARED.md        facts that the owner shared with every chat; in every prompt
    memory/YYYY-MM-DD.md    notes of one day
    memory/chats/<chat>/    the same files for a chat with other people; visible only in that chat

Every version of the facts, and where each came from, is in the database of nanobot's state (see `revisions`).
Nothing is cached, since an editor may change the files at any time. An unreadable file reads as empty and is never
overwritten because of that. Invalid UTF-8 reads as replacement characters.
"""

import asyncio
import logging
import os
import re
from datetime import date, timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from nanobot.agent.memory.files import BUDGET_BYTES as BUDGET_BYTES
from nanobot.agent.memory.files import MemoryFiles
from nanobot.agent.scope import Scope
from nanobot.errors import NanobotError
from nanobot.providers.base import LLMProvider
from nanobot.security.files.open import Opener, Stamp, stamp_of
from nanobot.utils.aio import finish

if TYPE_CHECKING:
    from nanobot.agent.memory.revisions import RevisionLog
    from nanobot.session.manager import Session

log = logging.getLogger(__name__)

MAX_PROMPT_CHARS = 16_000
"""Characters of one file that go into a prompt; the rest is left to `read_file`."""

MAX_NOTES_CHARS = 4_000
NOTES_HEADING = "## Today's Notes"

_SECTION_BREAK = re.compile(r"^[ ]{0,3}(?:(#{1,2})(?=\s)|(?:-[ \t]*){3,}$|={3,}[ \t]*$)", re.MULTILINE)
"""Headings of level 1 and 2, and lines that are a rule or turn the line above into a heading."""


class MemoryStore(MemoryFiles):
    """The memory of one scope of a workspace. Reading never raises; writing raises StorageError."""

    @cached_property
    def revisions(self) -> "RevisionLog":
        from nanobot.agent.memory.revisions import RevisionLog  # most turns change no memory

        workspace = Path(os.path.abspath(self._workspace))  # noqa: PTH100 no look at the disk
        data = self.database.parent.parent
        name = workspace.relative_to(data) if workspace.is_relative_to(data) else workspace
        return RevisionLog(self, (name / self.scope.folder).as_posix())

    def of(self, scope: Scope) -> "MemoryStore":
        """Return the store for a scope of the same workspace, the same one while it is in use."""
        if scope == self.scope:
            return self
        if (store := self._others.get(scope)) is None:
            store = self._others[scope] = MemoryStore(
                self._workspace,
                clock=self.clock,
                files=self._all_files,
                scope=scope,
                budget_bytes=self.budget_bytes,
                database=self._database,
            )
        return store

    @cached_property
    def _others(self) -> "WeakValueDictionary[Scope, MemoryStore]":
        return WeakValueDictionary()

    @property
    def prompt_files(self) -> tuple[Path, ...]:
        """The files `long_term_context` is built from; it changes only when they do."""
        return (self.memory_file, self.shared_file, self.archive_file)

    def read_long_term(self) -> str:
        return read_or_empty(self.memory_file, self.files)

    def write_long_term(self, content: str) -> None:
        """Replace MEMORY.md atomically."""
        self.write(self.memory_file, content.encode("utf-8", "replace"))

    async def consolidate(
        self,
        session: "Session",
        provider: LLMProvider,
        model: str,
        *,
        archive_all: bool = False,
        memory_window: int = 50,
    ) -> bool:
        """Move all but the last `memory_window // 2` messages into memory, by one `save_memory` call.

        Return True if that succeeded or there was nothing to do. `session.last_consolidated` is then advanced, and
        `SessionManager.save` persists it. Return False, with nothing moved, if the model or the disk failed.
        """
        # most turns consolidate nothing
        from nanobot.agent.memory.save_memory import (
            build_transcript,
            read_for_model,
            request_consolidation,
            store_edits,
        )

        messages = session.messages
        end = len(messages) - (0 if archive_all else memory_window // 2)
        rows = messages[session.last_consolidated : max(end, 0)]
        transcript = build_transcript(rows)
        try:
            if transcript.text:
                memory = await asyncio.to_thread(read_for_model, self.revisions)
                own = build_transcript(rows, is_trusted_only=True)
                saved = await request_consolidation(provider, model, memory, transcript, own)
                await finish(asyncio.to_thread(store_edits, self.revisions, saved.history_entry, saved.edits))
        except NanobotError as error:
            log.warning("Old messages could not be moved into memory: %s", error)
            return False
        session.last_consolidated += len(rows)
        return True

    def get_memory_context(self) -> str:
        """Return the memory for a prompt: `## Long-term Memory` and `## Today's Notes`, each capped and left out if
        empty. Our own prompts carry the notes beside the user's message, so that a new note does not invalidate the
        cached prefix.
        """
        return "\n\n".join(part for part in (self.long_term_context(), self.todays_notes()) if part)

    def todays_notes(self) -> str:
        """Return today's notes under their heading, cut to the last `MAX_NOTES_CHARS`; empty if there are none."""
        text = self.demote_headings(self.drop_forgotten(self.read_today())).strip()
        if len(text) > MAX_NOTES_CHARS:
            text = f"(the last of {len(text)} characters)\n{text[-MAX_NOTES_CHARS:]}"
        return f"{NOTES_HEADING}\n\n{text}" if text else ""

    def long_term_context(self) -> str:
        """Return `## Long-term Memory` for the system prompt, capped; empty if there is none."""
        memory = self.demote_headings(read_capped(self.memory_file, self.files))
        shared = read_capped(self.shared_file, self.files)
        if shared and self.scope.is_owners:  # MEMORY.md already has the owner's copy of a shared fact
            from nanobot.agent.memory.facts import parse_facts, remove_facts

            known = {fact.key for fact in parse_facts(memory)}
            shared = remove_facts(shared, [fact for fact in parse_facts(shared) if fact.key in known]).strip()
            shared = shared if parse_facts(shared) else ""
        archive = f"(More facts, which had no room here: {self.archive_file})" if self.archive_file.is_file() else ""
        text = "\n\n".join(part for part in (memory, shared, archive) if part)
        return f"## Long-term Memory\n\n{text}" if text else ""

    def demote_headings(self, text: str) -> str:
        """Return text of this memory for a prompt. In a chat with other people, headings are demoted below ours and
        rules are dropped, so that the text cannot start a section of the prompt.
        """
        return text if self.scope.is_owners else _SECTION_BREAK.sub(lambda match: "###" if match[1] else "", text)

    def drop_forgotten(self, text: str) -> str:
        """Return the text without lines about facts that a person had forgotten and did not state again."""
        if not text or not self.database.exists():
            return text
        from nanobot.agent.memory.facts import fact_words
        from nanobot.agent.memory.revisions import is_like

        memory_lines = self.read_long_term().splitlines()
        forgotten_texts = [
            text for text in self.revisions.forgotten() if not any(is_like(text, line) for line in memory_lines)
        ]
        forgotten_words = [words for text in forgotten_texts if (words := fact_words(text))]
        lines = text.splitlines()
        remaining = [
            line
            for line in lines
            if not any(len(words & fact_words(line)) >= 0.7 * len(words) for words in forgotten_words)
        ]
        return text if len(remaining) == len(lines) else "\n".join(remaining)

    def note_file(self, day: date | None = None) -> Path:
        return self.memory_dir / f"{day or self._today():%Y-%m-%d}.md"

    def read_today(self) -> str:
        return read_or_empty(self.note_file(), self.files)

    def append_today(self, content: str) -> None:
        """Append to today's notes, durably. The first note of a day starts the file with the date as heading."""
        text = content.strip()
        if not text:
            return
        path = self.note_file()
        heading = "" if read_or_empty(path, self.files).strip() else f"# {path.stem}\n\n"
        self.append(path, f"{heading}{text}\n")

    def archive_today(self) -> bool:
        """Rename today's notes so that no prompt shows them. Return whether there were any."""
        path = self.note_file()
        if not (data := self.file_bytes(path)):
            return False
        number = next(at for at in range(1, 10_000) if not path.with_name(f"{path.stem}-{at}.md").exists())
        self.write(path.with_name(f"{path.stem}-{number}.md"), data)
        self.write(path, None)
        return True

    def get_recent_memories(self, days: int = 7) -> str:
        """Return the notes of the last `days` days, newest first, separated by rules."""
        today = self._today()
        notes = (read_or_empty(self.note_file(today - timedelta(days=ago)), self.files) for ago in range(days))
        return "\n\n---\n\n".join(note.strip() for note in notes if note.strip())

    def _today(self) -> date:
        return self.clock.now().date()


def file_stamp(path: str) -> Stamp | None:
    """Return what changes with the content of a file; None if there is none."""
    try:
        return stamp_of(os.stat(path))  # noqa: PTH116 called for several files in every turn; a Path costs more
    except OSError:
        return None


def read_or_empty(path: Path, files: Opener, limit: int = -1) -> str:
    """Return the text of a file, at most `limit` characters. Log a warning and return "" if it cannot be read."""
    if not os.path.lexists(path):
        return ""
    try:
        with open(path, encoding="utf-8-sig", errors="replace", opener=files.descriptor) as file:
            return file.read(limit)
    except FileNotFoundError:
        return ""
    except OSError as error:
        log.warning("Cannot read %s: %s. Going on without it.", path, error.strerror)
        return ""


def read_capped(path: Path, files: Opener) -> str:
    """Return the text of a file for a prompt, cut to `MAX_PROMPT_CHARS` with a note that says so."""
    text = read_or_empty(path, files, MAX_PROMPT_CHARS + 1).strip()
    if len(text) <= MAX_PROMPT_CHARS:
        return text
    note = f"(Cut after {MAX_PROMPT_CHARS} characters. Read the rest with `read_file`: {path})"
    return f"{text[:MAX_PROMPT_CHARS]}\n\n{note}"
