"""What Dream keeps of its passes over one memory: how far it has read, and what each pass did.

Both lie in the book of that memory, where no tool writes: `dream.json`, and `dreams.jsonl` with a line when a pass is
about to change something and one when it has ended. From these two lines one can tell, after any crash, whether its
change is on the disk. Methods block; writing raises StorageError.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nanobot.agent.memory import HistoryEntry, MemoryStore, entry_of, entry_spans
from nanobot.errors import StorageError
from nanobot.security.paths import PathDeniedError
from nanobot.utils.files import PRIVATE_FILE
from nanobot.utils.refusals import refusal
from nanobot.utils.text import json_objects, sound_json

_ANCHOR_BYTES = 256
"""Of the log before the cursor, by which it is known again."""
_MOST_READ = 4 << 20


@dataclass(frozen=True, slots=True)
class DreamState:
    """How far a memory's log and book were read, and how the last tries went."""

    begun: bool = False
    """Whether there was a look before."""
    offset: int = 0
    anchor: str = ""
    change: int = 0
    """The last change of the book that was seen."""
    failures: int = 0
    rests_until: float = 0.0
    failed_size: int = 0
    """How long the log was when it failed last."""
    error: str = ""


class PassOutcome(StrEnum):
    """How a pass ended."""

    CHANGED = "changed"
    UNCHANGED = "unchanged"
    FAILED = "failed"
    BROKEN_OFF = "broken off"
    """The process ended before anything was changed."""


@dataclass(frozen=True, slots=True)
class EditDone:
    """What became of facts, for people to read."""

    action: str
    before: Sequence[str]
    after: str = ""
    why: str = ""
    key: str = ""
    """Of the fact that came of it."""
    provenance: str = ""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass: one call of a model."""

    number: int
    at: str
    outcome: PassOutcome
    reason: str = ""
    who: str = ""
    model: str = ""
    calls: int = 1
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float | None = None
    entries: int = 0
    """How many entries of the log were new to it."""
    bytes_before: int = 0
    bytes_after: int = 0
    edits: Sequence[EditDone] = ()
    refused: Sequence[str] = ()
    before: str = ""
    after: str = ""
    """Hashes of MEMORY.md."""
    archived: str = ""
    """What was added to ARCHIVE.md."""
    since: int = 0
    """The last change in the book before it."""
    change: int | None = None
    """Its number in the book."""
    restored: int | None = None
    """The change in the book that took it back; 0 where there was nothing to change for that."""


@dataclass(frozen=True, slots=True)
class News:
    """What is new in a log, and where it ends."""

    end: int
    entries: Sequence[HistoryEntry] = ()
    ends: Sequence[int] = ()
    """Of each entry."""


class DreamLog:
    """The two files of one memory."""

    def __init__(self, memory: MemoryStore) -> None:
        self._memory = memory
        self._state = memory.book.folder / "dream.json"
        self._lines = memory.book.folder / "dreams.jsonl"
        self._files = memory.book.files

    def state(self) -> DreamState:
        """How far it is; as at the first look where that cannot be read."""
        with suppress(OSError, PathDeniedError, ValueError, TypeError):
            with self._files.read(self._state) as file:
                found: Any = json.loads(file.read())
            names = DreamState.__dataclass_fields__
            kinds = {name: type(getattr(DreamState(), name)) for name in names}
            return DreamState(**{name: kinds[name](found[name]) for name in names if name in found})
        return DreamState()

    def keep(self, state: DreamState) -> None:
        """So far it is now."""
        try:
            with self._files.own_place(self._state) as place:
                place.replace((json.dumps(asdict(state)) + "\n").encode(), PRIVATE_FILE)
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal("How far Dream has read cannot be kept", error) from error

    def add(self, one: Pass, *, begun: bool = False) -> None:
        """A pass is about to change something, or has ended."""
        row = {name: value for name, value in asdict(one).items() if value not in ("", None, (), [])}
        try:
            with self._files.own_place(self._lines) as place:
                place.append((sound_json({**row, "begun": True} if begun else row) + "\n").encode())
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal("What Dream does cannot be written down", error) from error

    def passes(self) -> list[Pass]:
        """All that ended, the newest first."""
        return [one for one, begun in reversed(self._rows().values()) if not begun]

    def open_pass(self) -> Pass | None:
        """One that was about to change something and of which nobody wrote how it ended."""
        return next((one for one, begun in reversed(self._rows().values()) if begun), None)

    def next_number(self) -> int:
        """What the next one is called."""
        return max(self._rows(), default=0) + 1

    def news(self, state: DreamState, most: int) -> News:
        """The entries of the log behind the cursor; of one that was never read, or was written anew, the last `most`.

        Raises StorageError.
        """
        size = self.size()
        if state.begun and size == state.offset:
            return News(size)
        goes_on = state.begun and size > state.offset and self.anchor_at(state.offset) == state.anchor
        begin = state.offset if goes_on else max(0, size - _MOST_READ)
        data = self._read(begin, size - begin)
        text = data.decode("utf-8", "surrogateescape")
        found = [
            (entry_of(_sound(text[at:end])), begin + len(text[:end].encode("utf-8", "surrogateescape")))
            for at, end in entry_spans(text)
        ]
        found = found if goes_on else found[-most:]
        return News(begin + len(data), [entry for entry, _ in found], [end for _, end in found])

    def size(self) -> int:
        """How long the log is."""
        try:
            return self._memory.history_file.stat().st_size
        except OSError:
            return 0

    def anchor_at(self, offset: int) -> str:
        """By what the place in the log is known again. Raises StorageError."""
        begin = max(0, offset - _ANCHOR_BYTES)
        return hash_of(self._read(begin, offset - begin))

    def _read(self, begin: int, size: int) -> bytes:
        try:
            with self._files.read(self._memory.history_file) as file:
                file.seek(begin)
                return file.read(size)
        except FileNotFoundError:
            return b""
        except PathDeniedError as error:
            raise StorageError(str(error)) from error
        except OSError as error:
            raise refusal("HISTORY.md cannot be read", error) from error

    def _rows(self) -> dict[int, tuple[Pass, bool]]:
        """By number, the last line of each pass, and whether it only says that it began."""
        try:
            with self._files.read(self._lines) as file:
                rows = list(json_objects(file.read()))
        except (OSError, PathDeniedError):
            return {}
        found: dict[int, tuple[Pass, bool]] = {}
        for row in rows:
            if (one := _pass_of(row)) is not None:
                found[one.number] = (one, row.get("begun") is True)
        return found


def _sound(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def hash_of(data: bytes | None) -> str:
    """By which a text is known again; empty for no file."""
    return "" if data is None else hashlib.sha256(data).hexdigest()[:16]


def _pass_of(row: Mapping[str, Any]) -> Pass | None:
    try:
        known = {name: row[name] for name in Pass.__dataclass_fields__ if name in row}
        edits = [
            EditDone(**{name: one[name] for name in EditDone.__dataclass_fields__ if name in one})
            for one in known.pop("edits", ())
        ]
        return Pass(**{**known, "number": int(row["number"]), "outcome": PassOutcome(row["outcome"]), "edits": edits})
    except (KeyError, TypeError, ValueError):
        return None
