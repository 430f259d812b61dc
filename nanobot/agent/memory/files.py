"""The files of one memory, opened without following links, read whole and written atomically."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from nanobot.agent.scope import OWNERS, SHARED, Scope, restrict_paths
from nanobot.config.paths import DataPaths, get_data_dir
from nanobot.errors import StorageError
from nanobot.security.files.open import Opener
from nanobot.security.files.paths import PathDeniedError, PathPolicy
from nanobot.utils.clock import Clock, SystemClock
from nanobot.utils.files import PRIVATE_FILE, make_private_folder, remove_stale_temps
from nanobot.utils.locks import ProcessLock
from nanobot.utils.storage_error import storage_error

SCHEMA = """
CREATE TABLE IF NOT EXISTS memory_revisions (
    memory TEXT NOT NULL, number INTEGER NOT NULL, file TEXT NOT NULL,
    text BLOB, is_kept INTEGER NOT NULL, revision TEXT NOT NULL, PRIMARY KEY (memory, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS memory_due (
    kind TEXT NOT NULL, key TEXT NOT NULL, due_at REAL NOT NULL, failures INTEGER NOT NULL, state TEXT NOT NULL,
    PRIMARY KEY (kind, key)) WITHOUT ROWID;
"""
BUDGET_BYTES = 8192
"""Size limit of MEMORY.md after a consolidation; the least important facts move to the archive."""
_STALE_TEMP_S = 600.0
"""A temporary file older than this belongs to no running writer."""
_BLANK_LINES = re.compile(r"\n[ \t]*(?:\n[ \t]*)+")
STAMP = re.compile(r"^\[(\d{4}-\d{2}-\d{2}[ T]\d{2}:\d{2})[^\]\n]*\]", re.MULTILINE)


class MemoryFiles:
    """The files of one scope of a workspace.

    `files` opens them without following links, since a command may have replaced one by a link. The policy of a chat's
    scope gives no access to any other memory.
    """

    def __init__(
        self,
        workspace: Path,
        *,
        clock: Clock | None = None,
        files: Opener | None = None,
        scope: Scope = OWNERS,
        budget_bytes: int = BUDGET_BYTES,
        database: Path | None = None,
    ) -> None:
        """`database` has the revisions; by default that of the configuration in use."""
        self.budget_bytes = budget_bytes
        self._all_files = files or Opener(PathPolicy(workspace))
        self.files = replace(self._all_files, policy=restrict_paths(self._all_files.policy, scope))
        self._workspace = workspace
        self.scope = scope
        self.memory_dir = workspace / "memory" / scope.folder
        self.memory_file = self.memory_dir / "MEMORY.md"
        self.history_file = self.memory_dir / "HISTORY.md"
        self.archive_file = self.memory_dir / "ARCHIVE.md"
        self.shared_file = workspace / "memory" / SHARED
        self.clock = clock or SystemClock()
        self._database = database

    @property
    def database(self) -> Path:
        """The database with the revisions."""
        return self._database or DataPaths(get_data_dir()).database

    @property
    def fact_files(self) -> dict[str, Path]:
        """The files with facts that this scope may change, by name; MEMORY.md is the last."""
        shared = [self.shared_file] if self.scope.is_owners else []
        return {file.name: file for file in (self.archive_file, *shared, self.memory_file)}

    def file_text(self, file: Path) -> str:
        """Return the text of one of the memory files, with invalid bytes as surrogate escapes so that they round-trip.
        Empty if it cannot be read.
        """
        try:
            return (self.file_bytes(file) or b"").decode("utf-8", "surrogateescape")
        except StorageError:
            return ""

    def file_bytes(self, file: Path) -> bytes | None:
        """Return the content of a memory file, None if there is none. Raises StorageError."""
        with storage_errors(f"{file.name} cannot be read"):
            try:
                with self.files.read(file) as opened:
                    return opened.read()
            except FileNotFoundError:
                return None

    @property
    def log_size(self) -> int:
        """Bytes of HISTORY.md."""
        try:
            return self.history_file.stat().st_size
        except OSError:
            return 0

    def append_history(self, entry: str) -> None:
        """Append to the log, durably. An entry without `[YYYY-MM-DD HH:MM]` gets the current time."""
        text = _BLANK_LINES.sub("\n", entry.strip())
        if not text:
            return
        if not STAMP.match(text):
            text = f"[{self.clock.now():%Y-%m-%d %H:%M}] {text}"
        self.append(self.history_file, text + "\n\n")

    def write(self, path: Path, content: bytes | None) -> None:
        """Replace one of the files atomically; None removes it."""
        with storage_errors(f"Cannot write {path.name}"), self.files.own_location(path) as place:
            if content is None:
                place.real.unlink(missing_ok=True)
            else:
                remove_stale_temps(place.real, older_than_s=_STALE_TEMP_S)
                place.replace(content, PRIVATE_FILE)

    def append(self, path: Path, text: str) -> None:
        """Append a paragraph on a line of its own, whatever an editor or a crash left at the end."""
        with storage_errors(f"Cannot write {path.name}"), self.files.own_location(path) as place:
            tail = b""
            with suppress(FileNotFoundError), place.read() as file:
                file.seek(max(0, file.seek(0, 2) - 4))
                tail = file.read().replace(b"\r\n", b"\n")
            newlines = len(tail) - len(tail.rstrip(b"\n"))
            gap = "\n" * max(0, 2 - newlines) if tail else ""
            place.append((gap + text).encode("utf-8", "replace"))


def try_lock(path: Path, what: str) -> ProcessLock | None:
    """Take the lock of a piece of work; None if another process or task has it. Raises StorageError with `what` is not
    done.
    """
    lock = ProcessLock(path)
    with storage_errors(what):
        make_private_folder(path.parent)
        return lock if lock.try_acquire() else None


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Raise a StorageError that says `what` failed if the disk fails or the path is denied."""
    try:
        yield
    except PathDeniedError as error:
        raise StorageError(str(error)) from error
    except OSError as error:
        raise storage_error(what, error) from error
